// SPDX-License-Identifier: Apache-2.0
// connect.cc - finds the peer in the directory and connects through a link group, or says why not.
//
//   directory (posternd's, read-only)  ->  which stack listens there
//   link group with that stack         ->  had already, or posternd introduces us (pair.cc)
//   a connection slot of it            ->  filled in, marked SYN, announced
//
// As with TCP, accept() is not awaited: connect succeeds when the listener's backlog has room, and
// data may follow at once. Whatever does not fit falls back to the kernel, with its reason.
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/telling.h"
#include "family/verbs.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/contact/contact.h"
#include "peer/kernel_half.h"
#include "peer/negotiate.h"
#include "peer/pair.h"
#include "peer/peers.h"
#include "peer/port.h"

namespace postern {
namespace {

struct Target {
  pstn_uuid stack;
  uint32_t ep_idx, ep_gen, backlog;
  pstn_addr source;  // of ours; only for what is not local
};

constexpr int kSeqRetries = 1000;

// How well a listener fits a destination: 0 not at all, 1 dual-stack wildcard, 2 wildcard, 3 exact.
int Fit(const pstn_dir_listener& l, const pstn_addr& to) {
  if (l.used == 0 || l.local.port != to.port) return 0;
  bool v4 = AddrIsV4(to);
  if (!AddrIsAny(l.local)) return SameIp(l.local, to) ? 3 : 0;
  if (v4 && l.family == AF_INET) return 2;
  if (l.family == AF_INET6) return v4 ? (l.v6only != 0 ? 0 : 1) : 2;
  return 0;
}

// Under the directory's version number: what is read counts only if it did not change meanwhile.
template <typename Fn>
bool ReadDirectory(const pstn_dir& d, Fn fn) {
  for (int i = 0; i < kSeqRetries; i++) {
    uint64_t before = LoadAcquire(d.seq);  // [W1]
    if ((before & 1u) != 0) {
      CpuRelax();
      continue;
    }
    fn();
    FullFence();  // [W1] what fn loaded precedes the second look at the version
    if (LoadRelaxed(d.seq) == before) return true;
  }
  return false;
}

// As the last step of SplitMix64: each bit of the result depends on each bit of `x`.
uint64_t Mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// A number for one connect(), unlike that of any other: of this process before, of its relatives,
// and of others that began at the same moment.
uint64_t DrawLot(Family& fam) {
  if (LoadRelaxed(fam.peers->lot_seed) == 0) StoreRelaxed(fam.peers->lot_seed, NewUuid().hi | 1u);
  return Mixed(Mixed(LoadRelaxed(fam.peers->lot_seed) ^ fam.pid) +
               FetchAdd(fam.peers->lot_turn, uint64_t{1}));
}

// Several listeners may share a port (SO_REUSEPORT): each has the same chance, whatever their
// number, as with the kernel's hash. With each connect() each gets another weight, and the heaviest
// has it.
// Those of other network namespaces (`learnt`) are known by addresses that are not local.
// `sought`: that there is none may be believed.
bool LookFor(Family& fam, const pstn_dir& d, const pstn_addr& to, bool learnt, Target& out,
             bool& sought) {
  const uint64_t lot = DrawLot(fam);
  bool found = false;
  bool stable = ReadDirectory(d, [&] {
    int best = 0;
    uint64_t heaviest = 0;
    found = false;
    uint32_t next = LoadRelaxed(d.port_head[to.port]);
    for (uint32_t steps = 0; next != 0 && next <= PSTN_DIR_LISTENERS && steps < PSTN_DIR_LISTENERS;
         steps++) {
      const pstn_dir_listener& l = d.listeners[next - 1];
      const uint64_t weight = Mixed(lot + next * 0x9e3779b97f4a7c15u);
      next = LoadRelaxed(l.next);
      int fit = (LoadRelaxed(l.learnt) != 0) == learnt ? Fit(l, to) : 0;
      if (fit == 0 || fit < best || (fit == best && weight < heaviest)) continue;
      best = fit;
      heaviest = weight;
      out = {l.stack, l.ep_idx, l.ep_gen, l.backlog, l.source};
      found = true;
    }
    sought = LoadRelaxed(d.seeks) == 0 || next == PSTN_DIR_SOUGHT;
  });
  return stable && found;
}

// Of other users' listeners the directory has those on ports that were asked for. So the first
// connect() to a port that finds none has posternd ask for those there.
bool FindListener(Family& fam, const pstn_dir& d, const pstn_addr& to, bool learnt, Target& out) {
  bool sought = true;
  if (LookFor(fam, d, to, learnt, out, sought)) return true;
  if (sought || learnt || CtlSeek(fam, to.port) != 0) return false;
  return LookFor(fam, d, to, learnt, out, sought);
}

}  // namespace

bool IsLocalAddress(const pstn_dir& d, const pstn_addr& a) {
  if (AddrIsLoopback(a)) return true;
  bool found = false;
  bool stable = ReadDirectory(d, [&] {
    uint32_t n = LoadRelaxed(d.addr_count);
    found = false;
    for (uint32_t i = 0; i < n && i < PSTN_DIR_ADDRS; i++) found = found || SameIp(d.addrs[i], a);
  });
  return stable && found;
}

namespace {

// 0.0.0.0 and :: as a destination mean this host.
void NormaliseDestination(pstn_addr& to) {
  if (!AddrIsAny(to)) return;
  SetIp(to, AddrIsV4(to) ? IpAddress::V4(127, 0, 0, 1) : IpAddress::Loopback6());
}

// The source address that the kernel's routing would choose for a local destination.
void ChooseSource(const pstn_addr& to, pstn_addr& from) {
  if (!AddrIsAny(from)) return;  // bound to an address
  const bool v4_loopback = AddrIsV4(to) && AddrIsLoopback(to);
  SetIp(from, v4_loopback ? IpAddress::V4(127, 0, 0, 1) : IpOf(to));
}

}  // namespace

void FillConn(Family& fam, pstn_ep& ep, const ConnSlot& slot, uint32_t listener_idx,
              uint32_t listener_gen, const pstn_addr& to, const pstn_addr& from) {
  const auto [idx, conn, lgr] = slot;
  StackMap& s = Stack(fam);
  pstn_lgr_ref& ref = s.lgrs.Own(LgrIndex(idx));
  RaiseMark(LgrHdr(lgr).conns_hw, conn + 1, PSTN_CONNS);
  pstn_conn& c = LgrConn(lgr, conn);
  uint32_t gen = LoadRelaxed(c.setup.gen) + 1;
  StoreRelaxed(c.setup.gen, gen);  // of the slot's last use, others may still ask (IsOver)
  memset(static_cast<void*>(&c.ctl), 0, sizeof c - sizeof c.setup);
  c.setup.listener_idx = listener_idx;
  c.setup.listener_gen = listener_gen;
  c.setup.client = from;
  c.setup.server = to;
  c.ctl[0].syn_ns = MonotonicNs();
  c.ctl[0].rcv_room = uint32_t{LoadRelaxed(ep.rcv_lines)} * PSTN_REC_ALIGN;
  SetPlace(ep, idx, conn, gen, 0);
  StoreAddr(ep.local, from);
  StoreAddr(ep.peer, to);
  StoreRelease(ref.conn_ep[conn], EpIdx(s, ep) + 1);  // [E4]
}

// A registration made before connect() asked for news that only exist from now on.
void ShowConnected(Family& fam, pstn_ep& ep) {
  Lock(ep.item_lock);
  RenotifyLocked(fam, ep);
  bool watched = ep.item_head != PSTN_NONE || ep.pollers != 0;
  Unlock(ep.item_lock);
  if (watched) PostEp(fam, ep);
}

namespace {

Reason Establish(Family& fam, pstn_ep& ep, const Target& t, const pstn_addr& to,
                 const pstn_addr& from) {
  ConnSlot slot;
  Reason why = TakeConnSlot(fam, t.stack, slot);
  if (why != kReasonNone) return why;
  const auto [idx, conn, lgr] = slot;
  pstn_lgr_ref& ref = Stack(fam).lgrs.Own(LgrIndex(idx));
  const bool queued = IsQueued(ref);
  const int here = queued ? CtlQueues(fam, QueuesBehind(fam, ref)) : 0;
  uint32_t* const taken = here == 0 ? TakenAt(fam, ref, lgr, t.ep_idx) : nullptr;
  // Before there is a SYN for it: of clients that come at once none is beyond the backlog.
  if (taken == nullptr || (!queued && !TakePlace(*taken, t.backlog))) {
    GiveConn(ref, conn);
    return taken != nullptr ? kReasonBacklogFull : ReasonOf(fam, here);
  }
  FillConn(fam, ep, slot, t.ep_idx, t.ep_gen, to, from);
  BeginAnew(fam, to);
  pstn_conn& c = LgrConn(lgr, conn);
  NoteNews(fam.bells);
  // One that can wait takes its place last: a death between the two costs that place.
  if (queued && !TakePlace(*taken, t.backlog)) {
    const ConnEnd e = {&ep, &ref, lgr, &c, 0};
    SetState(ep, PSTN_EP_CONNECTING);
    BeginWait(fam, e, t.backlog);
    NoteWait(fam);
    if (!TakeForWaiting(fam, e)) return kReasonNone;
    (void)StateNow(fam, ep);
  } else {
    SetState(ep, PSTN_EP_ESTABLISHED);
    StoreRelease(c.setup.state, PSTN_CS_SYN);  // [C1]
  }
  AnnounceSyn(fam.bells, lgr, conn);
  return kReasonNone;
}

// The listener may have gone, or have become the kernel's, between the look and the SYN: the thread
// that takes it out of the directory admits SYNs after that, and we look at the directory after
// ours, so that one of the two sees the other. False: no server will come for this SYN, and it is
// taken back.
bool StillListed(Family& fam, const pstn_dir& d, pstn_ep& ep, const Target& t,
                 const pstn_addr& to) {
  bool listed = false;
  bool stable = ReadDirectory(d, [&] {
    listed = false;
    uint32_t next = LoadRelaxed(d.port_head[to.port]);
    for (uint32_t steps = 0; next != 0 && next <= PSTN_DIR_LISTENERS && steps < PSTN_DIR_LISTENERS;
         steps++) {
      const pstn_dir_listener& l = d.listeners[next - 1];
      next = LoadRelaxed(l.next);
      listed = listed || (SameUuid(l.stack, t.stack) && LoadRelaxed(l.ep_idx) == t.ep_idx &&
                          LoadRelaxed(l.ep_gen) == t.ep_gen);
    }
  });
  if (listed || !stable) return true;
  ConnEnd e;
  if (!Resolve(fam, ep, e)) return true;
  uint32_t state = PSTN_CS_SYN;
  if (CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE)) {
    GivePlace(TakenAt(fam, *e.ref, e.lgr, t.ep_idx));
  } else if (state == PSTN_CS_WAITS) {
    (void)CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE);
  }
  // An admitted client has a connection, whatever has become of the listener since.
  if (state != PSTN_CS_SYN && state != PSTN_CS_WAITS &&
      (LoadAcquire(e.peer_ctl().flags) & PSTN_CF_REFUSED) == 0)  // [C2]
    return true;
  FetchOr(e.peer_ctl().flags, PSTN_CF_RST | PSTN_CF_CLOSED);
  (void)GiveUpWait(fam, ep);
  (void)ResetConnection(fam, ep);  // no call has seen it: the endpoint is as before
  StoreRelaxed(ep.error, 0u);
  return false;
}

Reason TryConnect(Family& fam, int fd, pstn_ep& ep, pstn_addr to) PSTN_REQUIRES(ep.setup_lock) {
  if (PortExcluded(fam, to.port)) return kReasonExcludedPort;
  if (fam.elsewhere) return kReasonNetns;
  if (to.scope != 0) return kReasonScopedAddress;
  const pstn_addr asked = to;
  NormaliseDestination(to);
  bool v4_through_v6 = ep.family == AF_INET6 && AddrIsV4(to);
  if (v4_through_v6 && (LoadRelaxed(ep.flags) & PSTN_EPF_V6ONLY) != 0) return kReasonOption;
  if (!DaemonAlive(fam)) {
    CtlReconnect(fam);
    if (!DaemonAlive(fam)) return WhyNoDaemon(fam);
  }
  const pstn_dir& d = *LoadAcquire(fam.dir);  // [T4]
  const bool local = IsLocalAddress(d, to);
  Target t;
  if (!FindListener(fam, d, to, !local, t)) return local ? kReasonNoListener : kReasonNotLocal;
  if (LoadRelaxed(d.closed) != 0) return local ? kReasonPolicy : kReasonNotLocal;
  if (!local && !HasReached(fam, to)) return kReasonNotLocal;
  pstn_addr from = IsNamedByUs(ep) ? pstn_addr{} : LoadAddr(ep.local);
  ChooseSource(local ? to : t.source, from);
  if (!ReservePort(fam, fd, ep, d, from)) return kReasonNoPort;
  from.port = ep.local.port;
  // What the server can't be told in a way that it could believe (claim.cc).
  if (from.port < kFreePorts) return kReasonPrivilegedPort;
  if (local && !SameIp(from, to) && !IsLocalAddress(d, from)) return kReasonNotLocal;
  Reason why = local ? MayReach(fam, ep, asked, to, from) : kReasonNone;
  if (why == kReasonNone) why = Establish(fam, ep, t, to, from);
  if (why != kReasonNone) return why;
  if (!StillListed(fam, d, ep, t, to)) return kReasonPeerGone;
  ShowConnected(fam, ep);
  return kReasonNone;
}

// Two sockets that share a port (SO_REUSEADDR, SO_REUSEPORT) can't both be connected to one
// listener from there.
bool IsConnectedFromThere(Family& fam, const pstn_ep& ep, pstn_addr to) {
  if (LoadRelaxed(ep.local.port) == 0) return false;
  NormaliseDestination(to);
  pstn_addr from = ep.local;
  const pstn_dir* const d = LoadAcquire(fam.dir);  // [T4]
  if (d == nullptr || IsLocalAddress(*d, to)) ChooseSource(to, from);
  return HasSameNames(fam, ep, to, from);
}

// The kernel's connect(), on what is its socket from now on.
long KernelConnect(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len,
                   Reason reason) PSTN_REQUIRES(ep.setup_lock) {
  pstn_addr to;
  const bool named = AddrFromSockaddr(sa, len, ep.family, to);
  if (fam.opt.strict != 0 && reason != kReasonNotLocal) {
    LogStrict(fam, reason, named ? &to : nullptr);
    return -ECONNREFUSED;
  }
  TellFallback(fam, reason, fd, named ? &to : nullptr);
  BecomeKernels(fam, fd, ep, reason);
  Count(Stack(fam).hdr, kCounterKernelConnects);
  return kPass;
}

}  // namespace

long KernelConnectBegun(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len,
                        Reason why) {
  const long r = KernelConnect(fam, fd, ep, sa, len, why);
  if (r != kPass) return r;
  const int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl < 0) return kPass;
  (void)sys::Fcntl(fd, F_SETFL, fl | O_NONBLOCK);
  const long begun = sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  (void)sys::Fcntl(fd, F_SETFL, fl);
  return begun == -EINPROGRESS ? kBegun : begun;
}

bool LeaveWaiting(Family& fam, int fd, pstn_ep& ep, Reason why) {
  Guard g(ep.setup_lock);
  if (LoadAcquire(ep.state) != PSTN_EP_CONNECTING || !GiveUpWait(fam, ep)) return false;  // [E1]
  sockaddr_storage ss = {};
  socklen_t len = sizeof ss;
  auto* const sa = reinterpret_cast<sockaddr*>(&ss);
  (void)AddrToSockaddr(LoadAddr(ep.peer), ep.family, sa, &len);
  (void)ResetConnection(fam, ep);
  StoreRelaxed(ep.error, 0u);
  (void)KernelConnectBegun(fam, fd, ep, sa, len, why);
  PostEp(fam, ep);
  return true;
}

namespace {

// Another network namespace of this host, perhaps. False: the kernel's connect() is still to be
// made, for the reason `why`; at once, if `cut`.
bool ConnectFurther(Family& fam, Call& call, pstn_addr to, Reason& why, bool& cut) {
  pstn_ep& ep = *call.ep();
  AssertHeld(ep.setup_lock);
  NormaliseDestination(to);
  if (why != kReasonNotLocal || !MayNegotiate(fam, to)) return false;
  if (IsNamedByUs(ep)) (void)Unbind(call.fd(), ep);  // an address of this network's alone
  const Negotiated n = Negotiate(fam, call, to);
  why = n.why;
  if (n.became == Became::kOurs) NoteReached(fam, to);
  if (n.became == Became::kNothing) return false;
  cut = n.became == Became::kCut;
  if (cut) return false;
  if (n.became == Became::kTcp) {
    FetchAnd(ep.flags, ~PSTN_EPF_BOUND_AUTO);  // the port has a connection
    FallBack(fam, call.fd(), ep, why);
    Count(Stack(fam).hdr, kCounterKernelConnects);
  }
  return true;
}

constexpr long kAwait = kPass - 1;  // the handshake on the wire is under way, and is waited for

// What came of a connect() that had to be waited for. One that was reset meanwhile is undone.
long Connected(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  if (!Resolve(fam, ep, e)) return -ECONNABORTED;
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  if ((peer & PSTN_CF_RST) == 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) == 0) return 0;
  int error = TakeError(e, peer);
  (void)ResetConnection(fam, ep);
  return error != 0 ? -error : -ECONNABORTED;
}

// A connect() that is under way.
struct Awaited {
  uint64_t which = 0;  // the connection
  long otherwise = 0;  // what the call returns at the end of SO_SNDTIMEO
};

// The handshake on the wire is under way. Of a call that may not wait `otherwise` is the answer.
long OnTheWire(pstn_ep& ep, Awaited& a, long otherwise) {
  FetchOr(ep.flags, PSTN_EPF_CONNECTING);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return otherwise;
  a.which = Which(ep);
  a.otherwise = otherwise;
  return kAwait;
}

// Without ep.setup_lock: the wait may have no end, and others may look at the socket, or end it.
long AwaitWired(Family& fam, pstn_ep& ep, Awaited& a, const Interrupts& since) {
  const long r = kVerbs.wire_await_connected(fam, ep, since);
  if (r != 0) return r == -EINPROGRESS ? a.otherwise : r;
  Guard g(ep.setup_lock);
  if (Which(ep) != a.which) return -ECONNABORTED;
  if (LoadAcquire(ep.state) == PSTN_EP_KERNEL) return kPass;  // [E1] LeaveWaiting
  // Another thread has waited, too, and has found it reset; or has reset it. As the kernel's
  // sock_error().
  if (LoadAcquire(ep.state) == PSTN_EP_NEW) {  // [E1]
    const uint32_t error = Exchange(ep.error, 0u);
    return error != 0 ? -static_cast<long>(error) : -ECONNABORTED;
  }
  FetchAnd(ep.flags, ~PSTN_EPF_CONNECTING);
  return Connected(fam, ep);
}

long ConnectOnce(Family& fam, Call& call, const sockaddr* sa, socklen_t len, Awaited& a) {
  pstn_ep& ep = *call.ep();
  AssertHeld(ep.setup_lock);
  int fd = call.fd();
  uint32_t state = StateNow(fam, ep);
  if (state == PSTN_EP_KERNEL) {
    if (IsDatagram(ep)) return kVerbs.datagram_connect(fam, fd, ep, sa, len);
    ForgetIdleAddress(fd, ep);
    return kPass;
  }
  if (len >= sizeof(sa_family_t) && sa->sa_family == AF_UNSPEC)
    return SockDisconnect(fam, fd, ep, sa, len);
  if (state == PSTN_EP_LISTEN) return kPass;
  if (state == PSTN_EP_CONNECTING) return OnTheWire(ep, a, -EALREADY);
  if (state == PSTN_EP_ESTABLISHED) {
    bool asked = (FetchAnd(ep.flags, ~PSTN_EPF_CONNECTING) & PSTN_EPF_CONNECTING) != 0;
    if ((LoadRelaxed(ep.flags) & PSTN_EPF_DISCONNECTING) != 0) return -EINVAL;
    return asked ? Connected(fam, ep) : -EISCONN;
  }
  pstn_addr to;
  if (!AddrFromSockaddr(sa, len, ep.family, to))
    return KernelConnect(fam, fd, ep, sa, len, kReasonOption);
  if (IsConnectedFromThere(fam, ep, to)) return -EADDRNOTAVAIL;
  Reason why = TryConnect(fam, fd, ep, to);
  bool cut = false;
  if (why != kReasonNone && !ConnectFurther(fam, call, to, why, cut)) {
    fd = call.fd();  // another thread may have closed it meanwhile
    if (cut) return KernelConnectBegun(fam, fd, ep, sa, len, why);
    if (why == kReasonNotLocal) why = kVerbs.wire_connect(fam, fd, ep, to);
    if (why != kReasonNone) return KernelConnect(fam, fd, ep, sa, len, why);
    Count(Stack(fam).hdr, kCounterConnects);
    PSTN_TRACE2(connected, fd, &ep);
    return OnTheWire(ep, a, -EINPROGRESS);
  }
  if (LoadRelaxed(ep.state) == PSTN_EP_KERNEL)
    return (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0 ? -EINPROGRESS : 0;
  Count(Stack(fam).hdr, kCounterConnects);
  PSTN_TRACE2(connected, fd, &ep);
  if (StateNow(fam, ep) == PSTN_EP_CONNECTING) return OnTheWire(ep, a, -EINPROGRESS);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) == 0) return 0;
  FetchOr(ep.flags, PSTN_EPF_CONNECTING);
  return -EINPROGRESS;  // as the kernel, whose handshake is never done by then
}

}  // namespace

long SockConnect(Family& fam, Call& call, const sockaddr* sa, socklen_t len) {
  pstn_ep& ep = *call.ep();
  const Interrupts since;
  Awaited awaited;
  sockaddr_storage own;
  if (!IsKernels(ep)) {                    // else the kernel looks at it first, too
    if (len > sizeof own) return -EINVAL;  // negative, too
    if (!CopyUser(&own, sa, len)) return -EFAULT;
    sa = reinterpret_cast<const sockaddr*>(&own);
  }
  long r;
  {
    Guard g(ep.setup_lock);
    r = ConnectOnce(fam, call, sa, len, awaited);
  }
  if (r == kAwait) return AwaitWired(fam, ep, awaited, since);
  if (r == kBegun && since.Ends(LoadRelaxed(ep.sndtimeo_ns) != 0)) return -EINTR;
  return r == kBegun ? kPass : r;
}

}  // namespace postern
