// SPDX-License-Identifier: Apache-2.0
// stack_validate.cc - see stack_validate.h.
#include "state/stack_validate.h"

#include <initializer_list>

#include "base/atomic.h"
#include "state/in_hands.h"
#include "state/view.h"

namespace postern {
namespace {

// A set of indices below what was reset. Those of a whole check lie on the stack: about a megabyte.
template <uint32_t kMost>
class Indices {
 public:
  void Reset(uint32_t end) {
    for (uint32_t i = 0; i <= end / 64; i++) words_[i] = 0;
  }
  bool Add(uint32_t i) {  // false: it was there
    const bool had = Has(i);
    words_[i / 64] |= 1ull << (i % 64);
    return !had;
  }
  [[nodiscard]] bool Has(uint32_t i) const { return (words_[i / 64] >> (i % 64) & 1u) != 0; }

 private:
  uint64_t words_[kMost / 64 + 1];
};

constexpr uint32_t kItemsMost = kRegistrations.most + KeeperItems(kSockets.most);
constexpr uint32_t kChunksMost = PSTN_REFS_ALONE / PSTN_FDCHUNK_FDS + 1;

// Nothing runs beside it, so it takes no lock.
class Checker {
 public:
  explicit Checker(StackMap& s) : s_(s), hdr_(s.hdr) {}

  const char* Check() {
    for (auto part :
         {&Checker::Pools, &Checker::Locks, &Checker::Chunks, &Checker::CheckEps, &Checker::Queues,
          &Checker::Conns, &Checker::Sets, &Checker::Items, &Checker::Waiters}) {
      if (const char* wrong = (this->*part)(); wrong != nullptr) return wrong;
    }
    return nullptr;
  }

 private:
  // The indices of a pool that are free and were used before.
  template <typename Entries, uint32_t kMost>
  static const char* Free(const pstn_pool& pool, const Entries& table, uint32_t first,
                          Indices<kMost>& free) {
    using I = decltype(table.IndexAt(nullptr));
    if (pool.lock.word != 0) return "a pool's lock is held";
    if (pool.hw > table.count()) return "a pool has more than its table";
    free.Reset(pool.hw);
    uint32_t count = 0;
    for (uint32_t i = PoolFirst(pool); i != PSTN_NONE; count++) {
      if (i < first || i >= pool.hw) return "a free list has an index that was never used";
      if (!free.Add(i)) return "an index is free twice";
      i = table.Own(I(i)).next;
    }
    const uint32_t hw = pool.hw > first ? pool.hw : first;
    return PoolUsed(pool) == hw - first - count ? nullptr : "a pool's count is wrong";
  }

  const char* Pools() {
    for (const char* wrong :
         {Free(hdr_.eps, s_.eps, 0, eps_), Free(hdr_.items, s_.items, 0, items_),
          Free(hdr_.epolls, s_.epolls, 0, sets_),
          Free(hdr_.waiters, s_.waiters, PSTN_EVMAP_WIRE + 1, waiters_),
          Free(hdr_.fdchunks, s_.fdchunks, 0, chunks_)}) {
      if (wrong != nullptr) return wrong;
    }
    return nullptr;
  }

  const char* Locks() {
    if ((hdr_.slot_lock.word | hdr_.lgr_lock.word) != 0) return "the stack's locks are held";
    for (const pstn_lgr_ref& ref : s_.lgrs.Before(hdr_.lgrs_hw)) {
      if (ref.lock.word != 0) return "a link group's lock is held";
    }
    for (const pstn_ep& ep : Endpoints()) {
      if (ep.item_lock.word != 0) return "an endpoint's list is locked";
      if ((ep.tx.lock.word | ep.rx.lock.word) != 0) return "an endpoint's ring is locked";
      if (ep.accept_lock.word != 0) return "an accept queue is locked";
      if (ep.setup_lock.word != 0) return "an endpoint's setup is locked";
    }
    for (const pstn_epoll& set : s_.epolls.Before(hdr_.epolls.hw)) {
      if (set.lock.word != 0) return "a set's lock is held";
    }
    return nullptr;
  }

  // Each is free, or in one table; what the entries name exists.
  const char* Chunks() {
    tables_.Reset(hdr_.fdchunks.hw);
    for (const pstn_slot& slot : s_.slots.All()) {
      if (slot.state == PSTN_SL_FREE) continue;
      if (slot.state == PSTN_SL_DEAD) return "a dead process has its slot";
      if (s_.slots.IndexOf(slot).word() >= hdr_.slots_hw) return "a slot is beyond slots_hw";
      for (const uint32_t chunk : slot.chunk) {
        if (chunk == PSTN_NONE) continue;
        if (chunk >= hdr_.fdchunks.hw || chunks_.Has(chunk)) return "a table has a free chunk";
        if (!tables_.Add(chunk)) return "a chunk is in two tables";
        for (const uint32_t entry : s_.fdchunks.Own(ChunkIndex(chunk)).fd) {
          if (!Exists(entry)) return "a number means nothing";
        }
      }
    }
    for (uint32_t i = 0; i < hdr_.fdchunks.hw; i++) {
      if (s_.fdchunks.Own(ChunkIndex(i)).hands != 0) return "a chunk is in some hands";
      if (chunks_.Has(i) == tables_.Has(i)) return "a chunk is lost";
    }
    return nullptr;
  }

  [[nodiscard]] bool Exists(uint32_t entry) const {
    const uint32_t idx = entry & PSTN_FD_IDX;
    if (entry == 0) return true;
    if ((entry & PSTN_FD_KIND) == PSTN_FD_EP) return idx < hdr_.eps.hw && !eps_.Has(idx);
    return (entry & PSTN_FD_KIND) == PSTN_FD_EPOLL && idx < hdr_.epolls.hw && !sets_.Has(idx);
  }

  // Entries of all tables.
  [[nodiscard]] uint32_t References(uint32_t entry) const {
    uint32_t n = 0;
    for (const pstn_slot& slot : s_.slots.Before(hdr_.slots_hw)) {
      if (slot.state == PSTN_SL_FREE) continue;
      for (const uint32_t& place : slot.chunk) {
        const pstn_fdchunk* const chunk = s_.fdchunks.At(ChunkIndex(place));
        if (chunk == nullptr) continue;
        for (const uint32_t e : chunk->fd) n += e == entry ? 1u : 0u;
      }
    }
    return n;
  }

  const char* CheckEps() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    for (const pstn_ep& ep : Endpoints()) {
      const uint32_t i = s_.eps.IndexOf(ep).word();
      if (RefsOf(ep).mark() != 0) return "an endpoint is in some hands";
      if ((ep.state == PSTN_EP_FREE) != eps_.Has(i))
        return ep.state == PSTN_EP_FREE ? "an endpoint is lost" : "an endpoint in use is free";
      if (ep.state == PSTN_EP_FREE || (ep.flags & PSTN_EPF_ENGINE) != 0) continue;
      if (ep.state == PSTN_EP_CLOSED) return "an endpoint was not closed to its end";
      const uint32_t queued = ep.state == PSTN_EP_EMBRYO ? 1u : 0u;
      if (RefsOf(ep).count() != References(PSTN_FD_EP | i) + queued)
        return "references are not what they say";
    }
    return nullptr;
  }

  const char* Queues() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    queued_.Reset(hdr_.eps.hw);
    for (const pstn_ep& ep : Endpoints()) {
      if (ep.state != PSTN_EP_LISTEN) continue;
      uint32_t count = 0, last = PSTN_NONE;
      for (uint32_t i = ep.accept_head; i != PSTN_NONE; count++) {
        if (i >= hdr_.eps.hw || !queued_.Add(i)) return "an accept queue has no end";
        const pstn_ep& embryo = s_.eps.Own(EpIndex(i));
        if (embryo.state != PSTN_EP_EMBRYO || embryo.listener != s_.eps.IndexOf(ep).word())
          return "an accept queue has what is not its own";
        last = i;
        i = embryo.next;
      }
      if (count != ep.accept_count || last != ep.accept_tail) return "an accept queue miscounts";
    }
    for (const pstn_ep& ep : Endpoints()) {
      if (ep.state == PSTN_EP_EMBRYO && !queued_.Has(s_.eps.IndexOf(ep).word()))
        return "no queue has an embryo";
    }
    return nullptr;
  }

  const char* Conns() {
    for (const pstn_lgr_ref& ref : s_.lgrs.Before(hdr_.lgrs_hw)) {
      if (ref.state == 0) continue;
      for (uint32_t c = 0; c < PSTN_CONNS; c++) {
        const uint32_t idx = ref.conn_ep[c];
        if (idx == 0) continue;
        if (idx > hdr_.eps.hw) return "a connection has no endpoint";
        const pstn_ep& ep = s_.eps.Own(EpIndex(idx - 1));
        if (ep.state == PSTN_EP_FREE) return "a connection has an endpoint that is free";
        if (ep.lgr_idx != s_.lgrs.IndexOf(ref).word() || ep.conn_idx != c)
          return "a connection has another's endpoint";
      }
    }
    return nullptr;
  }

  const char* Sets() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    members_.Reset(hdr_.items.hw);
    owned_.Reset(hdr_.waiters.hw);
    for (const pstn_epoll& set : s_.epolls.Before(hdr_.epolls.hw)) {
      const uint32_t i = s_.epolls.IndexOf(set).word();
      if (RefsOf(set).mark() != 0) return "a set is in some hands";
      if ((set.state == 0) != sets_.Has(i)) return "a set is lost, or free in use";
      if (set.state == 0) continue;
      if (RefsOf(set).count() != References(PSTN_FD_EPOLL | i))
        return "a set's references are wrong";
      if (const char* wrong = Lists(set, i); wrong != nullptr) return wrong;
      const uint32_t w = set.waiter_idx;
      if (w >= hdr_.waiters.hw || waiters_.Has(w) || s_.waiters.Own(WaiterIndex(w)).state == 0)
        return "a set has no waiter";
      if (!owned_.Add(w)) return "two sets have one waiter";
    }
    return nullptr;
  }

  const char* Lists(const pstn_epoll& set, uint32_t set_idx) PSTN_NO_THREAD_SAFETY_ANALYSIS {
    uint32_t prev = PSTN_NONE, listeners = 0, ready = 0, last = PSTN_NONE;
    for (uint32_t i = set.all_head; i != PSTN_NONE;) {
      if (i >= hdr_.items.hw || items_.Has(i) || !members_.Add(i))
        return "a set has a member that is free, or twice";
      const pstn_item& item = s_.items.Own(ItemIndex(i));
      if (item.all_prev != prev) return "a set's members are not linked backwards";
      if (item.epoll_idx != set_idx) return "a set has another's member";
      listeners += (item.flags & PSTN_IT_KERNEL) != 0 ? 1u : 0u;
      ready += (item.flags & PSTN_IT_READY) != 0 ? 1u : 0u;
      prev = i;
      i = item.all_next;
    }
    if (listeners != set.listeners) return "a set miscounts its listeners";
    if (ready != set.ready_count) return "a set miscounts what is ready";
    for (uint32_t i = set.ready_head; i != PSTN_NONE;) {
      if (ready-- == 0 || i >= hdr_.items.hw || !members_.Has(i) ||
          (s_.items.Own(ItemIndex(i)).flags & PSTN_IT_READY) == 0)
        return "a ready list is wrong";
      last = i;
      i = s_.items.Own(ItemIndex(i)).ready_next;
    }
    return ready == 0 && last == set.ready_tail ? nullptr : "a ready list ends elsewhere";
  }

  // What a set has, its endpoint has, too, and once.
  const char* Items() PSTN_NO_THREAD_SAFETY_ANALYSIS {
    listed_.Reset(hdr_.items.hw);
    for (const pstn_ep& ep : Endpoints()) {
      if (ep.state == PSTN_EP_FREE) continue;
      for (uint32_t i = ep.item_head; i != PSTN_NONE; i = s_.items.Own(ItemIndex(i)).ep_next) {
        if (i >= hdr_.items.hw || !listed_.Add(i)) return "an endpoint's registrations have no end";
        if (!members_.Has(i) || s_.items.Own(ItemIndex(i)).ep_idx != s_.eps.IndexOf(ep).word())
          return "a registration in no set";
      }
    }
    for (uint32_t i = 0; i < hdr_.items.hw; i++) {
      if (s_.items.Own(ItemIndex(i)).hands != 0) return "a registration is in some hands";
      if (members_.Has(i) == items_.Has(i)) return "a registration is lost";
      if (members_.Has(i) != listed_.Has(i)) return "a registration of no endpoint";
    }
    return nullptr;
  }

  const char* Waiters() {
    for (uint32_t i = PSTN_EVMAP_WIRE + 1; i < hdr_.waiters.hw; i++) {
      const pstn_waiter& w = s_.waiters.Own(WaiterIndex(i));
      if (waiters_.Has(i) != (w.state == 0)) return "a waiter is lost, or free in use";
      if (w.state == 0) {
        if (w.hands != 0) return "a free waiter is in some hands";
        continue;
      }
      const pstn_slot* const owner = s_.slots.At(ProcIndex(w.owner_slot));
      if (w.owner_slot == PSTN_NONE ? w.hands != 0 || !owned_.Has(i)
                                    : owner == nullptr || owner->state == PSTN_SL_FREE)
        return "no process and no set has a waiter";
    }
    return nullptr;
  }

  [[nodiscard]] Table<pstn_ep, EpIndex>::Range Endpoints() const {
    return s_.eps.Before(hdr_.eps.hw);
  }

  StackMap& s_;
  const pstn_stack_hdr& hdr_;
  Indices<kSockets.most> eps_, queued_;  // eps_: free ones, as the others named after a pool
  Indices<kItemsMost> items_, members_, listed_;
  Indices<kSets.most> sets_;
  Indices<PSTN_WAITERS> waiters_, owned_;
  Indices<kChunksMost> chunks_, tables_;
};

}  // namespace

// Tests alone call these: 2 MiB of stack are the whole of it.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wframe-larger-than="
#endif

const char* Validate(StackMap& s) { return Checker(s).Check(); }

const char* ValidateEmpty(StackMap& s) {
  if (const char* wrong = Validate(s); wrong != nullptr) return wrong;
  for (const pstn_slot& slot : s.slots.All()) {
    if (slot.state != PSTN_SL_FREE) return "a slot is not free";
  }
  for (const pstn_pool* pool : PoolsOf(s)) {
    if (PoolUsed(*pool) != 0) return "an index has not come back";
  }
  return nullptr;
}

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace postern
