// SPDX-License-Identifier: Apache-2.0
// hands.cc - see hands.h.
//
// An entry may be in the hands of a process and found by others at the same time: the mark comes
// before the first store that hides it, and goes after the last one that shows it. So each kind is
// looked for where others would find it first. Any process may have written into the stack: each
// walk has an end.
#include "life/hands.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/kept_options.h"
#include "endpoint/posts.h"
#include "endpoint/refs.h"
#include "endpoint/state.h"
#include "event/wait.h"
#include "family/family.h"
#include "peer/close.h"

namespace postern {
namespace {

bool IsMember(const StackMap& s, const pstn_epoll& set, uint32_t idx) PSTN_REQUIRES(set.lock) {
  uint32_t i = LoadRelaxed(set.all_head);
  for (uint32_t guard = 0; guard < s.items.count(); guard++) {
    const pstn_item* const item = s.items.At(ItemIndex(i));
    if (item == nullptr) return false;
    if (i == idx) return true;
    i = LoadRelaxed(item->all_next);
  }
  return false;
}

// Whether the endpoint's list has it, and behind which.
bool IsListed(const StackMap& s, const pstn_ep& ep, uint32_t idx, uint32_t* prev)
    PSTN_REQUIRES(ep.item_lock) {
  *prev = PSTN_NONE;
  uint32_t i = LoadRelaxed(ep.item_head);
  for (uint32_t guard = 0; guard < s.items.count(); guard++) {
    const pstn_item* const item = s.items.At(ItemIndex(i));
    if (item == nullptr) return false;
    if (i == idx) return true;
    *prev = i;
    i = LoadRelaxed(item->ep_next);
  }
  return false;
}

bool InSomeTable(const StackMap& s, uint32_t chunk) {
  for (const pstn_slot& slot : s.slots.Before(LoadAcquire(s.hdr.slots_hw))) {  // [P5]
    if (LoadAcquire(slot.state) == PSTN_SL_FREE) continue;                     // [P1]
    for (const uint32_t& c : slot.chunk) {
      if (LoadAcquire(c) == chunk) return true;  // [P3]
    }
  }
  return false;
}

}  // namespace

Hands::Hands(Family& fam, uint32_t slot) : fam_(fam), s_(Stack(fam)), mark_(slot + 1) {}

// It died between taking an entry in its hands and taking it from the list, or on the way back.
template <typename Entries>
void Hands::ClearFree(pstn_pool& pool, const Entries& table) const {
  using I = decltype(table.IndexAt(nullptr));
  bool any =
      PoolFirst(pool) == LoadRelaxed(pool.hw);  // it has come into the list, but not below hw
  for (const auto& entry : table.Before(LoadRelaxed(pool.hw))) any = any || Has(HandsOf(entry));
  if (!any) return;
  const Guard g(pool.lock);
  uint32_t idx = PoolFirst(pool);
  if (idx == LoadRelaxed(pool.hw) && table.At(I(idx)) != nullptr) StoreRelaxed(pool.hw, idx + 1);
  for (uint32_t guard = 0; guard < table.count(); guard++) {
    auto* const entry = table.At(I(idx));
    if (entry == nullptr) return;
    if (Has(HandsOf(*entry))) FreeHands(*entry);
    idx = LoadRelaxed(entry->next);
  }
}

void Hands::Mend() const {
  ClearFree(s_.hdr.eps, s_.eps);
  ClearFree(s_.hdr.items, s_.items);
  ClearFree(s_.hdr.epolls, s_.epolls);
  ClearFree(s_.hdr.waiters, s_.waiters);
  ClearFree(s_.hdr.fdchunks, s_.fdchunks);
  const auto mends = [&](const Refs& refs) { return refs.moving() && Has(refs.mark()); };
  for (const pstn_ep& ep : s_.eps.Before(LoadRelaxed(s_.hdr.eps.hw))) {
    if (mends(RefsOf(ep))) MendRef(fam_, PSTN_FD_EP | s_.eps.IndexOf(ep).word());
  }
  for (const pstn_epoll& set : s_.epolls.Before(LoadRelaxed(s_.hdr.epolls.hw))) {
    if (mends(RefsOf(set))) MendRef(fam_, PSTN_FD_EPOLL | s_.epolls.IndexOf(set).word());
  }
}

// A listener that was being closed has a queue, a connection perhaps a slot still.
void Hands::EndEp(uint32_t idx) const {
  pstn_ep& ep = s_.eps.Own(EpIndex(idx));
  const uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_FREE) return GiveEp(s_, idx);
  if (state == PSTN_EP_EMBRYO) SetLingering(ep, {true, 0});  // its listener has gone: reset
  if (state != PSTN_EP_CLOSED) return kVerbs.last_reference(fam_, PSTN_FD_EP | idx);
  ResetQueue(fam_, ep);
  FinishClose(fam_, ep);
}

void Hands::EndItem(uint32_t idx) const {
  const pstn_item& item = s_.items.Own(ItemIndex(idx));
  pstn_epoll* const set = s_.epolls.At(SetIndex(LoadRelaxed(item.epoll_idx)));
  pstn_ep* const ep = EpAt(s_, LoadRelaxed(item.ep_idx));
  if (set == nullptr || ep == nullptr) return GiveItem(s_, idx);
  MapForRenotify(fam_, *ep);
  const Guard g(ep->item_lock);
  const SetGuard h(s_, *set);
  uint32_t prev = PSTN_NONE;
  if (!IsMember(s_, *set, idx)) return GiveItem(s_, idx);
  if (IsListed(s_, *ep, idx, &prev)) {
    RemoveItem(s_, *ep, *set, idx, prev);
  } else {
    RemoveOrphan(s_, *set, idx);
  }
  RenotifyLocked(fam_, *ep);
}

void Hands::EndSet(uint32_t idx) const {
  if (LoadAcquire(s_.epolls.Own(SetIndex(idx)).state) == 0) return GiveEpoll(s_, idx);  // [S1]
  kVerbs.last_reference(fam_, PSTN_FD_EPOLL | idx);
}

void Hands::EndChunk(uint32_t idx) const {
  if (InSomeTable(s_, idx)) return LeaveHands(s_.fdchunks.Own(ChunkIndex(idx)));
  GiveFdChunk(s_, idx);
}

template <typename Entries, typename Fn>
void Hands::EndEach(const pstn_pool& pool, const Entries& table, Fn end) const {
  for (const auto& entry : table.Before(LoadRelaxed(pool.hw))) {
    if (Has(HandsOf(entry))) end(table.IndexOf(entry).word());
  }
}

void Hands::End() const {
  EndEach(s_.hdr.eps, s_.eps, [&](uint32_t i) { EndEp(i); });
  EndEach(s_.hdr.items, s_.items, [&](uint32_t i) { EndItem(i); });
  EndEach(s_.hdr.epolls, s_.epolls, [&](uint32_t i) { EndSet(i); });
  EndEach(s_.hdr.waiters, s_.waiters, [&](uint32_t i) { ReleaseWaiter(fam_, i); });
  EndEach(s_.hdr.fdchunks, s_.fdchunks, [&](uint32_t i) { EndChunk(i); });
}

}  // namespace postern
