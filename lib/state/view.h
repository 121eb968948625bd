// SPDX-License-Identifier: Apache-2.0
// view.h - a process's view of a stack and its link groups: the only place where an index becomes
// a reference.
//
// Within a family indices are trusted but still range-checked at the edges (fd tables, pools);
// posternd, which trusts nobody, uses the checking accessors (`EpAt`) throughout.
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"
#include "state/area.h"
#include "state/pool.h"

namespace postern {

struct StackView {
  pstn_stack* s = nullptr;
  uint8_t* lgr[PSTN_LGRS] = {};      // null: not mapped here
  pstn_uuid lgr_id[PSTN_LGRS] = {};  // which link group that mapping is
  int lgr_fd[PSTN_LGRS] = {};        // 0: none kept
  uint8_t* retired[PSTN_LGRS] = {};  // mapping before that one: a thread may still look at it
};

inline pstn_ep* EpAt(pstn_stack& s, uint32_t idx) { return idx < PSTN_EPS ? &s.eps[idx] : nullptr; }
inline const pstn_ep* EpAt(const pstn_stack& s, uint32_t idx) {
  return idx < PSTN_EPS ? &s.eps[idx] : nullptr;
}
inline uint32_t EpIdx(const pstn_stack& s, const pstn_ep& ep) {
  return static_cast<uint32_t>(&ep - s.eps);
}
inline pstn_lgr_hdr& LgrHdr(uint8_t* base) { return *reinterpret_cast<pstn_lgr_hdr*>(base); }
inline pstn_evmap& LgrEvmap(uint8_t* base, uint32_t side, uint32_t waiter) {
  auto* maps = reinterpret_cast<pstn_evmap*>(base + PSTN_LGR_EVMAP_OFF);
  return maps[(side & 1u) * PSTN_WAITERS + waiter % PSTN_WAITERS];
}
inline pstn_conn& LgrConn(uint8_t* base, uint32_t conn) {
  return reinterpret_cast<pstn_conn*>(base + PSTN_LGR_CONN_OFF)[conn % PSTN_CONNS];
}

// Connected, and not yet admitted by the server; the client may have closed it already.
inline bool WaitsForServer(uint32_t state) {
  return state == PSTN_CS_SYN || state == PSTN_CS_SYN_GONE;
}
// What a connection's state becomes when `side` leaves it and the other does not.
inline uint32_t GoneState(uint32_t side, uint32_t state) {
  if (side != 0) return PSTN_CS_SERVER_GONE;
  return WaitsForServer(state) ? PSTN_CS_SYN_GONE : PSTN_CS_CLIENT_GONE;
}

// The mapping of link group `idx` if this process has it and it still is the one the stack means.
// Another thread may put in the next one meanwhile (SetLgrMapping): a mapping that still stands
// when its name has been read is the one of that name.
inline uint8_t* LgrBase(const StackView& v, uint32_t idx) {
  if (idx >= PSTN_LGRS) return nullptr;
  uint8_t* base = LoadAcquire(v.lgr[idx]);  // [V1] in view.cc: its name is there
  if (base == nullptr) return nullptr;
  const pstn_uuid id = {LoadAcquire(v.lgr_id[idx].hi), LoadAcquire(v.lgr_id[idx].lo)};  // [V2]
  return SameUuid(v.s->lgrs[idx].id, id) && LoadRelaxed(v.lgr[idx]) == base ? base : nullptr;
}

// Link-group references of a stack. Index, or PSTN_NONE when the table is full.
uint32_t AddLgrRef(pstn_stack& s, uint32_t side, const pstn_uuid& id, const pstn_uuid& peer);
void FreeLgrRef(pstn_stack& s, uint32_t idx);
// Puts a mapping into the view and keeps `fd`. The mapping before is unmapped at the next change;
// its fd is the caller's to close.
void SetLgrMapping(StackView& v, uint32_t idx, uint8_t* base, int fd);
// The same for one whose name is known, whatever its header says.
void SetLgrMapping(StackView& v, uint32_t idx, uint8_t* base, int fd, const pstn_uuid& id);
void DropLgrMapping(StackView& v, uint32_t idx);

inline uint32_t TakeEp(pstn_stack& s) {
  return PoolTake(s.hdr.eps, PSTN_EPS, [&](uint32_t i) -> uint32_t& { return s.eps[i].next; });
}
inline void GiveEp(pstn_stack& s, uint32_t idx) {
  PoolGive(s.hdr.eps, idx, [&](uint32_t i) -> uint32_t& { return s.eps[i].next; });
}

// What programs leave of a table is for the stack's keepers: one that carries the connections which
// have left the family, each with a registration in its set, and one that follows it. Without, a
// program that has filled a table could not be helped by leaving its connections to the kernel.
enum class For : uint8_t { kProgram, kKeeper };
constexpr uint32_t Share(For whom, uint32_t all, uint32_t left) {
  return whom == For::kKeeper ? all : all - left;
}

inline uint32_t TakeItem(pstn_stack& s, For whom = For::kProgram) {
  return PoolTake(
      s.hdr.items, PSTN_ITEMS, [&](uint32_t i) -> uint32_t& { return s.items[i].next; },
      Share(whom, PSTN_ITEMS, PSTN_EPS));
}
inline void GiveItem(pstn_stack& s, uint32_t idx) {
  PoolGive(s.hdr.items, idx, [&](uint32_t i) -> uint32_t& { return s.items[i].next; });
}
inline uint32_t TakeEpoll(pstn_stack& s, For whom = For::kProgram) {
  return PoolTake(
      s.hdr.epolls, PSTN_EPOLLS, [&](uint32_t i) -> uint32_t& { return s.epolls[i].next; },
      Share(whom, PSTN_EPOLLS, 2));
}
inline void GiveEpoll(pstn_stack& s, uint32_t idx) {
  PoolGive(s.hdr.epolls, idx, [&](uint32_t i) -> uint32_t& { return s.epolls[i].next; });
}
inline uint32_t TakeWaiter(pstn_stack& s, For whom = For::kProgram) {
  return PoolTake(
      s.hdr.waiters, PSTN_EVMAP_ALL,  // which is no waiter's, nor are the two first
      [&](uint32_t i) -> uint32_t& { return s.waiters[i].next; },
      Share(whom, PSTN_EVMAP_ALL - PSTN_EVMAP_WIRE - 1, 2));
}
inline void GiveWaiter(pstn_stack& s, uint32_t idx) {
  PoolGive(s.hdr.waiters, idx, [&](uint32_t i) -> uint32_t& { return s.waiters[i].next; });
}
inline uint32_t TakeFdChunk(pstn_stack& s, For whom = For::kProgram) {
  return PoolTake(
      s.hdr.fdchunks, PSTN_FDCHUNKS, [&](uint32_t i) -> uint32_t& { return s.fdchunks[i].next; },
      Share(whom, PSTN_FDCHUNKS, 2 * PSTN_EPS / PSTN_FDCHUNK_FDS));
}
inline void GiveFdChunk(pstn_stack& s, uint32_t idx) {
  PoolGive(s.hdr.fdchunks, idx, [&](uint32_t i) -> uint32_t& { return s.fdchunks[i].next; });
}

}  // namespace postern
