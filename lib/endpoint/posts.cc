// SPDX-License-Identifier: Apache-2.0
// posts.cc - what is told of an endpoint's news: event sets, and threads that sleep.
#include "endpoint/posts.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "family/family.h"

namespace postern {

namespace {

// Has a place in a link group, and news to wait for there.
bool HasPlace(const pstn_ep& ep) {
  const uint32_t state = LoadRelaxed(ep.state);
  return state == PSTN_EP_ESTABLISHED || state == PSTN_EP_CONNECTING;
}

uint64_t NonceOf(Family& fam, uint32_t waiter) {
  const pstn_waiter* const w = Stack(fam).waiters.At(WaiterIndex(waiter));
  return w != nullptr ? LoadRelaxed(w->nonce) : 0;
}

void MarkIn(Family& fam, uint8_t* lgr, uint32_t side, uint32_t waiter, uint32_t evmap_flags) {
  pstn_evmap& map = LgrEvmap(lgr, side, waiter);
  StoreRelaxed(map.nonce, NonceOf(fam, waiter));
  StoreRelease(map.in_use, evmap_flags);  // [S8]
  if (evmap_flags != 0) RaiseMark(LgrHdr(lgr).waiters_hw[side], waiter + 1, PSTN_WAITERS);
}

}  // namespace

void MarkWaiter(Family& fam, uint32_t waiter, uint32_t evmap_flags) {
  EachLgr(fam, [&](uint8_t* lgr, const pstn_lgr_ref& ref) {
    const uint32_t side = LoadRelaxed(ref.side) & 1u;
    const pstn_evmap& map = LgrEvmap(lgr, side, waiter);
    if (LoadRelaxed(map.in_use) != evmap_flags || LoadRelaxed(map.nonce) != NonceOf(fam, waiter))
      MarkIn(fam, lgr, side, waiter, evmap_flags);
  });
}

void UseWaiter(Family& fam, uint8_t* lgr, uint32_t side, uint32_t waiter) {
  const pstn_evmap& map = LgrEvmap(lgr, side, waiter);
  if (LoadRelaxed(map.in_use) == 0 || LoadRelaxed(map.nonce) != NonceOf(fam, waiter))
    MarkIn(fam, lgr, side, waiter, PSTN_EV_USED);
}

namespace {

// The waiter of the only thread that sleeps in poll() on `ep`; PSTN_NONE: there is none, or not one
// alone. Needs item_lock.
uint32_t OnlyPoller(const pstn_ep& ep) PSTN_REQUIRES(ep.item_lock) {
  const uint32_t poller = LoadRelaxed(ep.poller);
  return LoadRelaxed(ep.pollers) == 1 && poller < PSTN_WAITERS ? poller : PSTN_NONE;
}

}  // namespace

void MapForRenotify(Family& fam, const pstn_ep& ep) {
  if (HasPlace(ep)) (void)AwaitLgr(fam, LoadRelaxed(ep.lgr_idx));
}

void RenotifyLocked(Family& fam, pstn_ep& ep) {
  if (!HasPlace(ep)) return;
  ConnEnd e;
  // Not mapped: it is connected since MapForRenotify, by a process that does this then.
  if (!ResolveMapped(fam, ep, e)) return;
  uint32_t notify = 0;
  const StackMap& s = Stack(fam);
  uint32_t next = LoadRelaxed(ep.item_head);
  for (uint32_t guard = 0; guard < s.items.count(); guard++) {
    const pstn_item* const item = s.items.At(ItemIndex(next));
    if (item == nullptr) break;
    next = LoadRelaxed(item->ep_next);
    const pstn_epoll* const set = s.epolls.At(SetIndex(LoadRelaxed(item->epoll_idx)));
    const uint32_t w = set != nullptr ? LoadRelaxed(set->waiter_idx) : PSTN_NONE;
    if (s.waiters.At(WaiterIndex(w)) == nullptr) continue;
    UseWaiter(fam, e.lgr, e.side, w);
    notify = notify == 0 || notify == w + 1 ? w + 1 : PSTN_NOTIFY_ALL;
  }
  const uint32_t poller = OnlyPoller(ep);
  if (notify == 0 && poller != PSTN_NONE) {
    UseWaiter(fam, e.lgr, e.side, poller);
    notify = poller + 1;
  } else if (LoadRelaxed(ep.pollers) != 0) {
    notify = PSTN_NOTIFY_ALL;
  }
  StoreRelaxed(e.ctl().rx_notify, notify);
  FullFence();  // [F1]: the thread that sets it looks at the connection's state afterwards
}

void PostEp(Family& fam, pstn_ep& ep) {
  StackMap& s = Stack(fam);
  Lock(ep.item_lock);
  const uint32_t pollers = LoadRelaxed(ep.pollers), poller = OnlyPoller(ep);
  for (uint32_t i = LoadRelaxed(ep.item_head), guard = 0; guard < 4096; guard++) {
    const uint32_t idx = i;
    const pstn_item* const item = s.items.At(ItemIndex(idx));
    if (item == nullptr) break;
    i = LoadRelaxed(item->ep_next);
    pstn_epoll* const set = s.epolls.At(SetIndex(LoadRelaxed(item->epoll_idx)));
    if (set == nullptr) continue;
    uint32_t waiter;
    {
      SetGuard h(s, *set);
      PushReady(s, *set, idx);
      waiter = set->waiter_idx;
    }
    PostWaiter(fam.bells, s, waiter);
  }
  Unlock(ep.item_lock);
  if (poller != PSTN_NONE) return PostWaiter(fam.bells, s, poller);
  if (pollers == 0) return;
  for (const pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.wants_syn) != 0) PostWaiter(fam.bells, s, s.waiters.IndexOf(w).word());
  }
}

namespace {

void PostConn(Family& fam, const pstn_lgr_ref& ref, uint32_t conn) {
  const uint32_t idx = LoadAcquire(ref.conn_ep[conn]);  // [E4]
  pstn_ep* const ep = idx != 0 ? EpAt(Stack(fam), idx - 1) : nullptr;
  if (ep != nullptr) PostEp(fam, *ep);
}

}  // namespace

void SpreadPosts(Family& fam) {
  constexpr uint32_t kPostCost = 16;
  EachLgr(fam, [&fam](uint8_t* lgr, pstn_lgr_ref& ref) {
    TakeBits(LgrEvmap(lgr, ref.side, PSTN_EVMAP_ALL), ref.all_hand, [&](uint32_t conn) {
      if (LoadRelaxed(ref.conn_ep[conn]) == 0) return 1u;
      PostConn(fam, ref, conn);
      return kPostCost;
    });
  });
}

void RespreadPosts(Family& fam) {
  EachLgr(fam, [&fam](uint8_t* lgr, const pstn_lgr_ref& ref) {
    for (uint32_t c = 0; c < PSTN_CONNS; c++) {
      if (LoadRelaxed(ref.conn_ep[c]) != 0 &&
          LoadRelaxed(LgrConn(lgr, c).ctl[ref.side & 1u].rx_notify) == PSTN_NOTIFY_ALL)
        PostConn(fam, ref, c);
    }
  });
}

}  // namespace postern
