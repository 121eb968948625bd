// SPDX-License-Identifier: Apache-2.0
// posts.cc - who is told of an endpoint's news: event sets, and threads that sleep.
#include "endpoint/posts.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "family/family.h"

namespace postern {

namespace {

uint64_t NonceOf(Family& fam, uint32_t waiter) {
  return LoadRelaxed(Stack(fam).waiters[waiter].nonce);
}

void MarkIn(Family& fam, uint8_t* lgr, uint32_t side, uint32_t waiter, uint32_t evmap_flags) {
  pstn_evmap& map = LgrEvmap(lgr, side, waiter);
  StoreRelaxed(map.nonce, NonceOf(fam, waiter));
  StoreRelease(map.in_use, evmap_flags);  // [S8]
  uint32_t& hw = LgrHdr(lgr).waiters_hw[side];
  uint32_t seen = LoadRelaxed(hw);
  while (evmap_flags != 0 && seen <= waiter && !CompareExchange(hw, seen, waiter + 1)) {
  }
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
  if (LoadRelaxed(ep.state) == PSTN_EP_ESTABLISHED) (void)EnsureLgr(fam, LoadRelaxed(ep.lgr_idx));
}

void RenotifyLocked(Family& fam, pstn_ep& ep) {
  if (LoadRelaxed(ep.state) != PSTN_EP_ESTABLISHED) return;
  ConnEnd e;
  // Not mapped: it is connected since MapForRenotify, by a process that does this then.
  if (!ResolveMapped(fam, ep, e)) return;
  uint32_t notify = 0;
  for (uint32_t i = LoadRelaxed(ep.item_head), guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS;
       i = LoadRelaxed(Stack(fam).items[i].ep_next), guard++) {
    uint32_t set = LoadRelaxed(Stack(fam).items[i].epoll_idx);
    uint32_t w = set < PSTN_EPOLLS ? LoadRelaxed(Stack(fam).epolls[set].waiter_idx) : PSTN_NONE;
    if (w >= PSTN_WAITERS) continue;
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
  FullFence();  // [F1]: who sets it looks at the connection's state afterwards
}

void PostEp(Family& fam, pstn_ep& ep) {
  pstn_stack& s = Stack(fam);
  Lock(ep.item_lock);
  const uint32_t pollers = LoadRelaxed(ep.pollers), poller = OnlyPoller(ep);
  for (uint32_t i = LoadRelaxed(ep.item_head), guard = 0; i < PSTN_ITEMS && guard < 4096; guard++) {
    pstn_item& item = s.items[i];
    i = LoadRelaxed(item.ep_next);
    const uint32_t set_idx = LoadRelaxed(item.epoll_idx);
    if (set_idx >= PSTN_EPOLLS) continue;
    pstn_epoll& set = s.epolls[set_idx];
    uint32_t waiter;
    {
      SetGuard h(s, set);
      PushReady(s, set, static_cast<uint32_t>(&item - s.items));
      waiter = set.waiter_idx;
    }
    PostWaiter(fam.bells, s, waiter);
  }
  Unlock(ep.item_lock);
  if (poller != PSTN_NONE) return PostWaiter(fam.bells, s, poller);
  if (pollers == 0) return;
  uint32_t hw = LoadRelaxed(s.hdr.waiters.hw);
  for (uint32_t w = 1; w < hw && w < PSTN_WAITERS; w++) {
    if (LoadRelaxed(s.waiters[w].wants_syn) != 0) PostWaiter(fam.bells, s, w);
  }
}

namespace {

void PostConn(Family& fam, const pstn_lgr_ref& ref, uint32_t conn) {
  uint32_t idx = LoadAcquire(ref.conn_ep[conn]);  // [E4]
  if (idx != 0 && idx <= PSTN_EPS) PostEp(fam, Stack(fam).eps[idx - 1]);
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
