// SPDX-License-Identifier: Apache-2.0
// close.cc - references to endpoints, and the end of a connection.
//
// An endpoint lives as long as an fd of any process means it. The last close ends the connection as
// the kernel's TCP would: data that was written is delivered, then FIN; unread data turns it into a
// RST. The connection slot of the link group is free again when both sides have closed.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "abi/kmod_abi.h"
#include "base/clock.h"
#include "base/ip_address.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "control/acceptor.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/kept_options.h"
#include "endpoint/refs.h"
#include "endpoint/state.h"
#include "event/block.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/turn.h"
#include "family/verbs.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/export.h"
#include "peer/kernel_half.h"
#include "peer/port.h"
#include "smcd/hold.h"

namespace postern {
namespace {

// Our side leaves the connection slot; the second to leave frees it.
void LeaveConn(const ConnEnd& e) {
  pstn_ep& ep = *e.ep;
  uint32_t conn = ep.conn_idx % PSTN_CONNS;
  Lock(ep.tx.lock);
  AssertHeld(e.ep->tx.lock);
  // Not again after a death: the peer may have read all since, and the slot has the rings.
  if (!IsZombie(*e.ref, conn)) (void)RingDetach(e, Pages::kKeep);
  // Rings that the peer may still read wait with the slot until it leaves, too.
  MakeZombie(*e.ref, conn, ep.tx.ring, ep.tx.old_ring);
  DeathFence();  // [Z1]
  StoreRelaxed(ep.tx.ring, 0u);
  StoreRelaxed(ep.tx.old_ring, 0u);
  Unlock(ep.tx.lock);
  StoreRelease(e.ref->conn_ep[conn], 0u);  // [E4]
  uint32_t peer_gone = e.side == 0 ? PSTN_CS_SERVER_GONE : PSTN_CS_CLIENT_GONE;
  uint32_t state = LoadAcquire(e.conn->setup.state);  // [C1]
  constexpr int kTries = 64;  // a peer that changes it more often does it to keep us here
  for (int i = 0;; i++) {
    if (state == peer_gone || state == PSTN_CS_FREE ||
        LoadRelaxed(LgrHdr(e.lgr).side_dead[e.side ^ 1u]) != 0)
      break;
    if (e.side == 0 && state == PSTN_CS_WAITS && i < kTries) {  // the server does not know it
      if (CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE)) break;
      continue;
    }
    const uint32_t gone = GoneState(e.side, state);
    if (i == kTries) StoreRelease(e.conn->setup.state, gone);  // [C1] the slot is that peer's loss
    if (i == kTries || CompareExchange(e.conn->setup.state, state, gone)) return;
  }
  if (e.side == 0) return FreeConn(*e.ref, e.lgr, conn);
  // The store that frees the slot comes after our last use of it: it can be taken again at once.
  UnmakeZombie(*e.ref, e.lgr, conn);
  DeathFence();                                     // [Z1]
  StoreRelease(e.conn->setup.state, PSTN_CS_FREE);  // [C1]
}

// Whether the slot is the endpoint's, to be left. A process may have died after it had taken the
// endpoint from the slot, which without its next store no call leaves: the generation is the same
// then, since the peer can't begin a connection there.
bool StillInSlot(const ConnEnd& e, uint32_t idx) {
  const uint32_t conn = e.ep->conn_idx % PSTN_CONNS;
  if (LoadAcquire(e.ref->conn_ep[conn]) == idx + 1) return true;  // [E4]
  const uint32_t state = LoadAcquire(e.conn->setup.state);        // [C1]
  return LoadRelaxed(e.conn->setup.gen) == LoadRelaxed(e.ep->conn_gen) &&
         LoadAcquire(e.ref->conn_ep[conn]) == 0 &&  // [E4]
         state != PSTN_CS_FREE && state != GoneState(e.side, state);
}

}  // namespace

void ResetQueue(Family& fam, pstn_ep& listener) {
  uint32_t guard = 0;
  for (uint32_t idx;
       guard < Stack(fam).eps.count() && (idx = DequeueEmbryo(fam, listener)) != PSTN_NONE;
       guard++) {
    pstn_ep& embryo = Stack(fam).eps.Own(EpIndex(idx));
    SetState(embryo, PSTN_EP_ESTABLISHED);
    SetLingering(embryo, {true, 0});
    CloseEp(fam, embryo);
  }
}

void StopListening(Family& fam, pstn_ep& ep, uint32_t state) {
  if (LoadRelaxed(ep.wire) != 0) kVerbs.wire_unlisten(fam, ep);
  if ((FetchAnd(ep.flags, ~PSTN_EPF_PUBLISHED) & PSTN_EPF_PUBLISHED) != 0)
    (void)CtlUnlisten(fam, ep);
  MendQueue(fam, ep);
  Lock(ep.accept_lock);
  SetState(ep, state);
  if (state == PSTN_EP_NEW) {
    FetchAdd(ep.gen, 1u);  // a client that still comes for the old listener is refused
    StoreRelaxed(ep.acceptor, 0u);
    StoreRelaxed(ep.unlisted, 0u);
    FetchAnd(ep.flags, ~PSTN_EPF_BROUGHT);
  }
  Unlock(ep.accept_lock);
  EndWaiting(fam, ep);
  ResetQueue(fam, ep);
  AdmitSyns(fam, kAllLooks);  // refuses what is still on its way
}

namespace {

enum class End : uint8_t { kOrderly, kReset };

// This process has not got the link group (AwaitLgrOf), in which the peer is to be told.
bool IsOutOfReach(Family& fam, const pstn_ep& ep) {
  const pstn_lgr_ref* const ref = Stack(fam).lgrs.At(LgrIndex(LoadRelaxed(ep.lgr_idx)));
  return fam.slot != PSTN_NONE && ref != nullptr && LoadAcquire(ref->state) != 0 &&  // [L1]
         LgrBase(fam.view, LoadRelaxed(ep.lgr_idx)) == nullptr;
}

void CloseConnection(Family& fam, pstn_ep& ep, End end) {
  ConnEnd e;
  if (!Resolve(fam, ep, e) || !StillInSlot(e, EpIdx(Stack(fam), ep))) return;
  NoteNews(fam.bells);
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  const Lingering lingering = LingeringOf(ep);
  const uint32_t own = LoadRelaxed(e.ctl().flags);
  // One that the module has closed has said how.
  bool reset = end == End::kReset || (own & PSTN_CF_RST) != 0 ||
               ((own & PSTN_CF_CLOSED) == 0 && !BothEnded(e, peer) &&
                (RingReadable(e) || (lingering.on && lingering.sec == 0)));
  const bool second = (LoadRelaxed(e.ctl().flags) & PSTN_CF_SECOND) != 0 ||
                      ((peer & (PSTN_CF_FIN | PSTN_CF_CLOSED | PSTN_CF_RST)) != 0 && !HasEnded(e));
  Lock(ep.tx.lock);
  const uint32_t end_flags = (reset ? PSTN_CF_RST : PSTN_CF_FIN) | (second ? PSTN_CF_SECOND : 0u);
  AssertHeld(e.ep->tx.lock);
  if (reset) {
    HoldDrop(e);
  } else {
    (void)HoldRelease(e);
  }
  FetchOr(e.ctl().flags, PSTN_CF_CLOSED | end_flags);  // [C2]
  Unlock(ep.tx.lock);
  if (!reset && (peer & PSTN_CF_RST) == 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) == 0)
    NotePast(fam, e, second ? Turn::kSecond : Turn::kFirst);
  AnnounceData(fam.bells, e);
  AnnounceSpace(fam.bells, e);
  // The process that held the endpoint has died, and strangers have the module's socket.
  if ((own & (PSTN_CF_MODULE | PSTN_CF_CLOSED)) == PSTN_CF_MODULE)
    WakeInModule(fam.bells, e, PSTN_RING_OWN | PSTN_RING_DATA | PSTN_RING_SPACE);
  FetchAdd(Stack(fam).hdr.counters[kCounterBytesSent], LoadRelaxed(ep.tx.bytes));
  FetchAdd(Stack(fam).hdr.counters[kCounterBytesReceived], LoadRelaxed(ep.rx.bytes));
  LeaveConn(e);
}

}  // namespace

void FinishClose(Family& fam, pstn_ep& ep) {
  DropItemsOfEp(fam, ep);
  CloseConnection(fam, ep, End::kOrderly);
  if (IsOutOfReach(fam, ep)) return;  // the reaper does it, when this process has ended
  SetState(ep, PSTN_EP_FREE);
  GiveEp(Stack(fam), EpIdx(Stack(fam), ep));
}

void CloseEp(Family& fam, pstn_ep& ep) {
  if (ep.took_over != 0) FinishTakeOver(fam, ep);
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  PSTN_TRACE2(closed, &ep, state);
  if (state == PSTN_EP_ESTABLISHED || state == PSTN_EP_EMBRYO || state == PSTN_EP_CONNECTING) {
    ep.owner_slot = fam.slot;  // should we die in the middle: see RecoverConns
    SetState(ep, PSTN_EP_CLOSED);
    FinishClose(fam, ep);
    return;
  }
  DropItemsOfEp(fam, ep);
  // A process died while it connected or disconnected it.
  if (state == PSTN_EP_NEW) CloseConnection(fam, ep, End::kReset);
  if (state == PSTN_EP_LISTEN) StopListening(fam, ep, PSTN_EP_CLOSED);
  // Of a listener whose filters this process can't give back (the reaper can't): its port is taken
  // until the keeper has.
  const bool left = (IsDatagram(ep) && !kVerbs.datagram_closed(fam, ep)) ||
                    (state == PSTN_EP_LISTEN && LoadRelaxed(ep.wire) != 0);
  SetState(ep, PSTN_EP_FREE);
  GiveEp(Stack(fam), EpIdx(Stack(fam), ep));
  if (left) PostWaiter(fam.bells, Stack(fam), PSTN_EVMAP_WIRE);  // the keeper has a look
}

void LastReference(Family& fam, uint32_t entry) {
  const uint32_t idx = entry & PSTN_FD_IDX;
  if ((entry & PSTN_FD_KIND) == PSTN_FD_EPOLL) {
    DropEpoll(fam, idx);
  } else {
    pstn_ep* const ep = EpAt(Stack(fam), idx);
    if (ep != nullptr) CloseEp(fam, *ep);
  }
}

// A thread that asks what the connection is ready for looks without a lock.
template <typename... T>
void Zero(T&... words) {
  (StoreRelaxed(words, T{}), ...);
}

// As the kernel's disconnect: not reset, but closed, is a connection that both sides had ended.
bool ResetConnection(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  bool open = false;
  if (Resolve(fam, ep, e)) {
    uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
    open = (peer & PSTN_CF_RST) == 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) == 0 &&
           !BothEnded(e, peer);
  }
  {
    // As in ChangeHands: one of the two finds the connection. No call is at the rings, which are
    // others' next.
    Guard tx(ep.tx.lock);
    Guard rx(ep.rx.lock);
    if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED) return false;  // [E1]
    SetState(ep, PSTN_EP_NEW);  // before the connection's waiters are woken
  }
  if (Resolve(fam, ep, e)) AnnounceLocal(fam.bells, e);
  CloseConnection(fam, ep, open ? End::kReset : End::kOrderly);
  Lock(ep.tx.lock);
  Zero(ep.tx.off, ep.tx.peer, ep.tx.window, ep.tx.records, ep.tx.blocked, ep.tx.burst, ep.tx.since,
       ep.tx.ring, ep.tx.old_ring, ep.tx.bytes, ep.tx.seen, ep.tx.step, ep.tx.holds, ep.hold);
  Unlock(ep.tx.lock);
  Lock(ep.rx.lock);
  Zero(ep.rx.off, ep.rx.rec_len, ep.rx.rec_done, ep.rx.unreturned, ep.rx.gate, ep.rx.urgent_end,
       ep.rx.after_end, ep.rx.ring, ep.rx.bytes, ep.rx.run, ep.rx.pause_ns, ep.rx.told);
  Unlock(ep.rx.lock);
  StoreRelaxed(ep.lgr_idx, PSTN_NONE);
  StoreRelaxed(ep.side, 0u);
  StoreAddr(ep.peer, {});
  if ((FetchAnd(ep.flags, ~PSTN_EPF_PORT_LENT) & PSTN_EPF_PORT_LENT) != 0) {
    pstn_addr bound = {};
    bound.port = ep.kernel_port;
    StoreAddr(ep.local, bound);
  }
  StoreRelaxed(ep.error, open ? static_cast<uint32_t>(ECONNRESET) : 0u);
  FetchAnd(ep.flags, ~(PSTN_EPF_HUNG | PSTN_EPF_CONNECTING | PSTN_EPF_DISCONNECTING |
                       PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR));
  return true;
}

// Waits, as SO_LINGER asks, until the peer has what was written.
void ReleaseLinger(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  const Lingering lingering = LingeringOf(ep);
  if (!lingering.on || lingering.sec == 0 || !Resolve(fam, ep, e)) return;
  Deadline until = Deadline::AfterNs(uint64_t{lingering.sec} * 1000000000u);
  SendHeld(fam.bells, e);
  FetchOr(e.ctl().flags, PSTN_CF_FIN);
  AnnounceData(fam.bells, e);
  auto gone = [&] {
    // [C2]
    if ((LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_CLOSED | PSTN_CF_RST)) != 0) return true;
    // What is in the ring has arrived, as Linux has it: its peer acknowledges what it has room for.
    if (!PeerIsEngine(e) && Writable(fam, e)) return true;
    Guard g(e.ep->tx.lock);
    return !StillHere(e) || RingDrained(e);
  };
  while (!gone() && until.left_ns() != 0) {
    timespec ts = until.LeftTimespec(1000000);
    if (sys::Call(SYS_nanosleep, &ts, nullptr) == -EINTR) return;
  }
}

namespace {

// TCP_LINGER2 below 0: one whose end has been acknowledged does not wait for the peer's in
// FIN_WAIT2, and is reset.
void ResetsAfterEnd(Family& fam, int fd, pstn_ep& ep) {
  ConnEnd e;
  int seconds = 0;
  socklen_t len = sizeof seconds;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_KERNEL_OPTIONS) != 0 &&
      LoadRelaxed(ep.state) == PSTN_EP_ESTABLISHED && Resolve(fam, ep, e) && !IsEngines(e) &&
      !PeerIsEngine(e) && HasEnded(e) &&
      sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP), static_cast<long>(TCP_LINGER2),
                &seconds, &len) == 0 &&
      seconds < 0)
    SetLingering(ep, {true, 0});
}

// The rest of a close: the claimed number, which is ours alone by now, and its reference.
long EndNumber(Family& fam, int fd, pstn_ep& ep) {
  const uint32_t family = ep.family;
  bool reusable = false;
  CachedFd c = kNoCachedFd;
  LeaveAcceptor(fam, fam.slot, ep);
  if (GiveUpRef(fam, PSTN_FD_EP | EpIdx(Stack(fam), ep), PlaceOf(fam, fd, false))) {
    // The kernel's socket serves again if the kernel knows nothing of it. No call comes to refer to
    // the endpoint any more, so what its flags say stays true.
    ResetsAfterEnd(fam, fd, ep);
    constexpr uint32_t kNot = PSTN_EPF_DIRTY | PSTN_EPF_DUPPED | PSTN_EPF_BOUND;
    const uint32_t flags = LoadRelaxed(ep.flags);
    reusable = (flags & kNot) == 0 && LoadRelaxed(ep.state) == PSTN_EP_ESTABLISHED;
    c = {fd, {}, (flags & PSTN_EPF_CLOEXEC) != 0, PSTN_NONE, 0, 0};
    const bool bound = (flags & PSTN_EPF_BOUND_AUTO) != 0;
    if (bound && LoadRelaxed(ep.side) == 0) {
      c.name = LoadAddr(ep.local);
      c.lgr_idx = ep.lgr_idx, c.conn_idx = ep.conn_idx, c.conn_gen = ep.conn_gen;
      // The kernel's socket has another name than the connection (offhost/wire_connect.cc).
      reusable = reusable && (flags & PSTN_EPF_PORT_LENT) == 0;
    } else if (bound && reusable) {  // a client's before, which an accepted one has got
      reusable = LearnName(fd, family, c.name);
    }
    CloseEp(fam, ep);  // before the fd can be taken again: its port is the connection's
    (void)WireWrote(fam);
  }
  return reusable && CachePut(fam, family, c) ? 0 : CloseClaimed(fam, fd);
}

// The number is free at once, as in the kernel, and what it meant lingers under one of ours. That,
// or -1: no number is left, and it does not linger.
int FreeNumber(Family& fam, int fd, uint32_t entry) {
  const int high = sys::DupHigh(fd);
  if (high < 0) return -1;
  (void)ShareRef(fam, entry, PlaceOf(fam, high, true));
  MarkPrivate(fam, high, PSTN_FD_INTERNAL);
  (void)GiveUpRef(fam, entry, PlaceOf(fam, fd, false));  // not the last
  (void)CloseClaimed(fam, fd);
  return high;
}

}  // namespace

long SockClose(Family& fam, int fd, uint32_t entry) {
  pstn_ep* ep =
      (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), entry & PSTN_FD_IDX) : nullptr;
  // Others have the kernel's socket, and take the clients that wait.
  if (ep != nullptr && (LoadRelaxed(ep->flags) & PSTN_EPF_BROUGHT) != 0 && RefsOf(*ep).count() == 1)
    (void)SockExport(fam, fd);
  {
    TableChange change(fam);
    if (!ClaimFd(fam, fd, entry, kFdClosing)) return -EAGAIN;
    const bool in_use = HandToUsers(fam, fd, entry);
    if (ep == nullptr) return CloseNumberOf(fam, fd, entry);
    const Lingering lingering = LingeringOf(*ep);
    const bool lingers = !in_use && RefsOf(*ep).count() == 1 &&
                         LoadRelaxed(ep->state) == PSTN_EP_ESTABLISHED && lingering.on &&
                         lingering.sec != 0;
    const int high = lingers ? FreeNumber(fam, fd, entry) : -1;
    if (high < 0) return EndNumber(fam, fd, *ep);
    fd = high;
  }
  ReleaseLinger(fam, *ep);
  TableChange change(fam);
  return EndNumber(fam, fd, *ep);
}

}  // namespace postern
