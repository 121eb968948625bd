// SPDX-License-Identifier: Apache-2.0
// socket.cc - socket, bind, listen, shutdown and names.
#include <netinet/in.h>

#include <cerrno>

#include "base/ip_address.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "control/posternd.h"
#include "endpoint/endpoint.h"
#include "endpoint/kept_options.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/telling.h"
#include "family/turn.h"
#include "offhost/datagram.h"
#include "offhost/wire.h"
#include "offhost/wire_calls.h"
#include "peer/connect.h"
#include "peer/kernel_half.h"
#include "peer/negotiate.h"
#include "peer/port.h"
#include "smcd/hold.h"
#include "sock/socket.h"

namespace postern {

long SockSocket(Family& fam, int domain, int type, int protocol) {
  int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (kind == SOCK_DGRAM && fam.opt.vi_udp != 0 && fam.opt.vi[0] != 0)
    return DatagramSocket(fam, domain, type, protocol);
  if ((domain != AF_INET && domain != AF_INET6) || kind != SOCK_STREAM ||
      (protocol != 0 && protocol != IPPROTO_TCP)) {
    return kPass;
  }
  if (!fam.enabled || LoadRelaxed(fam.aside) != 0 || !EnsureStack(fam)) return kPass;
  uint32_t idx = NewEp(fam, static_cast<uint32_t>(domain));
  if (idx == PSTN_NONE) {
    NoteFallback(fam, kReasonStackFull, -1);
    return kPass;
  }
  pstn_ep& ep = Stack(fam).eps.Own(EpIndex(idx));
  if ((type & SOCK_NONBLOCK) != 0) FetchOr(ep.flags, PSTN_EPF_NONBLOCK);
  long fd = OpenFdFor(fam, ep, idx, true, (type & SOCK_CLOEXEC) != 0);
  if (fd < 0) GiveEp(Stack(fam), idx);
  return fd;
}

namespace {

// A bind to one IPv6 address sets it; accepted sockets inherit it.
void LearnV6Only(int fd, pstn_ep& ep) {
  int v = 0;
  socklen_t len = sizeof v;
  if (ep.family == AF_INET6 &&
      sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_IPV6), static_cast<long>(IPV6_V6ONLY),
                &v, &len) == 0 &&
      v != 0)
    FetchOr(ep.flags, PSTN_EPF_V6ONLY);
}

}  // namespace

// It has a name already, but a wrong address is what the kernel sees first.
static long BindAgain(const pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  sockaddr_storage own;
  if (len > sizeof own) return -EINVAL;  // negative, too
  if (!CopyUser(&own, sa, len)) return -EFAULT;
  if (!IsWholeSockaddr(len, ep.family)) return -EINVAL;
  bool fits = own.ss_family == ep.family || (ep.family == AF_INET && own.ss_family == AF_UNSPEC);
  return fits ? -EINVAL : -EAFNOSUPPORT;
}

// The kernel would say that the port is taken, unless something else is wrong: another socket of
// its own is asked for that, so that this one stays unbound.
static long BindTaken(const pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  const int fd = sys::Socket(static_cast<int>(ep.family), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -EADDRINUSE;
  ApplyOptions(fd, ep);
  const long r = sys::Call(SYS_bind, fd, sa, static_cast<long>(len));
  sys::Close(fd);
  return r < 0 ? r : -EADDRINUSE;
}

long SockBind(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  Guard g(ep.setup_lock);
  FetchAnd(ep.flags, ~PSTN_EPF_PORT_GIVEN_UP);
  if (LoadRelaxed(ep.state) == PSTN_EP_KERNEL)
    return IsDatagram(ep) ? DatagramBind(fam, fd, ep, sa, len) : kPass;
  const bool again = LoadRelaxed(ep.state) != PSTN_EP_NEW;
  // A port that the program has not asked for goes with its connection.
  if (again && ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) != 0 || !HasLostPort(fam, ep)))
    return BindAgain(ep, sa, len);
  const pstn_addr before = LoadAddr(ep.local);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) != 0) {
    long r = Unbind(fd, ep);
    if (r < 0) return r;
    if (again) StoreAddr(ep.local, before);  // which shows until there is another
  }
  ApplyOptions(fd, ep);  // SO_REUSEADDR, IPV6_V6ONLY: they matter to the kernel's bind
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  pstn_addr name;
  sockaddr_storage own;
  const bool named = len <= sizeof own && CopyUser(&own, sa, len) &&
                     AddrFromSockaddr(reinterpret_cast<sockaddr*>(&own), len, ep.family, name);
  if (named && name.port != 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) == 0 &&
      IsTakenByConnection(fam, ep, name))
    return BindTaken(ep, sa, len);
  long r = sys::Call(SYS_bind, fd, sa, len);
  if (r == -EADDRINUSE && named && name.port != 0 &&
      (WireGivePort(fam, name.port) || CacheGivePort(fam, name.port)))
    r = sys::Call(SYS_bind, fd, sa, len);
  if (r < 0) return r;
  FetchOr(ep.flags, PSTN_EPF_BOUND);
  LearnLocal(fd, ep);
  if (named && name.port == 0) ForgetPast(fam, ep.local.port);
  return 0;
}

// Why a listener is not in the directory: the kernel's clients alone reach it.
static Reason WhyUnlisted(const Family& fam, int error) {
  switch (error) {
    case -ENOTCONN:
      return WhyNoDaemon(fam);
    case -ENOSPC:
      return kReasonDirectoryFull;
    case -EMFILE:
      return kReasonNoDescriptor;
    default:
      return kReasonDaemonRefused;
  }
}

long SockListen(Family& fam, int fd, pstn_ep& ep, int backlog) {
  Guard g(ep.setup_lock);
  FetchAnd(ep.flags, ~PSTN_EPF_PORT_GIVEN_UP);
  uint32_t state = LoadRelaxed(ep.state);
  if (state == PSTN_EP_KERNEL) return kPass;
  if (state != PSTN_EP_NEW && state != PSTN_EP_LISTEN) return -EINVAL;
  if (state == PSTN_EP_NEW && (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) != 0) {
    long r = Unbind(fd, ep);
    if (r < 0) return r;
  }
  ApplyOptions(fd, ep);
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  MarkListener(fam, fd, ep);
  if (state == PSTN_EP_NEW) WireBeforeListen(fam, ep);
  // Whoever sees the kernel listen may connect at once: until posternd lists it, past us. What the
  // first listener of a process has to ask for besides is asked for before.
  (void)CtlQueues(fam, kOwnQueues);
  long r = sys::Call(SYS_listen, fd, static_cast<long>(backlog));
  if (r < 0) return r;
  if (state == PSTN_EP_NEW) ResetForListen(ep);
  LearnLocal(fd, ep);
  LearnV6Only(fd, ep);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) == 0) ForgetPast(fam, ep.local.port);
  StoreRelaxed(ep.backlog, backlog < 0 || backlog > 4096 ? 4096u : static_cast<uint32_t>(backlog));
  if (PortExcluded(fam, ep.local.port)) {
    FallBack(fam, fd, ep, kReasonExcludedPort);
    return 0;
  }
  // The kernel's listener never blocks: accept() merges two queues, and waits for both itself.
  int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl >= 0) (void)sys::Fcntl(fd, F_SETFL, fl | O_NONBLOCK);
  if (state == PSTN_EP_NEW) {
    StoreRelaxed(ep.acceptor, 0u);
    StoreRelaxed(ep.unlisted, 0u);
    StoreRelaxed(ep.waits, 0u);
    StoreRelaxed(ep.misfit_ms, 0u);
  }
  SetState(ep, PSTN_EP_LISTEN);
  WatchListener(fam, fd, ep);
  int p = CtlListen(fam, ep, fd);
  if (p == 0) {
    FetchOr(ep.flags, PSTN_EPF_PUBLISHED);
    Count(Stack(fam).hdr, kCounterListens);
  } else {
    StoreRelaxed(ep.reason, WhyUnlisted(fam, p));
  }
  WireListen(fam, fd, ep);
  if (state == PSTN_EP_LISTEN) {  // again, perhaps with a larger backlog: clients may wait for that
    AdmitSyns(fam, kAllLooks);
    AdmitWaiting(fam, ep);
  }
  return 0;
}

static bool HasPeer(Family& fam, pstn_ep& ep, uint32_t state) {
  ConnEnd e;
  return state == PSTN_EP_ESTABLISHED && Resolve(fam, ep, e) &&
         (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) == 0 &&
         (LoadRelaxed(e.peer_ctl().flags) & PSTN_CF_RST) == 0 &&
         !BothEnded(e, LoadRelaxed(e.peer_ctl().flags));
}

// The kernel's socket has served before, and its name may say so: the program has none, or has
// bound it to any address.
static bool MayShowOldName(const pstn_ep& ep) {
  const uint32_t flags = LoadRelaxed(ep.flags);
  return (flags & PSTN_EPF_PORT_GIVEN_UP) != 0 ||
         ((flags & PSTN_EPF_BOUND) != 0 && AddrIsAny(LoadAddr(ep.local)));
}

// getsockname() of the kernel's socket, which may show a port that it has given up.
static long NameWithoutPort(int fd, const pstn_ep& ep, sockaddr* sa, socklen_t* len) {
  sockaddr_storage ss;
  socklen_t room = sizeof ss;
  pstn_addr name;
  long r = sys::Call(SYS_getsockname, fd, &ss, &room);
  socklen_t had;
  if (r < 0 || BadPointer(sa) || !GetUser(had, len) || static_cast<int>(had) < 0 ||
      !AddrFromSockaddr(reinterpret_cast<sockaddr*>(&ss), room, ep.family, name))
    return kPass;
  // It was bound to an address once, and keeps that of its last connection.
  if (!AddrIsAny(name) && NeverConnected(fd)) {
    const uint16_t port = name.port;
    name = {};
    name.port = port;
  } else if (!AddrIsAny(name) || name.port != ep.kernel_port) {
    return kPass;
  }
  if (name.port == ep.kernel_port) name.port = 0;
  return AddrToSockaddr(name, ep.family, sa, len) ? 0 : -EFAULT;
}

long SockGetName(Family& fam, int fd, pstn_ep& ep, sockaddr* sa, socklen_t* len, bool peer) {
  uint32_t state = StateNow(fam, ep);
  bool moved = state == PSTN_EP_KERNEL && (LoadRelaxed(ep.flags) & PSTN_EPF_EXPORTED) != 0 &&
               ep.peer.port != 0;
  if (state == PSTN_EP_KERNEL && !peer && MayShowOldName(ep))
    return NameWithoutPort(fd, ep, sa, len);
  if ((state == PSTN_EP_KERNEL && !moved) || state == PSTN_EP_LISTEN) return kPass;
  if (peer && !moved && !HasPeer(fam, ep, state)) return -ENOTCONN;
  socklen_t had;
  if (!GetUser(had, len)) return -EFAULT;
  if (static_cast<int>(had) < 0) return -EINVAL;
  if (BadPointer(sa) && had != 0) return -EFAULT;
  const auto give = [&](const pstn_addr& name) -> long {
    return AddrToSockaddr(name, ep.family, sa, len) ? 0 : -EFAULT;
  };
  if (peer && moved) {  // the connection keeps its names; the kernel says whether it has ended
    sockaddr_storage ss;
    socklen_t room = sizeof ss;
    long r = sys::Call(SYS_getpeername, fd, &ss, &room);
    return r == 0 ? give(LoadAddr(ep.peer)) : r;
  }
  if (peer) return give(LoadAddr(ep.peer));
  if (state == PSTN_EP_NEW) {
    const uint32_t flags = LoadRelaxed(ep.flags);
    if ((flags & (PSTN_EPF_BOUND_AUTO | PSTN_EPF_PORT_GIVEN_UP)) == 0) return kPass;
    pstn_addr none = {};  // the port that we chose is not the program's business yet
    if ((flags & PSTN_EPF_BOUND_AUTO) == 0) none.port = ep.kernel_port;
    return give(none);
  }
  return give(LoadAddr(ep.local));
}

static long ShutUnconnected(Family& fam, int fd, pstn_ep& ep, int how) {
  Guard g(ep.setup_lock);
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_NEW) {              // an error, and yet it counts from now on
    FetchOr(ep.flags, PSTN_EPF_DIRTY | (how != SHUT_WR ? PSTN_EPF_SHUT_RD : 0u) |
                          (how != SHUT_RD ? PSTN_EPF_SHUT_WR : 0u));
    long r = sys::Call(SYS_shutdown, fd, static_cast<long>(how));
    PostEp(fam, ep);
    return r;
  }
  if (state != PSTN_EP_LISTEN) return -ENOTCONN;  // since a moment: as if we had come before
  if (how == SHUT_WR) return kPass;
  // The kernel stops listening; so do we, and threads in accept() see it. It may listen again.
  long r = sys::Call(SYS_shutdown, fd, static_cast<long>(how));
  UnlistenEp(fam, fd, ep);
  return r;
}

// In its handshake, whichever direction is shut: as Linux does it, the attempt is over. False: its
// handshake was over before.
static bool ShutConnecting(Family& fam, int fd, pstn_ep& ep) {
  Guard g(ep.setup_lock);
  return LoadAcquire(ep.state) == PSTN_EP_CONNECTING && DisconnectEp(fam, fd, ep);  // [E1]
}

long SockShutdown(Family& fam, int fd, pstn_ep& ep, int how) {
  uint32_t state = StateNow(fam, ep);
  if (state == PSTN_EP_KERNEL) {
    if (IsDatagram(ep) && (how == SHUT_WR || how == SHUT_RDWR)) FetchOr(ep.flags, PSTN_EPF_SHUT_WR);
    return kPass;
  }
  if (how < SHUT_RD || how > SHUT_RDWR) return -EINVAL;
  if (state == PSTN_EP_NEW || state == PSTN_EP_LISTEN) return ShutUnconnected(fam, fd, ep, how);
  if (state == PSTN_EP_CONNECTING)
    return ShutConnecting(fam, fd, ep) ? 0
                                       : SockShutdown(fam, fd, ep, how);  // it has its connection
  // As if success had been reported.
  bool asked = (FetchAnd(ep.flags, ~PSTN_EPF_CONNECTING) & PSTN_EPF_CONNECTING) != 0;
  ConnEnd e;
  if (!Resolve(fam, ep, e)) return -ENOTCONN;
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  if ((peer & PSTN_CF_RST) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) != 0 ||
      BothEnded(e, peer)) {
    if (asked) FetchOr(ep.flags, PSTN_EPF_DISCONNECTING);  // connect() is EINVAL from now on
    AnnounceLocal(fam.bells, e);  // an edge, as with the kernel, though nothing has changed
    return -ENOTCONN;
  }
  NoteNews(fam.bells);
  if (how != SHUT_RD && !HasEnded(e)) {
    Lock(ep.tx.lock);  // after what another thread is writing
    if (!StillHere(e)) {
      const uint32_t now = LoadRelaxed(ep.state);
      Unlock(ep.tx.lock);
      const bool again = now == PSTN_EP_ESTABLISHED || now == PSTN_EP_KERNEL || now == PSTN_EP_NEW;
      return again ? SockShutdown(fam, fd, ep, how) : -ENOTCONN;
    }
    FetchOr(ep.flags, PSTN_EPF_SHUT_WR);
    AssertHeld(e.ep->tx.lock);
    (void)HoldRelease(e);
    const bool second = (peer & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0;
    FetchOr(e.ctl().flags, PSTN_CF_FIN | (second ? PSTN_CF_SECOND : 0u));
    Unlock(ep.tx.lock);
    AnnounceData(fam.bells, e);
    EndPeersHold(fam.bells, e);
  }
  if (how != SHUT_WR) {
    FetchOr(ep.flags, PSTN_EPF_SHUT_RD);
  }
  if (HasEnded(e) && (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0) {
    FetchOr(e.ctl().flags, PSTN_CF_RD_SHUT);
    AnnounceSpace(fam.bells, e);  // a writer that waits for space has its answer
    // The engine answers data by a RST from now on. A program looks when it writes.
    if (kVerbs.wire_is_end(fam, ep.lgr_idx, ep.conn_idx)) AnnounceData(fam.bells, e);
  }
  AnnounceLocal(fam.bells, e);
  (void)WireWrote(fam);
  return 0;
}

}  // namespace postern
