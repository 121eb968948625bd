// SPDX-License-Identifier: Apache-2.0
// datagram_io.cc - sending and receiving on a UDP socket that the wire serves beside the kernel.
//
// A send goes by the wire if a VI can carry it in one packet, and else by the kernel's socket, from
// the same address and port. A receive takes what waits on the wire, and now and then, or if
// nothing does, what waits in the kernel; where it has to wait it waits for both, as poll() does.
//
// The program's memory is not touched under the engine's lock: it may fault, and a handler for that
// need not come back. So a payload is copied once more, within the cache.
#include <fcntl.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "base/clock.h"
#include "base/iov.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/call.h"
#include "event/poll.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "offhost/datagram.h"
#include "offhost/datagram_calls.h"
#include "offhost/wire.h"

namespace postern {
namespace {

constexpr uint32_t kKernelTurn = 16;  // of so many receives one looks into the kernel first

// On the wire, or not yet: then it may come there while a thread waits.
bool IsServed(const pstn_ep& ep) {
  return LoadAcquire(ep.wire) != 0 || LoadRelaxed(ep.reason) == kReasonNone;  // [E7]
}

bool BadPieces(const msghdr& m) {
  for (size_t i = 0; i < m.msg_iovlen; i++)
    if (m.msg_iov[i].iov_len != 0 && BadPointer(m.msg_iov[i].iov_base)) return true;
  return false;
}

long FromKernel(int fd, msghdr& m, int flags) {
  return sys::Call(SYS_recvmsg, fd, &m, static_cast<long>(flags | MSG_DONTWAIT));
}

// Names the sender, and what else the program wants to know.
void Describe(const pstn_ep& ep, uint32_t wants, const udp::ReceiveInfo& info, msghdr& m) {
  if (m.msg_name != nullptr) {
    pstn_addr from = NameOf(info.source, info.source_port);
    if (info.source.IsLinkLocal()) from.scope = info.ifindex;
    (void)AddrToSockaddr(from, ep.family, static_cast<sockaddr*>(m.msg_name), &m.msg_namelen);
  }
  m.msg_flags = 0;
  DatagramControl(ep.family, wants, info, m);
}

long FromWire(Family& fam, pstn_ep& ep, msghdr& m, int flags) {
  if ((DatagramReadiness(fam, ep) & (EPOLLIN | EPOLLERR)) == 0) return -EAGAIN;
  if (BadPieces(m)) return -EFAULT;
  uint8_t bytes[kFrameBytes];
  iovec all = {bytes, sizeof bytes};
  udp::ReceiveArgs args;
  args.iov = &all;
  args.iov_count = 1;
  args.peek = (flags & MSG_PEEK) != 0;
  udp::ReceiveInfo info;
  uint32_t wants;
  int64_t r;
  {
    const DatagramGuard g(fam, ep);
    if (!g.ok()) return -EAGAIN;
    r = g.all().Receive(g.idx(), args, info);
    wants = g.socket().wants;
  }
  if (r < 0) return static_cast<long>(r);
  IovCursor to(m.msg_iov, m.msg_iovlen);
  const size_t copied = to.CopyIn(bytes, static_cast<size_t>(r));
  if (to.fault()) return -EFAULT;
  Describe(ep, wants, info, m);
  if (info.bytes > copied) m.msg_flags |= MSG_TRUNC;
  return static_cast<long>((flags & MSG_TRUNC) != 0 ? info.bytes : copied);
}

// One look at both, in the order that is due.
long LookAtBoth(Family& fam, int fd, pstn_ep& ep, msghdr& m, int flags) {
  static thread_local uint32_t turn = 0;
  const uint32_t seen = LoadRelaxed(ep.held);
  const bool kernel_first =
      seen == kSeenInKernel || (seen == kSeenNowhere && ++turn % kKernelTurn == 0);
  for (const bool first : {true, false}) {
    const bool kernel = first == kernel_first;
    const long r = kernel ? FromKernel(fd, m, flags) : FromWire(fam, ep, m, flags);
    if (r == -EAGAIN) continue;
    const uint32_t now = (flags & MSG_PEEK) == 0 ? kSeenNowhere
                         : kernel                ? kSeenInKernel
                                                 : kSeenOnWire;
    if (seen != now) StoreRelaxed(ep.held, now);
    return r;
  }
  return -EAGAIN;
}

// SO_RCVTIMEO, which the kernel's socket keeps.
Deadline ReceiveDeadline(int fd) {
  timeval tv = {};
  socklen_t len = sizeof tv;
  if (sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_RCVTIMEO),
                &tv, &len) != 0 ||
      (tv.tv_sec == 0 && tv.tv_usec == 0))
    return Deadline::Never();
  return Deadline::AfterNs(static_cast<uint64_t>(tv.tv_sec) * 1'000'000'000u +
                           static_cast<uint64_t>(tv.tv_usec) * 1000u);
}

}  // namespace

uint32_t DatagramReadiness(Family& fam, const pstn_ep& ep) {
  // Sends do not wait for room; what only the kernel knows, it says.
  constexpr uint32_t kOut = EPOLLOUT | EPOLLWRNORM;
  const uint32_t at = LoadAcquire(ep.wire);         // [E7]
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (at == 0 || at > stack::kDatagramSockets || engine == nullptr) return kOut;
  stack::Datagrams& all = engine->datagrams();
  return kOut | (all.IsReadable(at - 1) ? EPOLLIN | EPOLLRDNORM : 0u) |
         (all.HasError(at - 1) ? EPOLLERR : 0u);
}

void DatagramTouch(Family& fam, const pstn_ep& ep) {
  // [T3]
  if (LoadAcquire(fam.engine) == nullptr && LoadRelaxed(ep.wire) != 0) (void)WireStart(fam);
}

long DatagramRecv(Family& fam, Call& call, msghdr& m, int flags) {
  pstn_ep& ep = *call.ep();
  if ((flags & (MSG_ERRQUEUE | MSG_OOB)) != 0 || !IsServed(ep)) return kPass;
  DatagramTouch(fam, ep);
  const uint32_t interrupts = t_interrupts;
  Deadline until = Deadline::Never();
  bool waited = false;
  for (;;) {
    const int fd = call.fd();
    WireTurn(fam);
    const long r = LookAtBoth(fam, fd, ep, m, flags);
    if (r != -EAGAIN || (flags & MSG_DONTWAIT) != 0) return r;
    const int fl = sys::Fcntl(fd, F_GETFL, 0);
    if (fl < 0 || (fl & O_NONBLOCK) != 0) return r;
    if (!waited) until = ReceiveDeadline(fd);
    waited = true;
    pollfd p = {call.fd(), POLLIN, 0};
    const long n = SockPoll(fam, &p, 1, until, nullptr, &call);
    // As accept(): after handlers with SA_RESTART it goes on, unless it has a timeout.
    if (n == -EINTR && until.never() && t_interrupts == interrupts) {
      if (call.moved()) return kRestart;
      continue;
    }
    if (n < 0) return n;
    if (n == 0) return -EAGAIN;
  }
}

namespace {

bool IsPlain(const pstn_ep& ep, int flags) {
  return (flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) == 0 &&
         (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_WR) == 0 && LoadRelaxed(ep.reason) == kReasonNone;
}

// Its payload, in one piece. More than `room`: it is longer than that, or not there.
size_t Gather(const msghdr& m, uint8_t* to, size_t room) {
  IovCursor from(m.msg_iov, m.msg_iovlen);
  for (size_t i = 0; i < m.msg_iovlen; i++)
    if (m.msg_iov[i].iov_len > room) return room + 1;
  if (from.left() > room) return room + 1;
  const size_t bytes = from.CopyOut(to, from.left());
  return from.fault() ? room + 1 : bytes;
}

// False: the kernel says what it thinks of it.
bool Addressed(const pstn_ep& ep, const msghdr& m, udp::SendArgs& args) {
  if (m.msg_name == nullptr || m.msg_namelen == 0) return true;
  if (BadPointer(m.msg_name) || m.msg_namelen > sizeof(sockaddr_storage)) return false;
  pstn_addr to;
  if (!AddrFromSockaddr(static_cast<const sockaddr*>(m.msg_name), m.msg_namelen, ep.family, to) ||
      to.scope != 0 || AddrIsLoopback(to))
    return false;
  args.dest = IpOf(to);
  args.dest_port = to.port;
  args.has_dest = true;
  return true;
}

// Its first send names a socket that is not bound: by the kernel, and from then on it may be on
// the wire.
long FirstSend(Family& fam, int fd, pstn_ep& ep, const msghdr& m, int flags) {
  const long r = sys::Call(SYS_sendmsg, fd, &m, static_cast<long>(flags | MSG_NOSIGNAL));
  if (r < 0) return r;
  Guard g(ep.setup_lock);
  if (LoadRelaxed(ep.wire) == 0) DatagramNamed(fam, fd, ep);
  return r;
}

}  // namespace

long DatagramSend(Family& fam, Call& call, const msghdr& m, int flags) {
  const int fd = call.fd();
  pstn_ep& ep = *call.ep();
  if ((flags & MSG_MORE) != 0) {  // what follows belongs to it
    Guard g(ep.setup_lock);
    DatagramLeave(fam, ep, kReasonOption);
  }
  if (!IsPlain(ep, flags)) return kPass;
  DatagramTouch(fam, ep);
  if (LoadAcquire(ep.wire) == 0) return FirstSend(fam, fd, ep, m, flags);  // [E7]
  udp::SendArgs args;
  if (!Addressed(ep, m, args) || BadPieces(m)) return kPass;
  if (m.msg_controllen != 0 && !DatagramWish(fam, m, args)) return kPass;
  uint8_t bytes[kFrameBytes];
  const iovec all = {bytes, Gather(m, bytes, sizeof bytes)};
  if (all.iov_len > sizeof bytes) return kPass;
  args.iov = &all;
  args.iov_count = 1;
  const DatagramGuard g(fam, ep);
  if (!g.ok()) return kPass;
  const int64_t r = g.all().Send(g.idx(), args);
  fam.engine->AssertHeld();  // by `g`
  (void)fam.engine->PollLocked(MonotonicNs(),
                               1);  // it goes out, and what was sent before comes back
  return r == stack::kByKernel ? kPass : static_cast<long>(r);
}

long DatagramIoctl(Family& fam, const pstn_ep& ep, unsigned long request, void* arg) {
  if (request != FIONREAD) return kPass;
  int bytes;
  {
    const DatagramGuard g(fam, ep);
    if (!g.ok() || !g.all().IsReadable(g.idx())) return kPass;
    bytes = static_cast<int>(udp::NextBytes(g.idx(), g.all()));
  }
  return PutUser(arg, bytes) ? 0 : -EFAULT;
}

}  // namespace postern
