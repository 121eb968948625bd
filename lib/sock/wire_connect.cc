// SPDX-License-Identifier: Apache-2.0
// wire_connect.cc - connect() to a peer behind a VI.
//
// The endpoint's slot is one of a link group that the stack has with itself, of which the engine is
// the server. While the handshake lasts the endpoint is PSTN_EP_CONNECTING and its slot OFFERED;
// the engine's report ends both: connected, or connected to somebody who has reset it at once,
// which is what poll(), SO_ERROR and the next connect() show of a kernel's socket, too.
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "sock/block.h"
#include "sock/wire.h"
#include "sock/wire_options.h"
#include "stack/route.h"

namespace postern {
namespace {

// The way to `to`: its VI, and the address of ours that it starts from. kReasonNone: there is one.
Reason WayTo(const pstn_addr& to, pstn_addr& from, uint32_t* vi) {
  const pstn_routes* tables = WireTables();
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
  *vi = WireViOn(a.link.vi_ifindex);
  if (*vi == kAreaVis) return kReasonNotLocal;
  memcpy(from.ip, a.source, sizeof from.ip);
  return kReasonNone;
}

// The engine's end of the slot. PSTN_NONE: no endpoint left.
uint32_t MakeEngineEnd(const pstn_ep& ep, const ConnSlot& slot) {
  pstn_stack& s = Stack();
  const uint32_t other = OtherSide(slot.lgr_idx),
                 idx = other < PSTN_LGRS ? NewEp(ep.family) : PSTN_NONE;
  if (idx == PSTN_NONE) return idx;
  pstn_ep& end = s.eps[idx];
  FetchOr(end.flags, PSTN_EPF_ENGINE | PSTN_EPF_NODELAY);
  end.owner_slot = PSTN_NONE;
  StoreRelaxed(end.lgr_idx, other);
  end.conn_idx = slot.conn;
  end.conn_gen = ep.conn_gen;
  end.side = 1;
  end.local = ep.peer;
  end.peer = ep.local;
  end.listener = slot.lgr_idx;
  pstn_conn& conn = LgrConn(slot.lgr, slot.conn);
  StoreRelease(conn.ctl[1].rx_notify, PSTN_EVMAP_WIRE + 1);
  StoreRelease(s.lgrs[other].conn_ep[slot.conn], idx + 1);
  StoreRelease(end.state, PSTN_EP_ESTABLISHED);
  return idx;
}

void UndoSlot(pstn_ep& ep, const ConnSlot& slot) {
  StoreRelease(LgrConn(slot.lgr, slot.conn).setup.state, PSTN_CS_FREE);
  StoreRelease(Stack().lgrs[slot.lgr_idx].conn_ep[slot.conn], 0u);
  GiveConn(Stack().lgrs[slot.lgr_idx], slot.conn);
  StoreRelaxed(ep.lgr_idx, PSTN_NONE);
}

Reason Begin(int fd, pstn_ep& ep, const pstn_addr& to, const pstn_addr& from, uint32_t vi) {
  pstn_stack& s = Stack();
  ConnSlot slot;
  const Reason why = TakeConnSlot(s.hdr.id, slot);
  if (why != kReasonNone) return why;
  FillConn(ep, slot, PSTN_NONE, 0, to, from);
  const uint32_t end = MakeEngineEnd(ep, slot);
  if (end == PSTN_NONE) {
    UndoSlot(ep, slot);
    return kReasonNoMemory;
  }
  // The answer must not meet the kernel.
  uint32_t filter = 0;
  int r = WireFilterPeer(fd, vi, from, to, &filter);
  if (r == 0) {
    pstn_conn& conn = LgrConn(slot.lgr, slot.conn);
    StoreRelease(conn.setup.state, PSTN_CS_OFFERED);
    StoreRelease(ep.state, PSTN_EP_CONNECTING);
    const stack::OpenWish wish = WireWish(fd, ep);
    stack::WireState& w = g_wire->state();
    if (Lock(w.lock)) g_wire->Recover(MonotonicNs());
    const uint32_t idx = g_wire->Connect(from, to, end, MonotonicNs(), r, wish);
    if (idx != PSTN_NONE) {
      s.eps[end].accept_head = idx;
      g_wire->ConnAt(idx).filter = filter;
      g_wire->ConnAt(idx).filter_vi = vi;
      g_wire->ConnAt(idx).filter_epoch = static_cast<uint32_t>(w.grant[0]);
      (void)g_wire->PollLocked(MonotonicNs());
      Unlock(w.lock);
      return kReasonNone;
    }
    Unlock(w.lock);
    WireUnfilter(vi, filter, Unfilter::kNow);
    StoreRelease(ep.state, PSTN_EP_NEW);
  }
  StoreRelease(s.lgrs[s.eps[end].lgr_idx].conn_ep[slot.conn], 0u);
  StoreRelease(s.eps[end].state, PSTN_EP_FREE);
  GiveEp(s, end);
  UndoSlot(ep, slot);
  return kReasonNotLocal;
}

// A port of ours, from which there is no connection to that peer: a socket from the fd cache brings
// the one of its last connection, which is in TIME_WAIT.
bool FreePort(int fd, pstn_ep& ep, const pstn_addr& to, pstn_addr& from) {
  constexpr int kTries = 16;
  stack::WireState& w = g_wire->state();
  const pstn_dir* dir = LoadAcquire(g_proc.dir);
  for (int i = 0; dir != nullptr && i < kTries && ReservePort(fd, ep, *dir); i++) {
    from.port = ep.local.port;
    if (Lock(w.lock)) g_wire->Recover(MonotonicNs());
    const bool taken = g_wire->IsTaken(from, to);
    Unlock(w.lock);
    if (!taken) return true;
    if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) == 0 || Unbind(fd, ep) != 0) return false;
  }
  return false;
}

}  // namespace

Reason WireConnect(int fd, pstn_ep& ep, const pstn_addr& to) {
  if (g_proc.opt.vi[0] == 0 || AddrIsLoopback(to)) return kReasonNotLocal;
  if (!WireStart()) return kReasonNoVi;
  pstn_addr from = ep.local;
  uint32_t vi = kAreaVis;
  Reason why = WayTo(to, from, &vi);
  if (why != kReasonNone) return why;
  if (!FreePort(fd, ep, to, from)) return kReasonNoPort;
  const pstn_addr before = ep.local;
  why = Begin(fd, ep, to, from, vi);
  if (why != kReasonNone) ep.local = before;
  return why;
}

long WireAwaitConnected(Hold& hold, pstn_ep& ep) {
  auto done = [&] { return LoadAcquire(ep.state) != PSTN_EP_CONNECTING; };
  const uint32_t interrupts = t_interrupts;
  const Deadline until =
      ep.sndtimeo_ns != 0 ? Deadline::AfterNs(ep.sndtimeo_ns) : Deadline::Never();
  if (Spin(done, until)) return 0;
  hold.On(ep);
  while (!done()) {
    if (t_interrupts != interrupts) return -EINTR;
    if (until.left_ns() == 0) return -EINPROGRESS;
    const WireSleep wire;
    // A handler between the look at t_interrupts and the sleep is seen after this at the latest.
    constexpr uint64_t kLookNs = 20'000'000;
    timespec left = until.LeftTimespec(kLookNs);
    (void)Cancellable([&] { return sys::FutexWait(&ep.state, PSTN_EP_CONNECTING, &left); },
                      [&] { hold.Off(); });
  }
  return 0;
}

// What the engine says of a connection whose program is waiting for it. `error` 0: it is there.
void WireConnected(pstn_ep& program, pstn_conn& conn, int error) {
  uint32_t offered = PSTN_CS_OFFERED;
  if (!CompareExchange(conn.setup.state, offered, PSTN_CS_ESTABLISHED)) return;
  if (error != 0) StoreRelaxed(program.error, static_cast<uint32_t>(error));
  uint32_t connecting = PSTN_EP_CONNECTING;
  if (!CompareExchange(program.state, connecting, PSTN_EP_ESTABLISHED)) return;
  (void)sys::FutexWake(&program.state, INT32_MAX);
  ShowConnected(program);
}

}  // namespace postern
