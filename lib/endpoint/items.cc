// SPDX-License-Identifier: Apache-2.0
// items.cc - see items.h.
//
// posternd takes sets apart for processes that died, and believes none of their memory: each index
// is checked and each walk has an end.

#include "endpoint/items.h"
namespace postern {
namespace {

// The list of members is whole at each instruction when walked forwards; all else is made anew from
// it. Each member that may be ready is looked at: an event that the dead owner had taken is found
// again.
void Mend(StackMap& s, pstn_epoll& set) PSTN_REQUIRES(set.lock) {
  set.ready_head = set.ready_tail = PSTN_NONE;
  StoreRelease(set.ready_count, 0u);  // [S2]
  StoreRelaxed(set.listeners, 0u);
  uint32_t prev = PSTN_NONE;
  for (uint32_t i = LoadRelaxed(set.all_head), guard = 0; guard < s.items.count(); guard++) {
    pstn_item* const item = s.items.At(ItemIndex(i));
    if (item == nullptr) return;
    item->all_prev = prev;
    if ((item->flags & PSTN_IT_KERNEL) != 0) StoreRelaxed(set.listeners, set.listeners + 1);
    item->flags &= ~PSTN_IT_READY;
    PushReady(s, set, i);
    prev = i;
    i = LoadRelaxed(item->all_next);
  }
}

}  // namespace

SetGuard::SetGuard(StackMap& s, pstn_epoll& set) : s_(s), set_(set) {
  const bool died = Lock(set.lock);
  TsanCome(&s.hdr.items);
  if (died) Mend(s, set);
}

void PushReady(StackMap& s, pstn_epoll& set, uint32_t idx) {
  pstn_item* const item = s.items.At(ItemIndex(idx));
  if (item == nullptr || (item->flags & (PSTN_IT_READY | PSTN_IT_DISABLED)) != 0) return;
  item->flags |= PSTN_IT_READY;
  item->ready_next = PSTN_NONE;
  pstn_item* const tail = s.items.At(ItemIndex(LoadRelaxed(set.ready_tail)));
  if (set.ready_head == PSTN_NONE || tail == nullptr) {
    set.ready_head = idx;
  } else {
    tail->ready_next = idx;
  }
  set.ready_tail = idx;
  StoreRelease(set.ready_count, set.ready_count + 1);  // [S2]
}

uint32_t PopReady(StackMap& s, pstn_epoll& set) {
  uint32_t idx = set.ready_head;
  pstn_item* const item = s.items.At(ItemIndex(idx));
  if (item == nullptr) return PSTN_NONE;
  set.ready_head = item->ready_next;
  if (set.ready_head == PSTN_NONE) set.ready_tail = PSTN_NONE;
  item->flags &= ~PSTN_IT_READY;
  if (PSTN_CHECK(set.ready_count != 0)) StoreRelease(set.ready_count, set.ready_count - 1);  // [S2]
  return idx;
}

void LinkItem(StackMap& s, pstn_ep& ep, pstn_epoll& set, uint32_t idx) {
  pstn_item& item = s.items.Own(ItemIndex(idx));
  item.all_prev = PSTN_NONE;
  const uint32_t head = LoadRelaxed(set.all_head);
  item.all_next = head;
  pstn_item* const first = s.items.At(ItemIndex(head));
  if (first != nullptr) first->all_prev = idx;
  set.all_head = idx;
  StoreRelaxed(item.ep_next, ep.item_head);
  StoreRelease(ep.item_head, idx);  // [E5]
  if ((item.flags & PSTN_IT_KERNEL) != 0) StoreRelaxed(set.listeners, set.listeners + 1);
}

uint32_t FindItem(StackMap& s, const pstn_ep& ep, uint32_t set_idx, int fd, uint32_t* prev) {
  *prev = PSTN_NONE;
  for (uint32_t i = ep.item_head, guard = 0; guard < s.items.count(); guard++) {
    const pstn_item* const item = s.items.At(ItemIndex(i));
    if (item == nullptr) break;
    if (LoadRelaxed(item->epoll_idx) == set_idx &&
        LoadRelaxed(item->fd) == static_cast<uint32_t>(fd))
      return i;
    *prev = i;
    i = LoadRelaxed(item->ep_next);
  }
  return PSTN_NONE;
}

namespace {

void UnlinkReady(StackMap& s, pstn_epoll& set, pstn_item& item) PSTN_REQUIRES(set.lock) {
  if ((item.flags & PSTN_IT_READY) == 0) return;
  pstn_item* prev = nullptr;
  pstn_item* i = s.items.At(ItemIndex(set.ready_head));
  for (uint32_t guard = 0; i != nullptr && guard < s.items.count(); guard++) {
    if (i != &item) {
      prev = i;
      i = s.items.At(ItemIndex(i->ready_next));
      continue;
    }
    (prev == nullptr ? set.ready_head : prev->ready_next) = item.ready_next;
    if (set.ready_tail == s.items.IndexOf(item).word())
      set.ready_tail = prev != nullptr ? s.items.IndexOf(*prev).word() : PSTN_NONE;
    // [S2]
    if (PSTN_CHECK(set.ready_count != 0)) StoreRelease(set.ready_count, set.ready_count - 1);
    break;
  }
  item.flags &= ~PSTN_IT_READY;
}

}  // namespace

void RemoveOrphan(StackMap& s, pstn_epoll& set, uint32_t idx) {
  pstn_item* const place = s.items.At(ItemIndex(idx));
  if (place == nullptr) return;
  pstn_item& item = *place;
  TakeInHands(item, set.lock);
  UnlinkReady(s, set, item);
  const uint32_t prev = LoadRelaxed(item.all_prev), next = LoadRelaxed(item.all_next);
  pstn_item* const before = s.items.At(ItemIndex(prev));
  pstn_item* const after = s.items.At(ItemIndex(next));
  (before == nullptr ? set.all_head : before->all_next) = next;
  if (after != nullptr) after->all_prev = prev;
  if ((item.flags & PSTN_IT_KERNEL) != 0 && PSTN_CHECK(set.listeners != 0))
    StoreRelaxed(set.listeners, set.listeners - 1);
  // Removed: an event of the kernel that names it may still be on its way (LookAtKernel).
  item.flags = 0;
  StoreRelaxed(item.ep_idx, PSTN_NONE);
  StoreRelaxed(item.epoll_idx, PSTN_NONE);
  GiveItem(s, idx);
}

void RemoveItem(StackMap& s, pstn_ep& ep, pstn_epoll& set, uint32_t idx, uint32_t prev) {
  pstn_item* const item = s.items.At(ItemIndex(idx));
  if (item == nullptr) return;
  TakeInHands(*item, set.lock);
  pstn_item* const before = s.items.At(ItemIndex(prev));
  StoreRelaxed(before == nullptr ? ep.item_head : before->ep_next, LoadRelaxed(item->ep_next));
  RemoveOrphan(s, set, idx);
}

// ---------------------------------------------------------------- posts
namespace {

// Endpoints with news that are registered more than once: their lists are walked under their own
// locks.
struct Shared {
  uint32_t ep[64];
  uint32_t count = 0;
};

// Makes the item of one endpoint ready, or puts the endpoint into `later`. False: there is no room.
// An endpoint that is registered here alone, the usual case, needs no lock of its own: under
// set.lock no item of the set can go away. Any other item can, and serve in another list, where a
// walk would get lost.
bool PushEp(StackMap& s, pstn_epoll& set, uint32_t set_idx, uint32_t ep_idx, Shared& later)
    PSTN_REQUIRES(set.lock) {
  const pstn_ep* const ep = s.eps.At(EpIndex(ep_idx));
  if (ep == nullptr) return true;
  uint32_t head = LoadAcquire(ep->item_head);  // [E5]
  const pstn_item* const item = s.items.At(ItemIndex(head));
  if (item == nullptr) return true;
  if (LoadRelaxed(item->epoll_idx) == set_idx && LoadRelaxed(item->ep_idx) == ep_idx &&
      LoadRelaxed(item->ep_next) == PSTN_NONE) {
    PushReady(s, set, head);
    return true;
  }
  if (later.count == sizeof later.ep / sizeof later.ep[0]) return false;
  later.ep[later.count++] = ep_idx;
  return true;
}

void TakeReady(StackMap& s, pstn_epoll& set, uint32_t set_idx, const pstn_lgr_ref& ref,
               pstn_evmap& map, uint32_t& hand, Shared& later) PSTN_REQUIRES(set.lock) {
  TakeBits(map, hand, [&](uint32_t conn) {
    AssertHeld(set.lock);
    const uint32_t ep = LoadAcquire(ref.conn_ep[conn]);  // [E4] + 1
    const bool done = ep == 0 || PushEp(s, set, set_idx, ep - 1, later);
    return done ? 1 : kPutBack;  // the next look takes it
  });
}

}  // namespace

void TakePosts(const StackView& v, pstn_epoll& set, uint32_t set_idx) {
  StackMap& s = *v.s;
  const uint32_t waiter = set.waiter_idx;
  pstn_waiter* const own = s.waiters.At(WaiterIndex(waiter));
  if (own == nullptr) return;
  Shared later;
  {
    SetGuard g(s, set);
    if (LoadRelaxed(own->posted) != 0) StoreRelaxed(own->posted, 0u);
    for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
      if (LoadAcquire(ref.state) == 0) continue;  // [L1]
      uint8_t* lgr = LgrAt(v, s.lgrs.IndexOf(ref)).base;
      if (lgr == nullptr) continue;
      TakeReady(s, set, set_idx, ref, LgrEvmap(lgr, ref.side, waiter), own->hand, later);
    }
  }
  for (uint32_t i = 0; i < later.count; i++) {
    pstn_ep& ep = s.eps.Own(EpIndex(later.ep[i]));
    Guard g(ep.item_lock);
    const pstn_item* item = s.items.At(ItemIndex(ep.item_head));
    for (uint32_t guard = 0; item != nullptr && guard < s.items.count(); guard++) {
      if (LoadRelaxed(item->epoll_idx) == set_idx) {
        SetGuard h(s, set);
        PushReady(s, set, s.items.IndexOf(*item).word());
      }
      item = s.items.At(ItemIndex(LoadRelaxed(item->ep_next)));
    }
  }
}

}  // namespace postern
