// SPDX-License-Identifier: Apache-2.0
// lgr_world.h - a stack and three link groups in memory, for lgr_fuzz: two whose peer is hostile
// (we are the server of one and the client of the other) and one whose peer is honest.
//
// What the honest side keeps for itself is where it always is; Validate() says whether
// it is whole. The link groups of the hostile peers lie between inaccessible pages: an access
// beyond them is a SIGSEGV with or without a sanitizer.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>

#include <bit>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "family/family.h"
#include "life/reap.h"
#include "replay.h"
#include "sock/own_family.h"

namespace postern {

inline constexpr uint32_t kAsServer = 0, kAsClient = 1, kHonest = 2, kLgrs = 3;
inline constexpr uint32_t kSlot = 1;

class LgrWorld {
 public:
  LgrWorld() {
    for (Segment& l : lgr_) l.fd = CreateLgr(NewUuid(), NewUuid(), NewUuid());
    stack_.fd = CreateStack(NewUuid());
    const pstn_stack_counts counts = CountsOf({});
    StackLayout layout;
    FUZZ_CHECK(LayOut(counts, layout));
    Map(stack_, layout.bytes);
    reach_ = {counts.waiters, counts.epolls, counts.slots,   counts.lgrs,
              counts.eps,     counts.items,  counts.fdchunks};
    map_.emplace(stack_.base, counts, layout, reach_);
    for (Segment& l : lgr_) Map(l, PSTN_LGR_BYTES);
    stack_head_.assign(stack_.base, stack_.base + sizeof(pstn_stack_hdr));
    for (Segment& l : lgr_) l.head.assign(l.base, l.base + sizeof(pstn_lgr_hdr));
    g_family.bells.sender = sys::Socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }

  // Everything as it is on the first day.
  void Reset() {
    Empty(stack_, stack_head_, s().layout.bytes);
    for (Segment& l : lgr_) Empty(l, l.head, PSTN_LGR_BYTES);
    StackView& v = g_family.view;
    v.s = &s();
    g_family.slot = kSlot;
    g_family.bells.counters = s().hdr.counters;
    g_family.bells.told = &s().slots.Own(ProcIndex(kSlot)).told;
    g_family.bells.noted = 0;
    s().slots.Own(ProcIndex(kSlot)).state = PSTN_SL_LIVE;
    s().hdr.slots_hw = kSlot + 1;
    for (uint32_t& chunk : s().slots.Own(ProcIndex(kSlot)).chunk) chunk = PSTN_NONE;
    for (uint32_t i = 0; i < kLgrs; i++) {
      pstn_lgr_hdr& h = LgrHdr(lgr(i));
      const uint32_t side = i == kAsClient ? 0 : 1;
      FUZZ_CHECK(AddLgrRef(s(), side, h.id, h.stack[side ^ 1u]) == i);
      v.lgr[i] = lgr(i);
      v.lgr_id[i] = h.id;
    }
    listener = NewEp(g_family, AF_INET);
    s().eps.Own(EpIndex(listener)).backlog = 16;
    s().eps.Own(EpIndex(listener)).state = PSTN_EP_LISTEN;
    MakeSet();
    dead = false;
  }

  StackMap& s() { return *map_; }
  uint8_t* lgr(uint32_t i) { return lgr_[i].base; }
  pstn_lgr_ref& ref(uint32_t i) { return s().lgrs.Own(LgrIndex(i)); }
  pstn_epoll& set() { return s().epolls.Own(SetIndex(set_idx)); }
  uint64_t SystemCalls() {
    return s().hdr.counters[kCounterDoorbells] + s().hdr.counters[kCounterFutexWakes];
  }

  // What the honest side believes of itself.
  void Validate() {
    Queue();
    Endpoints();
    for (uint32_t i = 0; i < kLgrs; i++) LinkGroup(i);
  }

  uint32_t listener = 0, set_idx = 0;
  bool dead = false;  // posternd has said so of both hostile peers

 private:
  struct Segment {
    int fd = -1;
    uint8_t* base = nullptr;
    std::vector<uint8_t> head;
  };
  static constexpr size_t kGuardBytes = 64u << 20;

  static void Map(Segment& l, size_t bytes) {
    void* area = mmap(nullptr, bytes + 2 * kGuardBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (l.fd < 0 || area == MAP_FAILED) FuzzDie("cannot map");
    l.base = static_cast<uint8_t*>(area) + kGuardBytes;
    if (mmap(l.base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, l.fd, 0) != l.base ||
        mprotect(l.base - kLgrOwnBytes, kLgrOwnBytes, PROT_READ | PROT_WRITE) != 0)
      FuzzDie("cannot map");
    if (bytes == PSTN_LGR_BYTES) SetChunks(l.base, l.base + kLgrTablesBytes);
  }
  static void Empty(Segment& l, const std::vector<uint8_t>& head, size_t bytes) {
    if (fallocate(l.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) !=
        0)
      FuzzDie("cannot empty");
    memcpy(l.base, head.data(), head.size());
  }

  void MakeSet() {
    set_idx = TakeEpoll(s());
    pstn_epoll& e = set();
    e.refs = 1;
    e.ready_head = e.ready_tail = e.all_head = PSTN_NONE;
    e.waiter_idx = TakeWaiter(s());
    s().waiters.Own(WaiterIndex(e.waiter_idx)).state = 1;
    s().waiters.Own(WaiterIndex(e.waiter_idx)).owner_slot = PSTN_NONE;
    e.state = 1;
  }

  void Queue() {
    const pstn_ep& l = s().eps.Own(EpIndex(listener));
    uint32_t count = 0, last = PSTN_NONE;
    for (uint32_t i = l.accept_head; i != PSTN_NONE;
         last = i, i = s().eps.Own(EpIndex(i)).next, count++) {
      FUZZ_CHECK(i < s().eps.count() && count < PoolUsed(s().hdr.eps));
      FUZZ_CHECK(s().eps.Own(EpIndex(i)).state == PSTN_EP_EMBRYO);
      FUZZ_CHECK(last == PSTN_NONE ||
                 s().eps.Own(EpIndex(last)).syn_ns <= s().eps.Own(EpIndex(i)).syn_ns);
    }
    FUZZ_CHECK(count == l.accept_count && last == l.accept_tail);
  }

  // Each endpoint is its slot's and each slot its endpoint's; offsets lie in their rings; no ring
  // has two owners.
  void Endpoints() {
    uint32_t used = 0;
    for (auto& owned : rings_) owned.clear();
    for (uint32_t i = 0; i < s().hdr.eps.hw; i++) {
      pstn_ep& ep = s().eps.Own(EpIndex(i));
      if (ep.state == PSTN_EP_FREE) continue;
      used++;
      if (ep.state != PSTN_EP_EMBRYO && ep.state != PSTN_EP_ESTABLISHED) continue;
      FUZZ_CHECK(ep.lgr_idx < kLgrs && ep.conn_idx < PSTN_CONNS && ep.side == ref(ep.lgr_idx).side);
      FUZZ_CHECK(ref(ep.lgr_idx).conn_ep[ep.conn_idx] == i + 1);
      Direction(ep);
      Owned(ep.lgr_idx, ep.tx.ring);
      Owned(ep.lgr_idx, ep.tx.old_ring);
    }
    FUZZ_CHECK(used == PoolUsed(s().hdr.eps));
  }

  void Direction(const pstn_ep& ep) {
    const pstn_tx& tx = ep.tx;
    if (tx.ring != 0) {
      const RingPlace ring = RingAt(lgr(ep.lgr_idx), ep.side, tx.ring);
      FUZZ_CHECK(ring.base != nullptr);
      FUZZ_CHECK(tx.off % 64 == 0 && tx.off <= ring.bytes - 64);
      FUZZ_CHECK(tx.peer % 64 == 0 && tx.peer < ring.bytes);
    }
    const pstn_rx& rx = ep.rx;
    if (rx.ring != 0) {
      const RingPlace ring = RingAt(lgr(ep.lgr_idx), ep.side ^ 1u, rx.ring);
      FUZZ_CHECK(ring.base != nullptr);
      FUZZ_CHECK(rx.off % 64 == 0 && rx.off <= ring.bytes - 64);
      FUZZ_CHECK(rx.rec_done == 0 ||
                 (rx.rec_done < rx.rec_len && rx.off + rx.rec_len <= ring.bytes - 64));
    }
    FUZZ_CHECK(ep.tx.lock.word == 0 && ep.rx.lock.word == 0 && ep.item_lock.word == 0);
  }

  void Owned(uint32_t i, uint64_t desc) {
    if (desc != 0) FUZZ_CHECK(rings_[i].insert(desc & ((1ull << 44) - 1)).second);
  }

  static uint32_t Bits(const uint64_t* map, uint32_t bits) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < bits / 64; w++) n += static_cast<uint32_t>(std::popcount(map[w]));
    return n;
  }

  void LinkGroup(uint32_t i) {
    const pstn_lgr_ref& r = ref(i);
    uint32_t eps = 0;
    for (uint32_t c = 0; c < PSTN_CONNS; c++) {
      if (r.conn_ep[c] != 0) {
        eps++;
        const pstn_ep& ep = s().eps.Own(EpIndex(r.conn_ep[c] - 1));
        FUZZ_CHECK(ep.state == PSTN_EP_EMBRYO || ep.state == PSTN_EP_ESTABLISHED);
        FUZZ_CHECK(ep.lgr_idx == i && ep.conn_idx == c);
      }
      if ((r.zombie_map[c / 64] >> (c % 64) & 1u) == 0) continue;
      Owned(i, r.zombie_ring[c]);
      Owned(i, r.zombie_old[c]);
    }
    FUZZ_CHECK(r.zombies == Bits(r.zombie_map, PSTN_CONNS));
    FUZZ_CHECK(r.conns == Bits(r.conn_map, PSTN_CONNS));
    FUZZ_CHECK(r.side != 0 || eps <= r.conns);
    const uint32_t given = Bits(r.ring0_map, PSTN_RING0_COUNT) +
                           Bits(r.ring1_map, PSTN_RING1_COUNT) +
                           Bits(r.ring2_map, PSTN_RING2_COUNT);
    FUZZ_CHECK(r.rings == given && rings_[i].size() == given);
    FUZZ_CHECK(r.lock.word == 0);
  }

  Segment stack_, lgr_[kLgrs];
  std::vector<uint8_t> stack_head_;
  StackReach reach_ = {};
  std::optional<StackMap> map_;
  std::set<uint64_t> rings_[kLgrs];
};

}  // namespace postern
