// SPDX-License-Identifier: Apache-2.0
// view.h - a process's view of a stack and its link groups: the only place where an index becomes
// a reference.
//
// An index of a stack becomes a reference by its table alone (table.h), which says no to what is
// out of range; one of a link group is taken modulo, since its limits are constants.
#pragma once
#include <array>

#include "abi/postern_abi.h"
#include "base/atomic.h"
#include "state/area.h"
#include "state/pool.h"

namespace postern {

// The memory in which clients of a server's stack count, as one posternd gave it to this process.
struct QueuesHere {
  pstn_queues* map;      // (a) null: it is not here
  pstn_queues* retired;  // mapping before that one: a thread may still look at it
  uint64_t daemon;       // (a) which posternd (of its id); a later one has made another memory
};
inline constexpr uint32_t kOwnQueues = kGroups.most;

struct StackView {
  StackMap* s = nullptr;
  uint8_t* lgr[kGroups.most] = {};         // null: not mapped here
  pstn_uuid lgr_id[kGroups.most] = {};     // which link group that mapping is
  int lgr_fd[kGroups.most] = {};           // 0: none kept
  uint8_t* retired[kGroups.most] = {};     // mapping before that one: a thread may still look at it
  QueuesHere queues[kOwnQueues + 1] = {};  // of each link group's server; and of this stack
};

inline pstn_ep* EpAt(const StackMap& s, uint32_t idx) { return s.eps.At(EpIndex(idx)); }
inline const pstn_ep* EpAt(const StackLook& s, uint32_t idx) { return s.eps.At(EpIndex(idx)); }
inline uint32_t EpIdx(const StackMap& s, const pstn_ep& ep) { return s.eps.IndexOf(ep).word(); }
inline pstn_lgr_hdr& LgrHdr(uint8_t* base) { return *reinterpret_cast<pstn_lgr_hdr*>(base); }
inline pstn_evmap& LgrEvmap(uint8_t* base, uint32_t side, uint32_t waiter) {
  auto* maps = reinterpret_cast<pstn_evmap*>(base + PSTN_LGR_EVMAP_OFF);
  return maps[(side & 1u) * PSTN_WAITERS + waiter % PSTN_WAITERS];
}
inline pstn_conn& LgrConn(uint8_t* base, uint32_t conn) {
  return reinterpret_cast<pstn_conn*>(base + PSTN_LGR_CONN_OFF)[conn % PSTN_CONNS];
}

// Raises the end of what was ever used of a table in a link group, `most` entries long. A peer that
// lowers it all the time gets us to look at all of the table, and not to try for ever.
inline void RaiseMark(uint32_t& hw, uint32_t end, uint32_t most) {
  constexpr int kTries = 64;
  uint32_t seen = LoadRelaxed(hw);
  for (int i = 0; i < kTries; i++)
    if (seen >= end || CompareExchange(hw, seen, end)) return;
  StoreRelaxed(hw, most);
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

// A link group as the stack keeps it, and this process's mapping of it.
struct LgrHere {
  pstn_lgr_ref* ref;  // null: the stack's table does not reach so far
  uint8_t* base;      // null: not mapped here, or what is mapped is not the one the stack means
};
// Another thread may put in the next mapping meanwhile (SetLgrMapping): a mapping that still stands
// when its name has been read is the one of that name.
[[gnu::always_inline]] inline LgrHere LgrAt(const StackView& v, LgrIndex idx) {
  pstn_lgr_ref* const ref = v.s->lgrs.At(idx);
  if (ref == nullptr) return {nullptr, nullptr};
  uint8_t* base = LoadAcquire(v.lgr[idx.word()]);  // [V1] in view.cc: its name is there
  if (base == nullptr) return {ref, nullptr};
  const pstn_uuid& named = v.lgr_id[idx.word()];
  const pstn_uuid id = {LoadAcquire(named.hi), LoadAcquire(named.lo)};  // [V2]
  const bool stands = SameUuid(ref->id, id) && LoadRelaxed(v.lgr[idx.word()]) == base;
  return {ref, stands ? base : nullptr};
}
[[gnu::always_inline]] inline uint8_t* LgrBase(const StackView& v, uint32_t idx) {
  return LgrAt(v, LgrIndex(idx)).base;
}

// Link-group references of a stack. Index, or PSTN_NONE when the table is full.
uint32_t AddLgrRef(StackMap& s, uint32_t side, const pstn_uuid& id, const pstn_uuid& peer);
void FreeLgrRef(StackMap& s, uint32_t idx);
// Puts a mapping into the view and keeps `fd`. The mapping before is unmapped at the next change;
// its fd is the caller's to close.
void SetLgrMapping(StackView& v, uint32_t idx, uint8_t* base, int fd);
// The same for one whose name is known, whatever its header says.
void SetLgrMapping(StackView& v, uint32_t idx, uint8_t* base, int fd, const pstn_uuid& id);
void DropLgrMapping(StackView& v, uint32_t idx);
// The same for queues. A null `map`: they are another server's from now on.
void SetQueuesMapping(StackView& v, uint32_t which, pstn_queues* map, uint64_t daemon);
void DropQueuesMapping(StackView& v, uint32_t which);

inline uint32_t TakeEp(StackMap& s) { return PoolTake(s.hdr.eps, s.eps); }
inline void GiveEp(StackMap& s, uint32_t idx) { PoolGive(s.hdr.eps, s.eps, idx); }

template <typename Map>
auto PoolsOf(Map& s) {
  return std::array{&s.hdr.eps, &s.hdr.items, &s.hdr.fdchunks, &s.hdr.epolls, &s.hdr.waiters};
}

// What programs leave of a table is for the stack's keepers: one that carries the connections which
// have left the family, each with a registration in its set, and one that follows it. Without, a
// program that has filled a table could not be helped by leaving its connections to the kernel.
enum class For : uint8_t { kProgram, kKeeper };
constexpr uint32_t Share(For whom, uint32_t all, uint32_t left) {
  return whom == For::kKeeper ? all : all - left;
}

inline uint32_t TakeItem(StackMap& s, For whom = For::kProgram) {
  return PoolTake(s.hdr.items, s.items, Share(whom, s.items.count(), KeeperItems(s.eps.count())));
}
inline void GiveItem(StackMap& s, uint32_t idx) { PoolGive(s.hdr.items, s.items, idx); }
inline uint32_t TakeEpoll(StackMap& s, For whom = For::kProgram) {
  return PoolTake(s.hdr.epolls, s.epolls, Share(whom, s.epolls.count(), kKeeperSets));
}
inline void GiveEpoll(StackMap& s, uint32_t idx) { PoolGive(s.hdr.epolls, s.epolls, idx); }
// The two last are no waiter's, nor are the two first.
inline uint32_t TakeWaiter(StackMap& s, For whom = For::kProgram) {
  return PoolTake(s.hdr.waiters, s.waiters,
                  Share(whom, PSTN_EVMAP_HELD - PSTN_EVMAP_WIRE - 1, kKeeperWaiters),
                  PSTN_EVMAP_HELD);
}
inline void GiveWaiter(StackMap& s, uint32_t idx) { PoolGive(s.hdr.waiters, s.waiters, idx); }
// The last of the largest stack holds the place that says PSTN_REFS_ALONE.
inline uint32_t TakeFdChunk(StackMap& s, For whom = For::kProgram) {
  return PoolTake(s.hdr.fdchunks, s.fdchunks,
                  Share(whom, s.fdchunks.count(), KeeperChunks(s.eps.count())),
                  PSTN_REFS_ALONE / PSTN_FDCHUNK_FDS);
}
inline void GiveFdChunk(StackMap& s, uint32_t idx) { PoolGive(s.hdr.fdchunks, s.fdchunks, idx); }

}  // namespace postern
