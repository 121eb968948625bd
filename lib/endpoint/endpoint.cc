// SPDX-License-Identifier: Apache-2.0
// endpoint.cc - an endpoint's state, and what it is ready for.
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "endpoint/places/places.h"
#include "endpoint/state.h"
#include "family/family.h"
#include "family/verbs.h"

namespace postern {

namespace {

template <typename... T>
[[gnu::always_inline]] inline void Follow(const T&... words) {
  ((void)LoadAcquire(words), ...);  // [E6]
}

}  // namespace

void FollowUsers(const pstn_ep& ep) {
  Follow(ep.tx.lock.word, ep.rx.lock.word, ep.item_lock.word, ep.accept_lock.word,
         ep.setup_lock.word, ep.state, ep.flags, ep.refs);
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

// Zeroes all but the locks, and in whose hands it is: a call that was meant for the last connection
// may just hold one, on its way to see that (StillHere), and would give back what is another
// thread's by then.
void Clear(pstn_ep& ep) {
  FollowUsers(ep);
  const uint32_t gen = LoadRelaxed(ep.gen) + 1;
  ClearWords(&ep.state, &ep.gen);
  StoreRelaxed(ep.family, 0u);
  StoreRelaxed(ep.poller, 0u);
  StoreRelaxed(ep.flags, 0u);
  StoreRelaxed(ep.reason, 0u);
  StoreRelaxed(ep.side, 0u);
  ClearWords(&ep.lgr_idx, &ep.item_head);
  Lock(ep.item_lock);  // a thread with old news (TakePosts) may look for the last one's items
  StoreRelaxed(ep.item_head, PSTN_NONE);
  Unlock(ep.item_lock);
  ClearWords(&ep.item_lock.word + 1, &ep.tx.lock);
  ClearWords(&ep.tx.lock.word + 1, &ep.rx.lock);
  ClearWords(&ep.rx.lock.word + 1, &ep.accept_lock);
  ClearWords(&ep.accept_lock.word + 1, &ep.setup_lock);
  ClearWords(&ep.setup_lock.word + 1, &ep + 1);
  StoreRelease(ep.gen, gen);  // [E2]
}

}  // namespace

uint32_t NewEp(Family& fam, uint32_t family) {
  StackMap& s = Stack(fam);
  uint32_t idx = TakeEp(s);
  if (idx == PSTN_NONE) return idx;
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  Clear(ep);
  StoreRelaxed(ep.family, family);
  StoreRelaxed(ep.refs, LoadRelaxed(ep.refs) + 1);  // none by now
  StoreRelaxed(ep.next, PSTN_NONE);
  for (uint32_t* idx_of : {&ep.accept_head, &ep.accept_tail, &ep.listener})
    StoreRelaxed(*idx_of, PSTN_NONE);
  StoreRelaxed(ep.lgr_idx, PSTN_NONE);
  ep.owner_slot = fam.slot;
  SetState(ep, PSTN_EP_NEW);
  return idx;
}

bool PortExcluded(Family& fam, uint16_t port) {
  return fam.opt.ports_exclude[0] != 0 && PortListHas(fam.opt.ports_exclude, port);
}

namespace {

// SO_RCVLOWAT counts for readiness. A ring full of one-byte records holds a byte for each line, and
// its writer waits for room: so more than half as many bytes are never asked for.
// The urgent byte at the reader's position does not count.
bool EnoughToRead(const ConnEnd& e, const MarkState& mark) {
  if (!RingTell(e)) return false;
  size_t lowat = LoadRelaxed(e.ep->rcvlowat);
  if (mark.at && mark.hides) lowat = lowat < 1 ? 2 : lowat + 1;
  if (lowat <= 1) return true;
  size_t most =
      RingBytes(RingClass(LoadRelaxed(e.ep->rx.ring)) % PSTN_SLAB_CLASSES) / (2 * PSTN_REC_ALIGN);
  if (lowat > most) lowat = most;
  Guard g(e.ep->rx.lock);
  return StillHere(e) && RingQueued(e, lowat) >= lowat;
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
RingLimits LimitsOf(Family& fam, const ConnEnd& e) {
  RingLimits limits = fam.limits;
  const uint64_t budget = RingBudget(e);
  const uint64_t asked = budget != 0 ? budget : LoadRelaxed(e.ep->sndbuf);
  if (asked != 0 && asked <= PSTN_RING1_BYTES && limits.class_max > 1) limits.class_max = 1;
  return limits;
}

bool Writable(Family& fam, const ConnEnd& e) {
  return RingWritable(e) || RingGrowable(e, LimitsOf(fam, e));
}

bool BeforeShutPeer(Family& fam, const ConnEnd& e, uint32_t peer) {
  return (peer & (PSTN_CF_RD_SHUT | PSTN_CF_CLOSED)) == PSTN_CF_RD_SHUT && !Writable(fam, e);
}

bool ResolveUnmapped(Family& fam, pstn_ep& ep, ConnEnd& e) {
  return AwaitLgr(fam, LoadRelaxed(ep.lgr_idx)) != nullptr && ResolveMapped(fam, ep, e);
}

uint32_t Readiness(Family& fam, pstn_ep& ep) {
  switch (StateNow(fam, ep)) {
    case PSTN_EP_NEW:  // shutdown() says ENOTCONN but leaves its mark, as with the kernel
      return EPOLLOUT | EPOLLHUP | (LoadRelaxed(ep.error) != 0 ? EPOLLERR : 0u) |
             ((LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0 ? EPOLLIN | EPOLLRDNORM | EPOLLRDHUP
                                                              : 0u);
    case PSTN_EP_LISTEN:
      // [E8]
      return LoadAcquire(ep.accept_count) != 0 || LoadAcquire(ep.held) != 0 ? EPOLLIN | EPOLLRDNORM
                                                                            : 0u;
    case PSTN_EP_ESTABLISHED:
      break;
    case PSTN_EP_KERNEL:
      return IsDatagram(ep) ? kVerbs.datagram_readiness(fam, ep) : 0u;
    default:
      return 0;
  }
  ConnEnd e;
  if (!ResolveMapped(fam, ep, e)) return kNotMapped;
  uint32_t own = LoadRelaxed(ep.flags);
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  uint32_t mask = 0;
  if ((peer & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0 || (own & PSTN_EPF_SHUT_RD) != 0) {
    mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if ((own & PSTN_EPF_SHUT_WR) != 0) mask |= EPOLLHUP;
    if ((peer & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0 &&
        (LoadRelaxed(ep.rx.gate) & PSTN_RXG_ENDED) == 0)
      FetchOr(ep.rx.gate, PSTN_RXG_ENDED);
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
  if ((own & PSTN_EPF_SHUT_WR) != 0 || (peer & PSTN_CF_CLOSED) != 0 || Writable(fam, e))
    mask |= EPOLLOUT | EPOLLWRNORM;
  if (BeforeShutPeer(fam, e, peer)) mask |= EPOLLOUT | EPOLLWRNORM | EPOLLERR | EPOLLHUP;
  return mask;
}

}  // namespace postern
