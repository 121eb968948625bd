// SPDX-License-Identifier: Apache-2.0
// datagram.cc - the life of a UDP socket on the wire: it gets there when the kernel has given it a
// name, follows it from name to name, and leaves for good where the wire can't do what it wants.

#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "endpoint/state.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/verbs.h"
#include "offhost/datagram.h"
#include "offhost/wire.h"
#include "stack/route/route.h"
#include "udp/udp.h"

namespace postern {
namespace {

bool NameFrom(long call, int fd, const pstn_ep& ep, pstn_addr& out) {
  sockaddr_storage ss;
  socklen_t len = sizeof ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  return sys::Call(call, fd, sa, &len) == 0 && AddrFromSockaddr(sa, len, ep.family, out);
}

bool IsGroup(const pstn_addr& a) {
  return AddrIsV4(a) ? a.ip[12] >= 224 : a.ip[0] == 0xff;  // 240 and above: broadcast, reserved
}

// What a socket is called; `peer.port` 0: it is not connected.
struct Names {
  pstn_addr local, peer;
};

// Why the wire has nothing to do with a socket of these names. `vi`: where a connected one's peer
// is.
Reason Refused(Family& fam, const pstn_ep& ep, const Names& n, uint64_t patience_ns, uint32_t& vi) {
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_KERNEL_OPTIONS) != 0) return kReasonOption;
  if (fam.elsewhere) return kReasonNetns;
  if (PortExcluded(fam, n.local.port) || PortExcluded(fam, n.peer.port)) return kReasonExcludedPort;
  if (n.local.scope != 0 || n.peer.scope != 0) return kReasonScopedAddress;
  if (AddrIsLoopback(n.local) || IsGroup(n.local)) return kReasonNotLocal;
  if (n.peer.port == 0) return WireStart(fam, patience_ns) ? kReasonNone : kReasonNoVi;
  if (AddrIsLoopback(n.peer) || IsGroup(n.peer)) return kReasonNotLocal;
  if (!WireStart(fam, patience_ns)) return kReasonNoVi;
  const pstn_routes* tables = WireTables(fam);
  if (tables == nullptr) return kReasonNotLocal;
  RouteQuery q;
  memcpy(q.dst, n.peer.ip, sizeof q.dst);
  memcpy(q.src, n.local.ip, sizeof q.src);
  q.proto = IPPROTO_UDP;
  q.sport = n.local.port;
  q.dport = n.peer.port;
  q.known = kRouteKnowsProto | kRouteKnowsSport | kRouteKnowsDport;
  const RouteAnswer a = RouteLookup(*tables, q);
  vi = kAreaVis;
  if (a.verdict == RouteVerdict::kUnicast && a.link.reason == RouteReason::kNone)
    vi = WireViOn(fam, a.link.vi_ifindex);
  return vi == kAreaVis ? kReasonNotLocal : kReasonNone;
}

struct Filters {
  uint32_t number[kAreaVis] = {};
};

// Steers what comes for these names to us; of a connected socket what comes from its peer. 0 or
// -errno.
int Steer(Family& fam, int fd, const Names& n, uint32_t vi, Filters& out) {
  const stack::WireState& w = fam.engine->state();
  if (n.peer.port != 0) return WireFilterDatagrams(fam, fd, vi, n.local, &n.peer, &out.number[vi]);
  int r = -ENODEV;
  for (uint32_t i = 0; i < kAreaVis; i++) {
    if (w.grant[i] == 0) continue;
    r = WireFilterDatagrams(fam, fd, i, n.local, nullptr, &out.number[i]);
    if (r != 0) break;
  }
  return r;
}

void Unsteer(Family& fam, const Filters& f, Unfilter how) {
  for (uint32_t vi = 0; vi < kAreaVis; vi++)
    if (f.number[vi] != 0) WireUnfilter(fam, vi, f.number[vi], how);
}

// Puts the new ones in the place of the old ones. Under the engine's lock.
Filters Swap(stack::Engine& engine, stack::DatagramSocket& s, const Filters& now)
    PSTN_REQUIRES(engine) {
  Filters old;
  memcpy(old.number, s.filter, sizeof old.number);
  memcpy(s.filter, now.number, sizeof s.filter);
  s.filter_epoch = static_cast<uint32_t>(engine.state().grant[0]);
  return old;
}

// A place among the engine's sockets. False: there is none.
bool Enter(Family& fam, int fd, pstn_ep& ep, const Names& n) {
  int v6only = 0;
  socklen_t size = sizeof v6only;
  if (ep.family == AF_INET6)
    (void)sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_IPV6),
                    static_cast<long>(IPV6_V6ONLY), &v6only, &size);
  fam.engine->Acquire();
  const uint32_t at = fam.engine->datagrams().Open(
      n.local, ep.family, v6only != 0 ? udp::kV6Only : 0u, EpIdx(Stack(fam), ep), ep.gen);
  (void)fam.engine->PollLocked(MonotonicNs());  // the first one: frames for the driver
  WireRelease(fam, *fam.engine);
  if (at == PSTN_NONE) return false;
  StoreRelease(ep.wire, static_cast<uint16_t>(at + 1));  // [E7]
  return true;
}

void Exit(Family& fam, pstn_ep& ep) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr || LoadRelaxed(ep.wire) == 0) return;
  Filters old;
  {
    DatagramGuard g(fam, ep);
    fam.engine->AssertHeld();  // by `g`, if it has found one
    if (g.ok()) old = Swap(*fam.engine, g.socket(), {});
  }
  Unsteer(fam, old, Unfilter::kNow);  // first: what comes now is the kernel's, which has an answer
  {
    DatagramGuard g(fam, ep);
    if (g.ok()) g.all().Close(g.idx());
  }
  StoreRelease(ep.wire, uint16_t{0});  // [E7]
}

// On the wire by these names, whatever it was called before.
Reason Serve(Family& fam, int fd, pstn_ep& ep, const Names& n, uint32_t vi) {
  if (LoadRelaxed(ep.wire) == 0 && !Enter(fam, fd, ep, n)) return kReasonNoMemory;
  Filters now, old;
  const int r = Steer(fam, fd, n, vi, now);
  int error = -EBADF;
  {
    DatagramGuard g(fam, ep);
    if (g.ok() && r == 0) {
      DatagramLearnOptions(fd, ep, g.socket());
      if (n.peer.port != 0)
        error = g.all().Connect(g.idx(), n.local, n.peer);
      else
        error = g.all().Disconnect(g.idx(), n.local);
      fam.engine->AssertHeld();  // by `g`
      if (error == 0) old = Swap(*fam.engine, g.socket(), now);
    }
  }
  Unsteer(fam, error == 0 ? old : now, Unfilter::kNow);
  ep.local = n.local;  // for people to see
  ep.peer = n.peer;
  if (error == 0) return kReasonNone;
  return r != 0 ? kReasonDaemonRefused : kReasonNotLocal;
}

// No number refers to it any more, or it is another one's by now.
bool IsGone(Family& fam, const stack::DatagramSocket& s) {
  const pstn_ep* ep = EpAt(Stack(fam), s.owner);
  return ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_KERNEL || !IsDatagram(*ep) ||  // [E1]
         LoadRelaxed(ep->gen) != s.owner_gen;
}

}  // namespace

// Takes it or not, by what it finds: the analysis does not follow that.
DatagramGuard::DatagramGuard(Family& fam, const pstn_ep& ep) PSTN_NO_THREAD_SAFETY_ANALYSIS
    : fam_(fam) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  const uint32_t at = LoadAcquire(ep.wire);         // [E7]
  if (engine == nullptr || at == 0 || at > stack::kDatagramSockets) return;
  engine->Acquire();
  locked_ = true;
  const stack::DatagramSocket& s = engine->datagrams().At(at - 1);
  if (s.use != 0 && s.owner == EpIdx(Stack(fam), ep) && s.owner_gen == LoadRelaxed(ep.gen))
    idx_ = at - 1;
}

DatagramGuard::~DatagramGuard() PSTN_NO_THREAD_SAFETY_ANALYSIS {
  if (!locked_) return;
  fam_.engine->Release();
  // A thread that has found it taken meanwhile counts on its holder to look for news once more, as
  // Engine::Poll() does.
  FenceAfterLocked();  // [F1]
  (void)WirePoll(fam_);
}

long DatagramSocket(Family& fam, int domain, int type, int protocol) {
  if ((domain != AF_INET && domain != AF_INET6) || (protocol != 0 && protocol != IPPROTO_UDP) ||
      !fam.enabled || LoadRelaxed(fam.aside) != 0 || !EnsureStack(fam))
    return kPass;
  const uint32_t idx = NewEp(fam, static_cast<uint32_t>(domain));
  if (idx == PSTN_NONE) return kPass;
  pstn_ep& ep = Stack(fam).eps.Own(EpIndex(idx));
  TableChange change(fam);
  const int fd = sys::Socket(domain, type, protocol);
  if (fd < 0) {
    GiveEp(Stack(fam), idx);
    return fd == -EMFILE || fd == -ENFILE ? kPass : fd;
  }
  FetchOr(ep.flags, PSTN_EPF_DATAGRAM | PSTN_EPF_DIRTY);
  SetState(ep, PSTN_EP_KERNEL);
  SetFd(fam, fd, PSTN_FD_EP | idx);
  return fd;
}

void DatagramNamed(Family& fam, int fd, pstn_ep& ep, uint64_t patience_ns) {
  if (LoadRelaxed(ep.reason) != kReasonNone) return;
  Names n = {};
  if (!NameFrom(SYS_getsockname, fd, ep, n.local) || n.local.port == 0) return Exit(fam, ep);
  if (!NameFrom(SYS_getpeername, fd, ep, n.peer)) n.peer = {};
  uint32_t vi = kAreaVis;
  Reason why = Refused(fam, ep, n, patience_ns, vi);
  if (why == kReasonNone) why = Serve(fam, fd, ep, n, vi);
  if (why != kReasonNone) DatagramLeave(fam, ep, why);
}

long DatagramBind(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  const long r = sys::Call(SYS_bind, fd, sa, static_cast<long>(len));
  pstn_addr name;
  if (r < 0) return r;
  // A server that is started again may find the queues with the last one, which has just ended.
  const bool serves = AddrFromSockaddr(sa, len, ep.family, name) && name.port != 0;
  DatagramNamed(fam, fd, ep, serves ? kTakenNs : 0);
  return r;
}

long DatagramConnect(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  const long r = sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  if (r == 0) DatagramNamed(fam, fd, ep);
  return r;
}

void DatagramLeave(Family& fam, pstn_ep& ep, Reason why) {
  if (LoadRelaxed(ep.reason) == kReasonNone) {
    StoreRelaxed(ep.reason, why);
    FetchAdd(Stack(fam).hdr.reasons[why], 1u);
  }
  const DatagramGuard g(fam, ep);
  if (g.ok()) g.all().Leave(g.idx());
}

bool DatagramClosed(Family& fam, pstn_ep& ep) {
  Exit(fam, ep);
  return LoadRelaxed(ep.wire) == 0;
}

void DatagramRefilter(Family& fam, LineAsk ask, int fd, const pstn_ep& ep) {
  const uint32_t at = LoadRelaxed(ep.wire);
  if (at == 0 || at > stack::kDatagramSockets) return;
  stack::DatagramSocket& s = fam.engine->datagrams().At(at - 1);
  const uint32_t epoch = static_cast<uint32_t>(fam.engine->state().grant[0]);
  if (LoadRelaxed(s.is_left) != 0 || Exchange(s.filter_epoch, epoch) == epoch) return;
  Names n = {};
  if (!NameFrom(SYS_getsockname, fd, ep, n.local)) return;
  if (!NameFrom(SYS_getpeername, fd, ep, n.peer)) n.peer = {};
  for (uint32_t vi = 0; vi < kAreaVis; vi++)
    if (s.filter[vi] != 0)
      (void)WireFilterDatagrams(fam, fd, vi, n.local, n.peer.port != 0 ? &n.peer : nullptr,
                                &s.filter[vi], ask);
}

void DatagramSweep(Family& fam) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr) return;
  stack::WireState& w = engine->state();
  for (uint32_t i = 0; i < w.datagrams.hw && i < stack::kDatagramSockets; i++) {
    stack::DatagramSocket& s = w.datagrams.at[i];
    if (LoadRelaxed(s.use) == 0 || !IsGone(fam, s)) continue;
    Filters old;
    engine->Acquire();
    if (s.use != 0 && IsGone(fam, s)) {
      old = Swap(*engine, s, {});
      engine->datagrams().Close(i);
    }
    WireRelease(fam, *engine);
    Unsteer(fam, old, Unfilter::kNow);
  }
}

}  // namespace postern
