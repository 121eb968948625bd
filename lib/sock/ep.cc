// SPDX-License-Identifier: Apache-2.0
// ep.cc - an endpoint's state: what it is ready for, whom to tell, and its way back to the kernel.
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "base/sys.h"
#include "sock/items.h"
#include "sock/negotiate.h"
#include "sock/sock.h"

namespace postern {

void FollowUsers(const pstn_ep& ep) {
  for (const uint32_t* word :
       {&ep.tx.lock.word, &ep.rx.lock.word, &ep.item_lock.word, &ep.accept_lock.word,
        &ep.setup_lock.word, &ep.refs, &ep.state, &ep.flags})
    (void)LoadAcquire(*word);
}

namespace {

// Others may look meanwhile, and get the old or the new of each word: memset's stores are never
// smaller than one. ThreadSanitizer wants to be told so.
void ClearWords(uint32_t* from, const void* end) {
#if defined(__SANITIZE_THREAD__)
  for (; from != end; from++) StoreRelaxed(*from, 0u);
#else
  const auto* first = reinterpret_cast<uint8_t*>(from);
  memset(from, 0, static_cast<size_t>(static_cast<const uint8_t*>(end) - first));
#endif
}

// Zeroes all but the locks: a call that was meant for the last connection may just hold one, on its
// way to see that (StillHere), and would give back what is another thread's by then.
void Clear(pstn_ep& ep) {
  FollowUsers(ep);
  const uint32_t gen = LoadRelaxed(ep.gen) + 1;
  ClearWords(&ep.state, &ep.gen);
  ClearWords(&ep.refs, &ep.item_head);
  Lock(ep.item_lock);  // who was told of the last connection (TakePosts) may look for its items
  StoreRelaxed(ep.item_head, PSTN_NONE);
  Unlock(ep.item_lock);
  ClearWords(&ep.item_lock.word + 1, &ep.tx.lock);
  ClearWords(&ep.tx.lock.word + 1, &ep.rx.lock);
  ClearWords(&ep.rx.lock.word + 1, &ep.accept_lock);
  ClearWords(&ep.accept_lock.word + 1, &ep.setup_lock);
  ClearWords(&ep.setup_lock.word + 1, &ep + 1);
  StoreRelease(ep.gen, gen);
}

}  // namespace

uint32_t NewEp(uint32_t family) {
  pstn_stack& s = Stack();
  uint32_t idx = TakeEp(s);
  if (idx == PSTN_NONE) return idx;
  pstn_ep& ep = s.eps[idx];
  Clear(ep);
  ep.family = family;
  StoreRelaxed(ep.refs, 1u);
  StoreRelaxed(ep.next, PSTN_NONE);
  ep.accept_head = ep.accept_tail = ep.listener = PSTN_NONE;
  StoreRelaxed(ep.lgr_idx, PSTN_NONE);
  ep.owner_slot = g_proc.slot;
  StoreRelease(ep.state, PSTN_EP_NEW);
  return idx;
}

bool PortExcluded(uint16_t port) {
  return g_proc.opt.ports_exclude[0] != 0 && PortListHas(g_proc.opt.ports_exclude, port);
}

void FallBack(int fd, pstn_ep& ep, Reason reason) {
  StoreRelaxed(ep.reason, reason);
  FetchAdd(Stack().hdr.reasons[reason], 1u);
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  // Who will accept from it may know nothing of handshakes.
  if ((FetchAnd(ep.flags, ~PSTN_EPF_SMC) & PSTN_EPF_SMC) != 0) (void)MarkSmc(fd, false);
  ApplyOptions(fd, ep);
  StoreRelease(ep.state, PSTN_EP_KERNEL);
  MoveItemsToKernel(fd, ep);
}

namespace {

// SO_RCVLOWAT counts for readiness. A ring full of one-byte records holds a byte for each line, and
// its writer waits for room: so more than half as many bytes are never asked for.
// The urgent byte at the reader's position does not count.
bool EnoughToRead(const ConnEnd& e, const MarkState& mark) {
  if (!RingReadable(e)) return false;
  size_t lowat = e.ep->rcvlowat;
  if (mark.at && mark.hides) lowat = lowat < 1 ? 2 : lowat + 1;
  if (lowat <= 1) return true;
  size_t most =
      RingBytes(RingClass(LoadRelaxed(e.ep->rx.ring)) % PSTN_SLAB_CLASSES) / (2 * PSTN_REC_ALIGN);
  if (lowat > most) lowat = most;
  Guard g(e.ep->rx.lock);
  return RingQueued(e, lowat) >= lowat;
}

}  // namespace

int TakeError(const ConnEnd& e, uint32_t peer_flags) {
  if (LoadRelaxed(e.ep->error) != 0) {
    if ((peer_flags & PSTN_CF_RST) != 0) FetchOr(e.ep->rx.gate, PSTN_RXG_RESET);  // that is it
    return static_cast<int>(Exchange(e.ep->error, 0u));
  }
  if ((peer_flags & PSTN_CF_RST) == 0 ||
      (FetchOr(e.ep->rx.gate, PSTN_RXG_RESET) & PSTN_RXG_RESET) != 0)
    return 0;
  return (peer_flags & PSTN_CF_FIN) != 0 ? EPIPE : ECONNRESET;
}

// A program that has asked for a small send buffer counts on being stopped early.
RingLimits LimitsOf(const pstn_ep& ep) {
  RingLimits limits = g_proc.limits;
  if (ep.sndbuf != 0 && ep.sndbuf <= PSTN_RING1_BYTES && limits.class_max > 1) limits.class_max = 1;
  return limits;
}

bool Writable(const ConnEnd& e) { return RingWritable(e) || RingGrowable(e, LimitsOf(*e.ep)); }

bool BeforeShutPeer(const ConnEnd& e, uint32_t peer) {
  return (peer & (PSTN_CF_RD_SHUT | PSTN_CF_CLOSED)) == PSTN_CF_RD_SHUT && !Writable(e);
}

uint32_t Readiness(pstn_ep& ep) {
  switch (LoadAcquire(ep.state)) {
    case PSTN_EP_NEW:  // shutdown() says ENOTCONN but leaves its mark, as with the kernel
      return EPOLLOUT | EPOLLHUP | (LoadRelaxed(ep.error) != 0 ? EPOLLERR : 0u) |
             ((LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0 ? EPOLLIN | EPOLLRDNORM | EPOLLRDHUP
                                                              : 0u);
    case PSTN_EP_LISTEN:
      return LoadAcquire(ep.accept_count) != 0 || LoadAcquire(ep.held) != 0 ? EPOLLIN | EPOLLRDNORM
                                                                            : 0u;
    case PSTN_EP_ESTABLISHED:
      break;
    case PSTN_EP_KERNEL:
      return IsDatagram(ep) ? DatagramReadiness(ep) : 0u;
    default:
      return 0;
  }
  ConnEnd e;
  if (!Resolve(ep, e)) return EPOLLERR | EPOLLHUP | EPOLLIN | EPOLLOUT | EPOLLRDHUP;
  uint32_t own = LoadRelaxed(ep.flags);
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);
  uint32_t mask = 0;
  if ((peer & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0 || (own & PSTN_EPF_SHUT_RD) != 0) {
    mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if ((own & PSTN_EPF_SHUT_WR) != 0) mask |= EPOLLHUP;
  }
  if ((peer & PSTN_CF_RST) != 0 || (own & PSTN_EPF_HUNG) != 0) {
    mask |= EPOLLHUP | EPOLLOUT | EPOLLIN | EPOLLRDHUP;
    if (LoadRelaxed(ep.error) != 0 ||
        ((peer & PSTN_CF_RST) != 0 && (LoadRelaxed(ep.rx.gate) & PSTN_RXG_RESET) == 0))
      mask |= EPOLLERR;
  }
  if (HasCompletions(ep)) mask |= EPOLLERR;
  const MarkState mark = LookAtMark(e);
  if (mark.ready) mask |= EPOLLPRI;
  if ((mask & EPOLLIN) == 0 && EnoughToRead(e, mark)) mask |= EPOLLIN | EPOLLRDNORM;
  if ((own & PSTN_EPF_SHUT_WR) != 0 || (peer & PSTN_CF_CLOSED) != 0 || Writable(e))
    mask |= EPOLLOUT | EPOLLWRNORM;
  if (BeforeShutPeer(e, peer)) mask |= EPOLLOUT | EPOLLWRNORM | EPOLLERR | EPOLLHUP;
  return mask;
}

void RenotifyLocked(pstn_ep& ep) {
  if (LoadRelaxed(ep.state) != PSTN_EP_ESTABLISHED) return;
  ConnEnd e;
  if (!Resolve(ep, e)) return;
  uint32_t notify = 0;
  for (uint32_t i = LoadRelaxed(ep.item_head), guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS;
       i = LoadRelaxed(Stack().items[i].ep_next), guard++) {
    uint32_t set = LoadRelaxed(Stack().items[i].epoll_idx);
    uint32_t w = set < PSTN_EPOLLS ? LoadRelaxed(Stack().epolls[set].waiter_idx) : PSTN_NONE;
    if (w >= PSTN_WAITERS) continue;
    UseWaiter(e.lgr, e.side, w);
    notify = notify == 0 || notify == w + 1 ? w + 1 : PSTN_NOTIFY_ALL;
  }
  if (ep.pollers != 0) notify = PSTN_NOTIFY_ALL;
  StoreRelaxed(e.ctl().rx_notify, notify);
  FullFence();  // [F1]: who sets it looks at the connection's state afterwards
}

void PostEp(pstn_ep& ep) {
  pstn_stack& s = Stack();
  Lock(ep.item_lock);
  uint32_t pollers = ep.pollers;
  for (uint32_t i = ep.item_head, guard = 0; i < PSTN_ITEMS && guard < 4096; guard++) {
    pstn_item& item = s.items[i];
    i = LoadRelaxed(item.ep_next);
    if (item.epoll_idx >= PSTN_EPOLLS) continue;
    pstn_epoll& set = s.epolls[item.epoll_idx];
    uint32_t waiter;
    {
      SetGuard h(s, set);
      PushReady(s, set, static_cast<uint32_t>(&item - s.items));
      waiter = set.waiter_idx;
    }
    PostWaiter(g_proc.bells, s, waiter);
  }
  Unlock(ep.item_lock);
  if (pollers == 0) return;
  uint32_t hw = LoadRelaxed(s.hdr.waiters.hw);
  for (uint32_t w = 1; w < hw && w < PSTN_WAITERS; w++) {
    if (LoadRelaxed(s.waiters[w].wants_syn) != 0) PostWaiter(g_proc.bells, s, w);
  }
}

namespace {

template <typename Fn>
void EachLgr(Fn fn) {
  pstn_stack& s = Stack();
  uint32_t hw = LoadRelaxed(s.hdr.lgrs_hw);
  for (uint32_t i = 0; i < hw && i < PSTN_LGRS; i++) {
    if (LoadAcquire(s.lgrs[i].state) == 0) continue;
    uint8_t* lgr = LgrBase(g_proc.view, i);
    if (lgr != nullptr) fn(lgr, s.lgrs[i]);
  }
}

void PostConn(const pstn_lgr_ref& ref, uint32_t conn) {
  uint32_t idx = LoadAcquire(ref.conn_ep[conn]);
  if (idx != 0 && idx <= PSTN_EPS) PostEp(Stack().eps[idx - 1]);
}

}  // namespace

void SpreadPosts() {
  constexpr uint32_t kPostCost = 16;
  EachLgr([](uint8_t* lgr, pstn_lgr_ref& ref) {
    TakeBits(LgrEvmap(lgr, ref.side, PSTN_EVMAP_ALL), ref.all_hand, [&](uint32_t conn) {
      if (LoadRelaxed(ref.conn_ep[conn]) == 0) return 1u;
      PostConn(ref, conn);
      return kPostCost;
    });
  });
}

void RespreadPosts() {
  EachLgr([](uint8_t* lgr, const pstn_lgr_ref& ref) {
    for (uint32_t c = 0; c < PSTN_CONNS; c++) {
      if (LoadRelaxed(ref.conn_ep[c]) != 0 &&
          LoadRelaxed(LgrConn(lgr, c).ctl[ref.side & 1u].rx_notify) == PSTN_NOTIFY_ALL)
        PostConn(ref, c);
    }
  });
}

}  // namespace postern
