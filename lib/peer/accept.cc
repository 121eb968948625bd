// SPDX-License-Identifier: Apache-2.0
// accept.cc - accept(): what the listener's queue has (accept_queue.cc), what the kernel's has, and
// what posternd keeps since its handshake. And the marks of listeners, which handshakes begin with.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "control/acceptor.h"
#include "control/control_smc.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/inherit.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "event/poll.h"
#include "event/spin.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/interrupts.h"
#include "family/verbs.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/kernel_half.h"
#include "peer/negotiate.h"
#include "peer/port.h"

namespace postern {
namespace {

constexpr uint32_t kKernelTurn = 8;  // so often the kernel's queue is asked first

long AcceptOurs(Family& fam, const Call& call, uint32_t idx, sockaddr* sa, socklen_t* len,
                int flags) {
  pstn_ep& listener = *call.ep();
  StackMap& s = Stack(fam);
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  long fd = OpenFdFor(fam, ep, idx, false, (flags & SOCK_CLOEXEC) != 0);
  if (fd < 0) {  // out of fds: it stays first in the queue, as with the kernel
    RequeueEmbryo(fam, listener, idx);
    return fd;
  }
  if ((flags & SOCK_NONBLOCK) != 0) FetchOr(ep.flags, PSTN_EPF_NONBLOCK);
  ep.owner_slot = fam.slot;
  SetState(ep, PSTN_EP_ESTABLISHED);
  BeginAnew(fam, LoadAddr(ep.local));
  Count(s.hdr, kCounterAccepts);
  PSTN_TRACE2(accepted, fd, &ep);
  if ((LoadRelaxed(listener.flags) & PSTN_EPF_KERNEL_OPTIONS) != 0) {
    const ByNumber asks(call);
    InheritKernelOptions(call.fd(), listener, static_cast<int>(fd), ep);
    kVerbs.wire_inherit(fam, static_cast<int>(fd), ep);
  }
  socklen_t room = 0;
  long bad = 0;
  if (sa != nullptr) {
    if (!GetUser(room, len)) {
      bad = -EFAULT;
    } else if (static_cast<int>(room) < 0) {
      bad = -EINVAL;
    } else if (!AddrToSockaddr(ep.peer, ep.family, sa, len)) {
      bad = -EFAULT;
    }
  }
  if (bad != 0) {  // as with the kernel, the client is lost
    (void)SockClose(fam, static_cast<int>(fd), PSTN_FD_EP | idx);
    return bad;
  }
  return fd;
}

long KernelAccept4(Family& fam, const Call& call, sockaddr* sa, socklen_t* len, int flags) {
  const ByNumber asks(call);
  long r = sys::Call(SYS_accept4, call.fd(), sa, len, static_cast<long>(flags));
  if (r != -EMFILE && r != -ENFILE) return r;
  (void)CacheFlush(fam);
  return sys::Call(SYS_accept4, call.fd(), sa, len, static_cast<long>(flags));
}

// A connection of the kernel's that accept() returns.
long GiveKernels(Family& fam, int fd, const pstn_ep& listener, int flags, Reason why) {
  StackMap& s = Stack(fam);
  Count(s.hdr, kCounterKernelAccepts);
  FetchAdd(s.hdr.reasons[why], 1u);
  uint32_t idx = NewEp(fam, listener.family);
  if (idx == PSTN_NONE) return fd;  // served all the same, only not listed
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  StoreRelaxed(ep.reason, why);
  const uint32_t nonblock = (flags & SOCK_NONBLOCK) != 0 ? PSTN_EPF_NONBLOCK : 0u;
  FetchOr(ep.flags, PSTN_EPF_DIRTY | nonblock);
  SetState(ep, PSTN_EP_KERNEL);
  SetFd(fam, fd, PSTN_FD_EP | idx);
  return fd;
}

// The client's name for accept()'s caller, if it wants it; the client is lost where that fails.
long NameClient(int fd, sockaddr* sa, socklen_t* len) {
  long r = sa == nullptr ? 0 : sys::Call(SYS_getpeername, fd, sa, len);
  if (r == -ENOTCONN) r = 0;  // it has gone already
  if (r < 0) sys::Close(fd);
  return r < 0 ? r : fd;
}

// Its first bytes will be a handshake, which posternd has with it. Where too many wait for their
// end it is reset: the client comes again, unmarked.
void HandOver(Family& fam, int fd, const pstn_ep& listener) {
  const uint32_t waiting = LoadRelaxed(listener.in_talks) + LoadRelaxed(listener.held);
  if (waiting > LoadRelaxed(listener.backlog) || CtlNegotiate(fam, listener, fd) != 0) {
    const linger reset = {1, 0};
    (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_LINGER),
                    &reset, sizeof reset);
  }
  sys::Close(fd);
}

// What the kernel's queue has; `handed`: one of it went to posternd.
long AcceptKernel(Family& fam, const Call& call, sockaddr* sa, socklen_t* len, int flags,
                  bool& handed) {
  const pstn_ep& listener = *call.ep();
  TableChange change(fam);
  const bool smc = (LoadRelaxed(listener.flags) & PSTN_EPF_SMC) != 0;
  for (;;) {
    // Exported meanwhile: the kernel's listener may block now, which must not be waited for here.
    if (LoadAcquire(listener.state) == PSTN_EP_KERNEL) return kPass;  // [E1]
    long r = KernelAccept4(fam, call, smc ? nullptr : sa, smc ? nullptr : len, flags);
    if (r < 0) return r;
    const int got = static_cast<int>(r);
    if (smc && ExchangedSmc(got)) {
      HandOver(fam, got, listener);
      handed = true;
      continue;
    }
    if (smc) r = NameClient(got, sa, len);
    return r < 0 ? r
                 : GiveKernels(fam, got, listener, flags,
                               LoadRelaxed(listener.reason) == kReasonNoVi ? kReasonNoVi
                                                                           : kReasonKernelClient);
  }
}

// One that posternd keeps since its handshake: TCP after all.
long AcceptHeld(Family& fam, pstn_ep& listener, sockaddr* sa, socklen_t* len, int flags) {
  TableChange change(fam);
  uint32_t seen = LoadAcquire(listener.held);  // [E9]
  int fd = CtlTakeHeld(fam, listener);
  if (fd == -EMFILE) {
    (void)CacheFlush(fam);
    fd = CtlTakeHeld(fam, listener);
  }
  if (fd == -EMFILE) return fd;
  if (fd < 0) {  // another process has it, or it went with posternd: then no process says so
    if (!DaemonAlive(fam)) (void)CompareExchange(listener.held, seen, 0u);  // [E9]
    return -EAGAIN;
  }
  (void)sys::Fcntl(fd, F_SETFD, (flags & SOCK_CLOEXEC) != 0 ? FD_CLOEXEC : 0);
  const int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl >= 0)
    (void)sys::Fcntl(fd, F_SETFL,
                     (flags & SOCK_NONBLOCK) != 0 ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
  const long r = NameClient(fd, sa, len);
  return r < 0 ? r : GiveKernels(fam, fd, listener, flags, kReasonDeclined);
}

// accept4() makes a socket before it finds that there is no client for it, which takes it some
// microseconds; this look takes a fraction of one.
bool KernelHasClient(const Call& call) {
  const ByNumber asks(call);
  pollfd p = {call.fd(), POLLIN, 0};
  return sys::Call(SYS_poll, &p, 1L, 0L) != 0;
}

// A server that serves one client after the other waits for some microseconds for each. While they
// are ours, it looks so long for the next of ours before it asks the kernel.
constexpr uint64_t kOursFirstNs = 10'000;
bool OneOfOursComes(Family& fam, const pstn_ep& listener) {
  const auto look = [&] {
    AdmitSyns(fam);
    return LoadRelaxed(listener.accept_count) != 0;
  };
  return Spin(fam, look, Deadline::AfterNs(kOursFirstNs));
}

// So long an accept() waits for the end of a handshake that it has begun. On one host it takes
// microseconds, if the client goes on with it.
constexpr uint64_t kHandshakeNs = 20'000'000;

// A program that has been told that a client is there, and has other things to do than to wait for
// it: to it, a client in a handshake for too long has gone, and comes again when that has ended
// well.
bool MustReturn(const pstn_ep& listener) {
  return (LoadRelaxed(listener.flags) & PSTN_EPF_POLLED) != 0 ||
         LoadRelaxed(listener.item_head) != PSTN_NONE;
}

}  // namespace

void MarkListener(Family& fam, int fd, pstn_ep& ep) {
  CtlReconnect(fam);
  const pstn_dir* d = LoadAcquire(fam.dir);  // [T4]
  if (fam.opt.smcd == 0 || fam.elsewhere || d == nullptr ||
      (LoadRelaxed(d->host.flags) & PSTN_HOST_SMC) == 0 ||
      LoadRelaxed(Stack(fam).hdr.wide_bells) == 0 || PortExcluded(fam, ep.local.port))
    return;
  // Marked by the programs of a broker that has gone: the new broker's would take the TCP_SAVE_SYN
  // that these have left for the program's own, and refuse the mark. The kernel detaches the old
  // ones some time after their broker's death. If they still answer the first call (they keep
  // TCP_SAVE_SYN on) and not the second, the new ones refuse; then the same once more.
  constexpr uint32_t kOnlyOurs = PSTN_EPF_SMC | PSTN_EPF_KERNEL_OPTIONS;
  const bool again = (LoadRelaxed(ep.flags) & kOnlyOurs) == PSTN_EPF_SMC;
  for (int tries = again ? 2 : 1; tries != 0; tries--) {
    const int off = 0;
    if (again)
      (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(IPPROTO_TCP),
                      static_cast<long>(TCP_SAVE_SYN), &off, sizeof off);
    if (!MarkSmc(fd, true)) continue;
    FetchOr(ep.flags, PSTN_EPF_SMC);
    return;
  }
}

void AttendListeners(Family& fam) {
  const uint32_t asked = Exchange(fam.attend, 0u);
  if ((asked & kAttendVi) != 0) kVerbs.wire_retry(fam);
  for (uint32_t fd = 0; fd < LoadRelaxed(fam.fd_hw); fd++) {
    if (FdEntry(fam, static_cast<int>(fd)) == 0) continue;
    const Call call(fam, static_cast<int>(fd));
    pstn_ep* ep = call.ep();
    if (ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_LISTEN) continue;  // [E1]
    if ((asked & kAttendAgain) != 0 && (LoadRelaxed(ep->flags) & PSTN_EPF_PUBLISHED) != 0 &&
        IsListedUnasked(*ep)) {
      MarkListener(fam, static_cast<int>(fd), *ep);
      (void)CtlListen(fam, *ep, static_cast<int>(fd));
    }
    if ((asked & kAttendVi) != 0) kVerbs.wire_listen_again(fam, static_cast<int>(fd), *ep);
    if (LoadAcquire(ep->held) != 0) PostEp(fam, *ep);  // [E9]
  }
}

// A process that has left the family for another user has listened at a socket that was bound here.
static bool ListensElsewhere(Family& fam, int fd, const pstn_ep& ep) {
  if (LoadRelaxed(Stack(fam).hdr.guests) == 0 || LoadAcquire(ep.state) != PSTN_EP_NEW)  // [E1]
    return false;
  int listens = 0;
  socklen_t len = sizeof listens;
  return sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET),
                   static_cast<long>(SO_ACCEPTCONN), &listens, &len) == 0 &&
         listens != 0;
}

long SockAccept(Family& fam, Call& call, sockaddr* sa, socklen_t* len, int flags) {
  pstn_ep& ep = *call.ep();
  if (LoadAcquire(ep.state) != PSTN_EP_LISTEN) {  // [E1]
    if (ListensElsewhere(fam, call.fd(), ep)) FallBack(fam, call.fd(), ep, kReasonExported);
    return LoadAcquire(ep.state) == PSTN_EP_KERNEL ? kPass : -EINVAL;  // [E1]
  }
  if ((flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != 0) return -EINVAL;
  if (sa == nullptr) len = nullptr;
  static thread_local uint32_t turn = 0;
  static thread_local bool last_was_ours = false;
  bool spins = last_was_ours && (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) == 0;
  const uint32_t interrupts = t_interrupts;
  Deadline until = Deadline::AfterTimeout(LoadRelaxed(ep.rcvtimeo_ns));
  bool handed = false;
  Deadline handshake = Deadline::Never();
  for (;;) {
    WaitsAt(fam, call.fd(), ep);
    AdmitSyns(fam);
    if (++turn % kKernelTurn == 0 && KernelHasClient(call)) {
      long r = AcceptKernel(fam, call, sa, len, flags, handed);
      if (r != -EAGAIN) return r;
    }
    if (LoadRelaxed(ep.accept_count) != 0) (void)CtlQueues(fam, kOwnQueues);
    uint32_t idx = DequeueEmbryo(fam, ep);
    if (idx != PSTN_NONE) {
      const long got = AcceptOurs(fam, call, idx, sa, len, flags);
      last_was_ours = true;
      AdmitWaiting(fam, ep);
      return got;
    }
    if (LoadAcquire(ep.held) != 0) [[unlikely]] {  // [E9]
      const long held = AcceptHeld(fam, ep, sa, len, flags);
      if (held != -EAGAIN) return held;
      handed = true;  // poll() may have said so
    }
    if (spins) {
      spins = false;
      if (OneOfOursComes(fam, ep)) continue;
      if (t_interrupts != interrupts) return -EINTR;
    }
    last_was_ours = false;
    long r = AcceptKernel(fam, call, sa, len, flags, handed);
    if (r != -EAGAIN || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return r;
    pollfd p = {call.fd(), POLLIN, 0};
    if (handed && handshake.never()) handshake = Deadline::AfterNs(kHandshakeNs);
    const bool returns = handshake.at_ns < until.at_ns && MustReturn(ep);
    long n = SockPoll(fam, &p, 1, returns ? handshake : until, nullptr, &call);
    // poll() ends with every handler; this call goes on after those with SA_RESTART, unless it has
    // a timeout.
    if (n == -EINTR && until.never() && t_interrupts == interrupts) {
      if (call.moved()) return kRestart;
      continue;
    }
    if (n < 0) return n;
    if (n == 0) return returns ? -ECONNABORTED : -EAGAIN;
  }
}

}  // namespace postern
