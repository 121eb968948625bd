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

#include "base/sys.h"
#include "sock/datagram.h"
#include "sock/negotiate.h"
#include "sock/sock.h"

namespace postern {
namespace {

struct Target {
  pstn_uuid stack;
  uint32_t ep_idx, ep_gen, backlog;
  pstn_addr source;  // of ours; only for what is not local
};

constexpr int kSeqRetries = 1000;

bool SameIp(const pstn_addr& a, const pstn_addr& b) { return memcmp(a.ip, b.ip, 16) == 0; }

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
    uint64_t before = LoadAcquire(d.seq);
    if ((before & 1u) != 0) {
      CpuRelax();
      continue;
    }
    fn();
    FullFence();  // what fn loaded precedes the second look at the version
    if (LoadRelaxed(d.seq) == before) return true;
  }
  return false;
}

// Several listeners may share a port (SO_REUSEPORT): they take turns.
// Those of other network namespaces (`learnt`) are known by addresses that are not local.
bool FindListener(const pstn_dir& d, const pstn_addr& to, bool learnt, Target& out) {
  static uint32_t turn = 0;
  uint32_t mine = FetchAdd(turn, 1u);
  bool found = false;
  bool stable = ReadDirectory(d, [&] {
    int best = 0;
    uint32_t same = 0;
    found = false;
    uint32_t next = LoadRelaxed(d.port_head[to.port]);
    for (uint32_t steps = 0; next != 0 && next <= PSTN_DIR_LISTENERS && steps < PSTN_DIR_LISTENERS;
         steps++) {
      const pstn_dir_listener& l = d.listeners[next - 1];
      next = LoadRelaxed(l.next);
      int fit = (LoadRelaxed(l.learnt) != 0) == learnt ? Fit(l, to) : 0;
      if (fit == 0 || fit < best) continue;
      same = fit > best ? 1 : same + 1;
      best = fit;
      if (same > 1 && mine % same != 0) continue;
      out = {l.stack, l.ep_idx, l.ep_gen, l.backlog, l.source};
      found = true;
    }
  });
  return stable && found;
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
  if (AddrIsV4(to)) {
    to.ip[12] = 127;
    to.ip[15] = 1;
  } else {
    to.ip[15] = 1;
  }
}

// The source address that the kernel's routing would choose for a local destination.
void ChooseSource(const pstn_addr& to, pstn_addr& from) {
  if (!AddrIsAny(from) && from.port != 0) return;  // bound to an address
  uint16_t port = from.port;
  memcpy(from.ip, to.ip, 16);
  if (AddrIsV4(to) && to.ip[12] == 127) {
    from.ip[13] = from.ip[14] = 0;
    from.ip[15] = 1;
  }
  from.port = port;
}

}  // namespace

void FillConn(pstn_ep& ep, const ConnSlot& slot, uint32_t listener_idx, uint32_t listener_gen,
              const pstn_addr& to, const pstn_addr& from) {
  const auto [idx, conn, lgr] = slot;
  pstn_stack& s = Stack();
  pstn_lgr_ref& ref = s.lgrs[idx];
  uint32_t& conns_hw = LgrHdr(lgr).conns_hw;
  for (uint32_t seen = LoadRelaxed(conns_hw);
       seen <= conn && !CompareExchange(conns_hw, seen, conn + 1);) {
  }
  pstn_conn& c = LgrConn(lgr, conn);
  uint32_t gen = LoadRelaxed(c.setup.gen) + 1;
  StoreRelaxed(c.setup.gen, gen);  // of the slot's last use, others may still ask (IsOver)
  memset(static_cast<void*>(&c.ctl), 0, sizeof c - sizeof c.setup);
  c.setup.listener_idx = listener_idx;
  c.setup.listener_gen = listener_gen;
  c.setup.client = from;
  c.setup.server = to;
  c.ctl[0].syn_ns = MonotonicNs();
  StoreRelaxed(ep.lgr_idx, idx);
  ep.conn_idx = conn;
  ep.conn_gen = gen;
  ep.side = 0;
  ep.local = from;
  ep.peer = to;
  StoreRelease(ref.conn_ep[conn], EpIdx(s, ep) + 1);
}

// A registration made before connect() asked for news that only exist from now on.
void ShowConnected(pstn_ep& ep) {
  Lock(ep.item_lock);
  RenotifyLocked(ep);
  bool watched = ep.item_head != PSTN_NONE || ep.pollers != 0;
  Unlock(ep.item_lock);
  if (watched) PostEp(ep);
}

namespace {

Reason Establish(pstn_ep& ep, const Target& t, const pstn_addr& to, const pstn_addr& from) {
  ConnSlot slot;
  Reason why = TakeConnSlot(t.stack, slot);
  if (why != kReasonNone) return why;
  const auto [idx, conn, lgr] = slot;
  uint32_t& pending = LgrHdr(lgr).pending[t.ep_idx % PSTN_PENDING];
  if (LoadRelaxed(pending) > t.backlog) {
    GiveConn(Stack().lgrs[idx], conn);
    return kReasonBacklogFull;
  }
  FillConn(ep, slot, t.ep_idx, t.ep_gen, to, from);
  pstn_conn& c = LgrConn(lgr, conn);
  NoteNews(g_proc.bells);
  StoreRelease(ep.state, PSTN_EP_ESTABLISHED);
  FetchAdd(pending, 1u);
  StoreRelease(c.setup.state, PSTN_CS_SYN);
  AnnounceSyn(g_proc.bells, lgr, conn);
  return kReasonNone;
}

// The listener may have gone, or have become the kernel's, between the look and the SYN: whoever
// takes it out of the directory admits SYNs after that, and we look at the directory after ours, so
// that one of the two sees the other. False: nobody will come for this SYN, and it is taken back.
bool StillListed(const pstn_dir& d, pstn_ep& ep, const Target& t, const pstn_addr& to) {
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
  if (!Resolve(ep, e)) return true;
  uint32_t state = PSTN_CS_SYN;
  if (CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE)) {
    FetchOr(e.peer_ctl().flags, PSTN_CF_RST | PSTN_CF_CLOSED);
    FetchSub(LgrHdr(e.lgr).pending[t.ep_idx % PSTN_PENDING], 1u);
  }
  if (state == PSTN_CS_ESTABLISHED) return true;
  (void)ResetConnection(ep);  // nobody has seen it: the endpoint is as before
  StoreRelaxed(ep.error, 0u);
  return false;
}

Reason TryConnect(int fd, pstn_ep& ep, pstn_addr to) {
  if (PortExcluded(to.port)) return kReasonExcludedPort;
  if (g_proc.elsewhere) return kReasonNetns;
  if (to.scope != 0) return kReasonScopedAddress;
  NormaliseDestination(to);
  bool v4_through_v6 = ep.family == AF_INET6 && AddrIsV4(to);
  if (v4_through_v6 && (LoadRelaxed(ep.flags) & PSTN_EPF_V6ONLY) != 0) return kReasonOption;
  if (!DaemonAlive()) {
    CtlReconnect();
    if (!DaemonAlive()) return kReasonNoDaemon;
  }
  const pstn_dir& d = *LoadAcquire(g_proc.dir);
  const bool local = IsLocalAddress(d, to);
  Target t;
  if (!FindListener(d, to, !local, t)) return local ? kReasonNoListener : kReasonNotLocal;
  if (!ReservePort(fd, ep, d)) return kReasonNoPort;
  pstn_addr from = ep.local;
  ChooseSource(local ? to : t.source, from);
  // What the server can't be told in a way that it could believe (claim.cc).
  if (from.port < kFreePorts) return kReasonPrivilegedPort;
  if (local && !SameIp(from, to) && !IsLocalAddress(d, from)) return kReasonNotLocal;
  Reason why = Establish(ep, t, to, from);
  if (why != kReasonNone) return why;
  if (!StillListed(d, ep, t, to)) return kReasonNoListener;
  ShowConnected(ep);
  return kReasonNone;
}

// Another network namespace of this host, perhaps. False: the kernel's connect() is still to be
// made, for the reason `why`.
bool ConnectFurther(int fd, pstn_ep& ep, pstn_addr to, Reason& why) {
  NormaliseDestination(to);
  if (why != kReasonNotLocal || !MayNegotiate(to)) return false;
  Hold hold;
  hold.On(ep);
  const Negotiated n = Negotiate(hold, fd, ep, to);
  why = n.why;
  if (n.became == Became::kNothing) return false;
  if (n.became == Became::kTcp) {
    FetchAnd(ep.flags, ~PSTN_EPF_BOUND_AUTO);  // the port has a connection
    FallBack(hold.NumberOf(fd), ep, why);
    Count(Stack().hdr, kCounterKernelConnects);
  }
  return true;
}

// The kernel's connect(), on what is its socket from now on.
long KernelConnect(int fd, pstn_ep& ep, Reason reason) {
  if (g_proc.opt.strict != 0 && reason != kReasonNotLocal) return -ECONNREFUSED;
  BecomeKernels(fd, ep, reason);
  Count(Stack().hdr, kCounterKernelConnects);
  return kPass;
}

// What came of a connect() that had to be waited for. One that was reset meanwhile is undone.
long Connected(pstn_ep& ep) {
  ConnEnd e;
  if (!Resolve(ep, e)) return -ECONNABORTED;
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);
  if ((peer & PSTN_CF_RST) == 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) == 0) return 0;
  int error = TakeError(e, peer);
  (void)ResetConnection(ep);
  return error != 0 ? -error : -ECONNABORTED;
}

// connect() once more, while the handshake lasts.
long AgainWired(pstn_ep& ep) {
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return -EALREADY;
  Hold hold;
  const long r = WireAwaitConnected(hold, ep);
  FetchAnd(ep.flags, ~PSTN_EPF_CONNECTING);
  return r == 0 ? Connected(ep) : r == -EINPROGRESS ? -EALREADY : r;
}

// The handshake on the wire has begun.
long ConnectWired(pstn_ep& ep) {
  Count(Stack().hdr, kCounterConnects);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) == 0) {
    Hold hold;
    const long r = WireAwaitConnected(hold, ep);
    if (r == 0) return Connected(ep);
    FetchOr(ep.flags, PSTN_EPF_CONNECTING);
    return r;
  }
  FetchOr(ep.flags, PSTN_EPF_CONNECTING);
  return -EINPROGRESS;
}

}  // namespace

long SockConnect(int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  Guard g(ep.setup_lock);
  uint32_t state = LoadAcquire(ep.state);
  if (state == PSTN_EP_KERNEL) return IsDatagram(ep) ? DatagramConnect(fd, ep, sa, len) : kPass;
  if (len > sizeof(sockaddr_storage)) return -EINVAL;  // negative, too
  if (len != 0 && BadPointer(sa)) return -EFAULT;
  if (len >= sizeof(sa_family_t) && sa->sa_family == AF_UNSPEC)
    return SockDisconnect(fd, ep, sa, len);
  if (state == PSTN_EP_LISTEN) return kPass;
  if (state == PSTN_EP_CONNECTING) return AgainWired(ep);
  if (state == PSTN_EP_ESTABLISHED) {
    bool asked = (FetchAnd(ep.flags, ~PSTN_EPF_CONNECTING) & PSTN_EPF_CONNECTING) != 0;
    if ((LoadRelaxed(ep.flags) & PSTN_EPF_DISCONNECTING) != 0) return -EINVAL;
    return asked ? Connected(ep) : -EISCONN;
  }
  pstn_addr to;
  if (!AddrFromSockaddr(sa, len, ep.family, to)) return KernelConnect(fd, ep, kReasonOption);
  Reason why = TryConnect(fd, ep, to);
  if (why != kReasonNone && !ConnectFurther(fd, ep, to, why)) {
    if (why == kReasonNotLocal) why = WireConnect(fd, ep, to);
    if (why != kReasonNone) return KernelConnect(fd, ep, why);
    return ConnectWired(ep);
  }
  if (LoadRelaxed(ep.state) == PSTN_EP_KERNEL)
    return (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0 ? -EINPROGRESS : 0;
  Count(Stack().hdr, kCounterConnects);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) == 0) return 0;
  FetchOr(ep.flags, PSTN_EPF_CONNECTING);
  return -EINPROGRESS;  // as the kernel, whose handshake is never done by then
}

}  // namespace postern
