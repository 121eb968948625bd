// SPDX-License-Identifier: Apache-2.0
// kernel_half.cc - the kernel's socket behind an endpoint: how it comes, and how it takes over.

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/kept_options.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/module.h"
#include "family/telling.h"
#include "family/verbs.h"
#include "peer/close.h"
#include "peer/kernel_half.h"
#include "peer/negotiate.h"
#include "peer/port.h"

namespace postern {

long OpenFdFor(Family& fam, pstn_ep& ep, uint32_t ep_idx, bool want_bound, bool cloexec) {
  TableChange change(fam);
  CachedFd c = CacheTake(fam, ep.family, want_bound, cloexec);
  if (c.fd < 0) {
    int type = SOCK_STREAM | (cloexec ? SOCK_CLOEXEC : 0);
    long r = ModuleSocket(fam, static_cast<int>(ep.family), type);
    if (r == -EMFILE || r == -ENFILE) {
      (void)CacheFlush(fam);
      r = ModuleSocket(fam, static_cast<int>(ep.family), type);
    }
    if (r < 0) return r;
    Count(Stack(fam).hdr, kCounterFdcacheMisses);
    c = kNoCachedFd;
    c.fd = static_cast<int>(r);
    c.cloexec = cloexec;
  } else {
    Count(Stack(fam).hdr, kCounterFdcacheHits);
  }
  ep.kernel_port = c.name.port;
  if (cloexec) FetchOr(ep.flags, PSTN_EPF_CLOEXEC);
  if (c.name.port != 0) {
    FetchOr(ep.flags, PSTN_EPF_BOUND_AUTO);
    if (want_bound) StoreAddr(ep.local, c.name);  // else it has its listener's: accepted
    KeepV6only(ep);
  }
  SetFd(fam, c.fd, PSTN_FD_EP | ep_idx);
  return c.fd;
}

void FallBack(Family& fam, int fd, pstn_ep& ep, Reason reason) {
  StoreRelaxed(ep.reason, reason);
  NoteFallback(fam, reason, fd, LoadRelaxed(ep.state) == PSTN_EP_LISTEN ? &ep.local : nullptr);
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  // The program that will accept from it may know nothing of handshakes.
  if ((FetchAnd(ep.flags, ~PSTN_EPF_SMC) & PSTN_EPF_SMC) != 0) (void)MarkSmc(fd, false);
  ApplyOptions(fd, ep);
  SetState(ep, PSTN_EP_KERNEL);
  MoveItemsToKernel(fam, fd, ep);
}

namespace {

// The kernel's socket gives up the port that we chose: a listener that stops does, if the port was
// the kernel's choice. The socket itself stays, with its options, and for its duplicates.
long GiveUpPort(int fd) {
  const long r = sys::Call(SYS_listen, fd, 0L);
  if (r < 0) return r;
  const sockaddr none = {AF_UNSPEC, {}};
  return sys::Call(SYS_connect, fd, &none, static_cast<long>(sizeof none));
}

}  // namespace

long BindWithoutPort(int fd, const pstn_ep& ep, pstn_addr at) {
  sockaddr_storage ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  at.port = 0;
  AddrToSockaddr(at, ep.family, sa, &len);
  return sys::Call(SYS_bind, fd, sa, static_cast<long>(len));
}

namespace {

// The address that it was bound to stays, and the kernel would connect from there.
long ForgetAddress(int fd, const pstn_ep& ep) {
  int before = 0, on = 1;
  socklen_t size = sizeof before;
  const auto option = [fd](long call, int& value, auto size_of) {
    return sys::Call(call, fd, static_cast<long>(IPPROTO_IP),
                     static_cast<long>(IP_BIND_ADDRESS_NO_PORT), &value, size_of);
  };
  if (ep.family == AF_INET6) {
    const int v6only = (LoadRelaxed(ep.flags) & PSTN_EPF_V6ONLY) != 0;
    (void)KernelSetOpt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
  }
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_KERNEL_OPTIONS) != 0)
    (void)option(SYS_getsockopt, before, &size);
  long r = option(SYS_setsockopt, on, sizeof on);
  if (r < 0) return r;
  r = BindWithoutPort(fd, ep, {});
  (void)option(SYS_setsockopt, before, sizeof before);
  return r;
}

}  // namespace

bool NeverConnected(int fd) {
  struct {
    uint8_t state, others[135];
    uint32_t segs_out, segs_in;  // what C's library does not know of TCP_INFO
  } info = {};
  static_assert(sizeof info == 144);
  socklen_t len = sizeof info;
  return sys::Call(SYS_getsockopt, fd, static_cast<long>(IPPROTO_TCP), static_cast<long>(TCP_INFO),
                   &info, &len) == 0 &&
         info.state == TCP_CLOSE && info.segs_in == 0 && info.segs_out == 0;
}

void ForgetIdleAddress(int fd, const pstn_ep& ep) {
  constexpr uint32_t kHas = PSTN_EPF_PORT_GIVEN_UP | PSTN_EPF_BOUND;
  if ((LoadRelaxed(ep.flags) & kHas) == PSTN_EPF_PORT_GIVEN_UP && NeverConnected(fd))
    (void)ForgetAddress(fd, ep);
}

long LoseName(int fd, const pstn_ep& ep) {
  const long r = GiveUpPort(fd);
  return r < 0 ? r : ForgetAddress(fd, ep);
}

namespace {

bool IsBoundByProgram(const pstn_ep& ep) { return (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) != 0; }

}  // namespace

long Unbind(int fd, pstn_ep& ep) {
  const long r = IsBoundByProgram(ep) ? GiveUpPort(fd) : LoseName(fd, ep);
  if (r < 0) return r;
  FetchAnd(ep.flags, ~PSTN_EPF_BOUND_AUTO);
  pstn_addr name = LoadAddr(ep.local);
  if (!IsBoundByProgram(ep)) name = {};
  name.port = 0;
  StoreAddr(ep.local, name);
  ep.kernel_port = 0;
  return 0;
}

void ShutKernelSocket(int fd, uint32_t flags) {
  if ((flags & PSTN_EPF_SHUT_WR) != 0)
    (void)sys::Call(SYS_shutdown, fd, static_cast<long>(SHUT_WR));
  if ((flags & PSTN_EPF_SHUT_RD) != 0)
    (void)sys::Call(SYS_shutdown, fd, static_cast<long>(SHUT_RD));
}

void BecomeKernels(Family& fam, int fd, pstn_ep& ep, Reason why) {
  // Not with a port that we chose: it would be in the way of a bind() where a connect() fails.
  const uint16_t port = ep.local.port;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) != 0 && Unbind(fd, ep) == 0) {
    ShutKernelSocket(fd, LoadRelaxed(ep.flags));  // the marks of a shutdown() have gone with it
    ep.kernel_port = port;                        // Linux goes on showing it
    FetchOr(ep.flags, PSTN_EPF_PORT_GIVEN_UP);
  }
  FallBack(fam, fd, ep, why);
}

bool LeaveUnconnected(Family& fam, int fd, pstn_ep& ep, Reason why) {
  Guard g(ep.setup_lock);
  if (LoadAcquire(ep.state) != PSTN_EP_NEW) return false;  // [E1]
  BecomeKernels(fam, fd, ep, why);
  return true;
}

bool LearnName(int fd, uint32_t family, pstn_addr& name) {
  sockaddr_storage ss;
  socklen_t len = sizeof ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  return sys::Call(SYS_getsockname, fd, sa, &len) == 0 && AddrFromSockaddr(sa, len, family, name);
}

void LearnLocal(int fd, pstn_ep& ep) { (void)LearnName(fd, ep.family, ep.local); }

void UnlistenEp(Family& fam, int fd, pstn_ep& ep) {
  StopListening(fam, ep, PSTN_EP_NEW);
  int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl >= 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) == 0)
    (void)sys::Fcntl(fd, F_SETFL, fl & ~O_NONBLOCK);
  LearnLocal(fd, ep);
  if (ep.local.port == 0) FetchAnd(ep.flags, ~PSTN_EPF_BOUND);
  PostEp(fam, ep);
}

bool DisconnectEp(Family& fam, int fd, pstn_ep& ep) {
  const bool named = IsNamedByUs(ep);
  kVerbs.wire_give_up(fam, ep);
  (void)GiveUpWait(fam, ep);
  // [E1]
  if (LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED && !ResetConnection(fam, ep)) return false;
  FetchAnd(ep.flags, ~(PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR));
  // A port that the program did not ask for is given up, and Linux goes on showing it.
  const uint16_t port = ep.local.port;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) == 0 || Unbind(fd, ep) < 0) LearnLocal(fd, ep);
  const bool holds = (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) != 0;
  ep.kernel_port = holds ? ep.local.port : named ? port : uint16_t{0};
  if (named && !holds) FetchOr(ep.flags, PSTN_EPF_PORT_GIVEN_UP);
  if (ep.local.port == 0) FetchAnd(ep.flags, ~PSTN_EPF_BOUND_AUTO);
  PostEp(fam, ep);
  return true;
}

long SockDisconnect(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len) {
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_KERNEL) return kPass;
  // The kernel's socket has no connection: this checks the arguments.
  long r = sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  if (r < 0) return r;
  if (state == PSTN_EP_LISTEN) {
    UnlistenEp(fam, fd, ep);
    return 0;
  }
  (void)DisconnectEp(fam, fd, ep);
  return 0;
}

}  // namespace postern
