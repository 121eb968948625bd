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
void Mend(pstn_stack& s, pstn_epoll& set) PSTN_REQUIRES(set.lock) {
  set.ready_head = set.ready_tail = PSTN_NONE;
  StoreRelease(set.ready_count, 0u);  // [S2]
  StoreRelaxed(set.listeners, 0u);
  uint32_t prev = PSTN_NONE;
  for (uint32_t i = LoadRelaxed(set.all_head), guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS;
       prev = i, i = LoadRelaxed(s.items[i].all_next), guard++) {
    pstn_item& item = s.items[i];
    item.all_prev = prev;
    if ((item.flags & PSTN_IT_KERNEL) != 0) StoreRelaxed(set.listeners, set.listeners + 1);
    item.flags &= ~PSTN_IT_READY;
    PushReady(s, set, i);
  }
}

}  // namespace

SetGuard::SetGuard(pstn_stack& s, pstn_epoll& set) : s_(s), set_(set) {
  const bool died = Lock(set.lock);
  TsanCome(&s.hdr.items);
  if (died) Mend(s, set);
}

void PushReady(pstn_stack& s, pstn_epoll& set, uint32_t idx) {
  pstn_item& item = s.items[idx];
  if ((item.flags & (PSTN_IT_READY | PSTN_IT_DISABLED)) != 0) return;
  item.flags |= PSTN_IT_READY;
  item.ready_next = PSTN_NONE;
  const uint32_t tail = LoadRelaxed(set.ready_tail);
  if (set.ready_head == PSTN_NONE || tail >= PSTN_ITEMS) {
    set.ready_head = idx;
  } else {
    s.items[tail].ready_next = idx;
  }
  set.ready_tail = idx;
  StoreRelease(set.ready_count, set.ready_count + 1);  // [S2]
}

uint32_t PopReady(pstn_stack& s, pstn_epoll& set) {
  uint32_t idx = set.ready_head;
  if (idx >= PSTN_ITEMS) return PSTN_NONE;
  pstn_item& item = s.items[idx];
  set.ready_head = item.ready_next;
  if (set.ready_head == PSTN_NONE) set.ready_tail = PSTN_NONE;
  item.flags &= ~PSTN_IT_READY;
  if (PSTN_CHECK(set.ready_count != 0)) StoreRelease(set.ready_count, set.ready_count - 1);  // [S2]
  return idx;
}

void LinkItem(pstn_stack& s, pstn_ep& ep, pstn_epoll& set, uint32_t idx) {
  pstn_item& item = s.items[idx];
  item.all_prev = PSTN_NONE;
  const uint32_t head = LoadRelaxed(set.all_head);
  item.all_next = head;
  if (head < PSTN_ITEMS) s.items[head].all_prev = idx;
  set.all_head = idx;
  StoreRelaxed(item.ep_next, ep.item_head);
  StoreRelease(ep.item_head, idx);  // [E5]
  if ((item.flags & PSTN_IT_KERNEL) != 0) StoreRelaxed(set.listeners, set.listeners + 1);
}

uint32_t FindItem(pstn_stack& s, const pstn_ep& ep, uint32_t set_idx, int fd, uint32_t* prev) {
  *prev = PSTN_NONE;
  for (uint32_t i = ep.item_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS; guard++) {
    if (LoadRelaxed(s.items[i].epoll_idx) == set_idx &&
        LoadRelaxed(s.items[i].fd) == static_cast<uint32_t>(fd))
      return i;
    *prev = i;
    i = LoadRelaxed(s.items[i].ep_next);
  }
  return PSTN_NONE;
}

namespace {

void UnlinkReady(pstn_stack& s, pstn_epoll& set, uint32_t idx) PSTN_REQUIRES(set.lock) {
  if ((s.items[idx].flags & PSTN_IT_READY) == 0) return;
  uint32_t prev = PSTN_NONE;
  for (uint32_t i = set.ready_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS;
       prev = i, i = s.items[i].ready_next, guard++) {
    if (i != idx) continue;
    if (prev == PSTN_NONE) {
      set.ready_head = s.items[i].ready_next;
    } else {
      s.items[prev].ready_next = s.items[i].ready_next;
    }
    if (set.ready_tail == idx) set.ready_tail = prev;
    // [S2]
    if (PSTN_CHECK(set.ready_count != 0)) StoreRelease(set.ready_count, set.ready_count - 1);
    break;
  }
  s.items[idx].flags &= ~PSTN_IT_READY;
}

}  // namespace

void RemoveOrphan(pstn_stack& s, pstn_epoll& set, uint32_t idx) {
  pstn_item& item = s.items[idx];
  UnlinkReady(s, set, idx);
  const uint32_t prev = LoadRelaxed(item.all_prev), next = LoadRelaxed(item.all_next);
  if (prev >= PSTN_ITEMS) {
    set.all_head = next;
  } else {
    s.items[prev].all_next = next;
  }
  if (next < PSTN_ITEMS) s.items[next].all_prev = prev;
  if ((item.flags & PSTN_IT_KERNEL) != 0 && PSTN_CHECK(set.listeners != 0))
    StoreRelaxed(set.listeners, set.listeners - 1);
  // Nobody's any more: an event of the kernel that names it may still be on its way (LookAtKernel).
  item.flags = 0;
  StoreRelaxed(item.ep_idx, PSTN_NONE);
  StoreRelaxed(item.epoll_idx, PSTN_NONE);
  GiveItem(s, idx);
}

void RemoveItem(pstn_stack& s, pstn_ep& ep, pstn_epoll& set, uint32_t idx, uint32_t prev) {
  if (prev == PSTN_NONE) {
    StoreRelaxed(ep.item_head, LoadRelaxed(s.items[idx].ep_next));
  } else {
    StoreRelaxed(s.items[prev].ep_next, LoadRelaxed(s.items[idx].ep_next));
  }
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
bool PushEp(pstn_stack& s, pstn_epoll& set, uint32_t set_idx, uint32_t ep_idx, Shared& later)
    PSTN_REQUIRES(set.lock) {
  uint32_t head = LoadAcquire(s.eps[ep_idx].item_head);  // [E5]
  if (head >= PSTN_ITEMS) return true;
  const pstn_item& item = s.items[head];
  if (LoadRelaxed(item.epoll_idx) == set_idx && LoadRelaxed(item.ep_idx) == ep_idx &&
      LoadRelaxed(item.ep_next) == PSTN_NONE) {
    PushReady(s, set, head);
    return true;
  }
  if (later.count == sizeof later.ep / sizeof later.ep[0]) return false;
  later.ep[later.count++] = ep_idx;
  return true;
}

void TakeReady(pstn_stack& s, pstn_epoll& set, uint32_t set_idx, const pstn_lgr_ref& ref,
               pstn_evmap& map, Shared& later) PSTN_REQUIRES(set.lock) {
  TakeBits(map, s.waiters[set.waiter_idx % PSTN_WAITERS].hand, [&](uint32_t conn) {
    AssertHeld(set.lock);
    const uint32_t ep = LoadAcquire(ref.conn_ep[conn]);  // [E4] + 1
    const bool done = ep == 0 || ep > PSTN_EPS || PushEp(s, set, set_idx, ep - 1, later);
    return done ? 1 : kPutBack;  // the next look takes it
  });
}

}  // namespace

void TakePosts(const StackView& v, pstn_epoll& set, uint32_t set_idx) {
  pstn_stack& s = *v.s;
  uint32_t waiter = set.waiter_idx;
  Shared later;
  {
    SetGuard g(s, set);
    if (LoadRelaxed(s.waiters[waiter].posted) != 0) StoreRelaxed(s.waiters[waiter].posted, 0u);
    uint32_t hw = LoadRelaxed(s.hdr.lgrs_hw);
    for (uint32_t i = 0; i < hw && i < PSTN_LGRS; i++) {
      if (LoadAcquire(s.lgrs[i].state) == 0) continue;  // [L1]
      uint8_t* lgr = LgrBase(v, i);
      if (lgr == nullptr) continue;
      pstn_evmap& map = LgrEvmap(lgr, s.lgrs[i].side, waiter);
      TakeReady(s, set, set_idx, s.lgrs[i], map, later);
    }
  }
  for (uint32_t i = 0; i < later.count; i++) {
    pstn_ep& ep = s.eps[later.ep[i]];
    Guard g(ep.item_lock);
    for (uint32_t it = ep.item_head, guard = 0; it < PSTN_ITEMS && guard < PSTN_ITEMS;
         it = LoadRelaxed(s.items[it].ep_next), guard++) {
      if (LoadRelaxed(s.items[it].epoll_idx) != set_idx) continue;
      SetGuard h(s, set);
      PushReady(s, set, it);
    }
  }
}

}  // namespace postern
