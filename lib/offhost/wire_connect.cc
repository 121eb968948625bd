// SPDX-License-Identifier: Apache-2.0
// wire_connect.cc - connect() to a peer behind a VI.
//
// The endpoint's slot is one of a link group that the stack has with itself, of which the engine is
// the server. While the handshake lasts the endpoint is PSTN_EP_CONNECTING and its slot OFFERED;
// the engine's report ends both: connected, or connected to a peer that has reset it at once,
// which is what poll(), SO_ERROR and the next connect() show of a kernel's socket, too.
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "event/block.h"
#include "event/spin.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "offhost/wire.h"
#include "offhost/wire_calls.h"
#include "offhost/wire_options.h"
#include "peer/connect.h"
#include "peer/kernel_half.h"
#include "peer/pair.h"
#include "peer/port.h"
#include "stack/route/route.h"

namespace postern {
namespace {

// The way to `to`: its VI, and the address of ours that it starts from. kReasonNone: there is one.
Reason WayTo(Family& fam, const pstn_addr& to, pstn_addr& from, uint32_t* vi) {
  const pstn_routes* tables = WireTables(fam);
  if (tables == nullptr) return kReasonNotLocal;
  RouteQuery q;
  memcpy(q.dst, to.ip, sizeof q.dst);
  if (!AddrIsAny(from)) memcpy(q.src, from.ip, sizeof q.src);
  q.proto = IPPROTO_TCP;
  q.dport = to.port;
  q.known = kRouteKnowsProto | kRouteKnowsDport;
  const RouteAnswer a = RouteLookup(*tables, q);
  if (a.verdict != RouteVerdict::kUnicast || a.link.reason != RouteReason::kNone)
    return kReasonNotLocal;
  *vi = WireViOn(fam, a.link.vi_ifindex);
  if (*vi == kAreaVis) return kReasonNotLocal;
  memcpy(from.ip, a.source, sizeof from.ip);
  return kReasonNone;
}

// A connection that is being made: a slot, and its two ends. Without a port in `from` it gets one
// of the stack's own.
struct Attempt {
  pstn_ep& ep;
  const pstn_addr& to;
  pstn_addr from;
  uint32_t vi;
  uint32_t filter = 0;  // of its own; 0: its port's
  ConnSlot slot = {};
  uint32_t end = PSTN_NONE;

  pstn_conn& conn() const { return LgrConn(slot.lgr, slot.conn); }
};

// The engine's end of the slot. False: no endpoint left.
bool MakeEngineEnd(Family& fam, Attempt& a) {
  StackMap& s = Stack(fam);
  const uint32_t other = OtherSide(fam, a.slot.lgr_idx);
  pstn_lgr_ref* const ref = s.lgrs.At(LgrIndex(other));
  a.end = ref != nullptr ? NewEp(fam, a.ep.family) : PSTN_NONE;
  if (a.end == PSTN_NONE) return false;
  pstn_ep& end = s.eps.Own(EpIndex(a.end));
  FetchOr(end.flags, PSTN_EPF_ENGINE | PSTN_EPF_NODELAY);
  end.owner_slot = PSTN_NONE;
  SetPlace(end, other, a.slot.conn, a.ep.conn_gen, 1);
  end.local = a.ep.peer;
  end.peer = a.ep.local;
  end.listener = a.slot.lgr_idx;
  UseWaiter(fam, a.slot.lgr, 1, PSTN_EVMAP_WIRE);  // or a program's posts ring no bell
  StoreRelaxed(a.conn().ctl[1].rcv_room, kLastSegmentBytes);
  StoreRelease(a.conn().ctl[1].rx_notify, PSTN_EVMAP_WIRE + 1);  // [C3]
  StoreRelease(ref->conn_ep[a.slot.conn], a.end + 1);            // [E4]
  SetState(end, PSTN_EP_ESTABLISHED);
  return true;
}

void Undo(Family& fam, const Attempt& a) {
  StackMap& s = Stack(fam);
  if (a.end != PSTN_NONE) {
    pstn_ep& end = s.eps.Own(EpIndex(a.end));
    pstn_lgr_ref* const ref = s.lgrs.At(LgrIndex(end.lgr_idx));
    if (ref != nullptr) StoreRelease(ref->conn_ep[a.slot.conn], 0u);  // [E4]
    SetState(end, PSTN_EP_FREE);
    GiveEp(s, a.end);
  }
  StoreRelease(a.conn().setup.state, PSTN_CS_FREE);                             // [C1]
  StoreRelease(s.lgrs.Own(LgrIndex(a.slot.lgr_idx)).conn_ep[a.slot.conn], 0u);  // [E4]
  GiveConn(s.lgrs.Own(LgrIndex(a.slot.lgr_idx)), a.slot.conn);
  StoreRelaxed(a.ep.lgr_idx, PSTN_NONE);
}

// All places that have its name learn the port that it has got.
void NamePort(Family& fam, Attempt& a, uint16_t port) {
  a.from.port = a.ep.local.port = a.conn().setup.client.port =
      Stack(fam).eps.Own(EpIndex(a.end)).peer.port = port;
  FetchOr(a.ep.flags, PSTN_EPF_PORT_LENT);
}

// Under the engine's lock. 0 or an errno; EADDRNOTAVAIL: there is no port for it.
int ConnectLocked(Family& fam, Attempt& a, const stack::OpenWish& wish, stack::PortWish port)
    PSTN_REQUIRES(fam.engine) {
  int error = EADDRNOTAVAIL;
  const uint64_t now = MonotonicNs();
  if (a.from.port == 0) {
    pstn_addr from = a.from;
    if (!stack::TakeSourcePort(*fam.engine, a.vi, from, a.to, port, now)) return error;
    NamePort(fam, a, from.port);
  }
  LeaveHands(Stack(fam).eps.Own(EpIndex(a.end)));  // the next holder of the engine's lock finds it
  const uint32_t idx = fam.engine->Connect(a.from, a.to, a.end, now, error, wish);
  if (idx == PSTN_NONE) return error;
  StoreRelaxed(Stack(fam).eps.Own(EpIndex(a.end)).accept_head, idx);
  stack::Conn& c = fam.engine->ConnAt(idx);
  c.filter = a.filter;
  c.filter_vi = a.vi;
  c.filter_epoch = static_cast<uint32_t>(fam.engine->state().grant[0]);
  (void)fam.engine->PollLocked(MonotonicNs());
  return 0;
}

// The same, from a port that is asked for if the stack has none that is free for this peer.
int Connect(Family& fam, Attempt& a, const stack::OpenWish& wish) {
  constexpr int kTries = 8;  // others may be faster than we are
  stack::PortWish port = stack::PortWish::kRested;
  for (int i = 0;; i++) {
    fam.engine->Acquire();
    const int r = ConnectLocked(fam, a, wish, port);
    WireRelease(fam, *fam.engine);
    if (r != EADDRNOTAVAIL || a.from.port != 0 || i == kTries) return r;
    if (WireNewPort(fam, a.vi, a.from)) continue;
    if (port == stack::PortWish::kAny) return r;
    port = stack::PortWish::kAny;
  }
}

Reason Begin(Family& fam, int fd, Attempt& a) {
  const Reason why = TakeConnSlot(fam, Stack(fam).hdr.id, a.slot);
  if (why != kReasonNone) return why;
  FillConn(fam, a.ep, a.slot, PSTN_NONE, 0, a.to, a.from);
  if (!MakeEngineEnd(fam, a)) {
    Undo(fam, a);
    return kReasonNoMemory;
  }
  // The answer must not meet the kernel.
  int r = a.from.port != 0 ? WireFilterPeer(fam, fd, a.vi, a.from, a.to, &a.filter) : 0;
  if (r == 0) {
    StoreRelease(a.conn().setup.state, PSTN_CS_OFFERED);  // [C1]
    SetState(a.ep, PSTN_EP_CONNECTING);
    r = Connect(fam, a, WireWish(fam, fd, a.ep));
    if (r == 0) return kReasonNone;
    if (a.filter != 0) WireUnfilter(fam, a.vi, a.filter, Unfilter::kNow);
    FetchAnd(a.ep.flags, ~PSTN_EPF_PORT_LENT);
    SetState(a.ep, PSTN_EP_NEW);
  }
  Undo(fam, a);
  return r == EADDRNOTAVAIL ? kReasonNoPort : kReasonNotLocal;
}

// A port that is bound, from which there is no connection to that peer: a socket from the fd cache
// brings the one of its last connection, which is in TIME_WAIT.
bool FreePort(Family& fam, int fd, pstn_ep& ep, const pstn_addr& to, pstn_addr& from)
    PSTN_REQUIRES(ep.setup_lock) {
  constexpr int kTries = 16;
  const pstn_dir* dir = LoadAcquire(fam.dir);  // [T4]
  for (int i = 0; dir != nullptr && i < kTries && ReservePort(fam, fd, ep, *dir, from); i++) {
    from.port = ep.local.port;
    fam.engine->Acquire();
    const bool taken = fam.engine->IsTaken(from, to);
    WireRelease(fam, *fam.engine);
    if (!taken) return true;
    if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) == 0 || Unbind(fd, ep) != 0) return false;
  }
  return false;
}

}  // namespace

Reason WireConnect(Family& fam, int fd, pstn_ep& ep, const pstn_addr& to) {
  if (fam.opt.vi[0] == 0 || AddrIsLoopback(to)) return kReasonNotLocal;
  if (!WireStart(fam)) return kReasonNoVi;
  pstn_addr from = IsNamedByUs(ep) ? pstn_addr{} : LoadAddr(ep.local);
  uint32_t vi = kAreaVis;
  Reason why = WayTo(fam, to, from, &vi);
  if (why != kReasonNone) return why;
  const pstn_addr before = ep.local;
  why = kReasonNoPort;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) == 0) {
    from.port = 0;
    Attempt lent = {ep, to, from, vi};
    why = Begin(fam, fd, lent);
    if (why != kReasonNone) ep.local = before;
  }
  if (why != kReasonNoPort) return why;
  if (!FreePort(fam, fd, ep, to, from)) return kReasonNoPort;
  const pstn_addr bound = ep.local;
  Attempt own = {ep, to, from, vi};
  why = Begin(fam, fd, own);
  if (why != kReasonNone) ep.local = bound;
  return why;
}

long WireAwaitConnected(Family& fam, pstn_ep& ep, const Interrupts& since) {
  auto done = [&] { return StateNow(fam, ep) != PSTN_EP_CONNECTING; };
  const uint64_t timeout_ns = LoadRelaxed(ep.sndtimeo_ns);
  const bool timed = timeout_ns != 0;
  const Deadline until = Deadline::AfterTimeout(timeout_ns);
  if (Spin(fam, done, until)) return 0;
  while (!done()) {
    if (since.Ends(timed)) return -EINTR;
    if (until.left_ns() == 0) return -EINPROGRESS;
    const WireSleep wire(fam);
    // A handler between the look at `since` and the sleep is seen after this at the latest.
    constexpr uint64_t kLookNs = 20'000'000;
    timespec left = until.LeftTimespec(kLookNs);
    Sleeper sleeper(ep);
    (void)Cancellable(
        fam, [&] { return sys::FutexWait(&ep.state, PSTN_EP_CONNECTING, &left); },
        [&] { sleeper.Off(); });
  }
  return 0;
}

// What the engine says of a connection whose program is waiting for it. `error` 0: it is there.
void WireConnected(Family& fam, pstn_ep& program, pstn_conn& conn, int error) {
  uint32_t offered = PSTN_CS_OFFERED;
  if (!CompareExchange(conn.setup.state, offered, PSTN_CS_ESTABLISHED)) return;
  if (error != 0) StoreRelaxed(program.error, static_cast<uint32_t>(error));
  uint32_t connecting = PSTN_EP_CONNECTING;
  if (!CompareExchange(program.state, connecting, PSTN_EP_ESTABLISHED)) return;
  // [F1] against Sleeper: the kernel looks at the state once more before it puts the thread to
  // sleep.
  FenceAfterLocked();
  if (LoadRelaxed(program.sleepers) != 0) (void)sys::FutexWake(&program.state, INT32_MAX);
  ShowConnected(fam, program);
}

void WireGiveUp(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  if (LoadAcquire(ep.state) == PSTN_EP_CONNECTING && Resolve(fam, ep, e))  // [E1]
    WireConnected(fam, ep, *e.conn, ECONNRESET);
}

uint32_t OtherSide(Family& fam, uint32_t idx) {
  const StackMap& s = Stack(fam);
  const pstn_lgr_ref* const own = s.lgrs.At(LgrIndex(idx));
  if (own == nullptr) return PSTN_NONE;
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    // [L1]
    if (&ref != own && LoadAcquire(ref.state) != 0 && SameUuid(ref.id, own->id))
      return s.lgrs.IndexOf(ref).word();
  }
  return PSTN_NONE;
}

const pstn_ep* EngineEnd(Family& fam, uint32_t lgr, uint32_t conn) {
  const StackMap& s = Stack(fam);
  const pstn_lgr_ref* const own = s.lgrs.At(LgrIndex(lgr));
  if (own == nullptr || !SameUuid(own->peer, s.hdr.id)) return nullptr;
  const pstn_lgr_ref* const other = s.lgrs.At(LgrIndex(OtherSide(fam, lgr)));
  if (other == nullptr) return nullptr;
  const uint32_t idx = LoadAcquire(other->conn_ep[conn % PSTN_CONNS]);  // [E4]
  const pstn_ep* const end = idx != 0 ? EpAt(s, idx - 1) : nullptr;
  return end != nullptr && (LoadRelaxed(end->flags) & PSTN_EPF_ENGINE) != 0 ? end : nullptr;
}

}  // namespace postern
