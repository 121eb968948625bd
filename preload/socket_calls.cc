// SPDX-License-Identifier: Apache-2.0
// socket_calls.cc - the socket API: translate, call lib/, translate back.
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdarg>
#include <cstring>

#include "base/clock.h"
#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "leaving.h"
#include "offhost/datagram_calls.h"
#include "option/options.h"
#include "option/tcp_info.h"
#include "peer/connect.h"
#include "real.h"
#include "sock/own_family.h"
#include "sock/socket.h"
#include "stream/stream.h"
#include "stream/zerocopy.h"

using namespace postern;

PSTN_EXPORT int socket(int domain, int type, int protocol) noexcept {
  long r = SockSocket(g_family, domain, type, protocol);
  if (r != kPass) return Ret<int>(r);
  int fd = PSTN_REAL(socket)(domain, type, protocol);
  if (OutOfFds(fd)) fd = PSTN_REAL(socket)(domain, type, protocol);
  return FreshFd(fd);
}

PSTN_EXPORT int socketpair(int domain, int type, int protocol, int sv[2]) noexcept {
  int r = PSTN_REAL(socketpair)(domain, type, protocol, sv);
  if (OutOfFds(r)) r = PSTN_REAL(socketpair)(domain, type, protocol, sv);
  if (r == 0) FreshFd(sv[0]), FreshFd(sv[1]);
  return r;
}

PSTN_EXPORT int bind(int fd, const sockaddr* sa, socklen_t len) noexcept {
  return Through<int>(
      fd, [&](Call& call) { return SockBind(g_family, call.fd(), *call.ep(), sa, len); },
      [&](int real_fd) { return PSTN_REAL(bind)(real_fd, sa, len); });
}

PSTN_EXPORT int listen(int fd, int backlog) noexcept {
  return Through<int>(
      fd, [&](Call& call) { return SockListen(g_family, call.fd(), *call.ep(), backlog); },
      [&](int real_fd) { return PSTN_REAL(listen)(real_fd, backlog); });
}

PSTN_EXPORT int connect(int fd, const sockaddr* sa, socklen_t len) {
  return Through<int>(
      fd, [&](Call& call) { return SockConnect(g_family, call, sa, len); },
      [&](int real_fd) { return PSTN_REAL(connect)(real_fd, sa, len); });
}

PSTN_EXPORT int accept4(int fd, sockaddr* sa, socklen_t* len, int flags) {
  return Through<int>(
      fd, [&](Call& call) { return SockAccept(g_family, call, sa, len, flags); },
      [&](int real_fd) {
        int n = PSTN_REAL(accept4)(real_fd, sa, len, flags);
        if (OutOfFds(n)) n = PSTN_REAL(accept4)(real_fd, sa, len, flags);
        return FreshFd(n);
      });
}
PSTN_EXPORT int accept(int fd, sockaddr* sa, socklen_t* len) { return accept4(fd, sa, len, 0); }

PSTN_EXPORT int shutdown(int fd, int how) noexcept {
  return Through<int>(
      fd, [&](Call& call) { return SockShutdown(g_family, call.fd(), *call.ep(), how); },
      [&](int real_fd) { return PSTN_REAL(shutdown)(real_fd, how); });
}

PSTN_EXPORT int getsockname(int fd, sockaddr* sa, socklen_t* len) noexcept {
  return Through<int>(
      fd, [&](Call& call) { return SockGetName(g_family, call.fd(), *call.ep(), sa, len, false); },
      [&](int real_fd) { return PSTN_REAL(getsockname)(real_fd, sa, len); });
}
PSTN_EXPORT int getpeername(int fd, sockaddr* sa, socklen_t* len) noexcept {
  return Through<int>(
      fd, [&](Call& call) { return SockGetName(g_family, call.fd(), *call.ep(), sa, len, true); },
      [&](int real_fd) { return PSTN_REAL(getpeername)(real_fd, sa, len); });
}

PSTN_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t len) noexcept {
  return Through<int>(
      fd,
      [&](Call& call) {
        return SockSetOpt(g_family, call.fd(), *call.ep(), level, name, value, len);
      },
      [&](int real_fd) { return PSTN_REAL(setsockopt)(real_fd, level, name, value, len); });
}
PSTN_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* len) noexcept {
  return Through<int>(
      fd,
      [&](Call& call) {
        return SockGetOpt(g_family, call.fd(), *call.ep(), level, name, value, len);
      },
      [&](int real_fd) { return PSTN_REAL(getsockopt)(real_fd, level, name, value, len); });
}

PSTN_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list ap;
  va_start(ap, request);
  void* arg = va_arg(ap, void*);
  va_end(ap);
  return Through<int>(
      fd, [&](Call& call) { return SockIoctl(g_family, call.fd(), *call.ep(), request, arg); },
      [&](int real_fd) { return PSTN_REAL(ioctl)(real_fd, request, arg); });
}

// ---------------------------------------------------------------- receiving

namespace {

// The kernel's, as far as SockRecv and SockSend know; a UDP socket may be on the wire, too.
bool IsUdp(long r, const pstn_ep& ep) { return r == kPass && IsDatagram(ep); }

long ReceiveVector(Call& call, const iovec* iov, size_t count, int flags) {
  const long r = SockRecv(g_family, call, iov, count, flags);
  if (!IsUdp(r, *call.ep())) [[likely]]
    return r;
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = count;
  return DatagramRecv(g_family, call, m, flags);
}

long TransmitVector(Call& call, const iovec* iov, size_t count, int flags) {
  const long r = SockSend(g_family, call, iov, count, flags);
  if (!IsUdp(r, *call.ep())) [[likely]]
    return Sent(r, flags);
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = count;
  return DatagramSend(g_family, call, m, flags);
}

long Receive(Call& call, void* buf, size_t n, int flags) {
  iovec iov = {buf, n};
  return ReceiveVector(call, &iov, 1, flags);
}

// recvfrom(): of a stream there is no name to tell.
long ReceiveFrom(Call& call, const iovec& iov, int flags, sockaddr* sa, socklen_t* len) {
  const long r = SockRecv(g_family, call, &iov, 1, flags);
  if (!IsUdp(r, *call.ep())) [[likely]] {
    if (r >= 0 && sa != nullptr && len != nullptr) *len = 0;
    return r;
  }
  const bool named = sa != nullptr;
  if (named && (BadPointer(sa) || BadPointer(len) || static_cast<int>(*len) < 0)) return kPass;
  msghdr m = {};
  m.msg_name = sa;
  m.msg_namelen = named ? *len : 0;
  m.msg_iov = const_cast<iovec*>(&iov);
  m.msg_iovlen = 1;
  const long got = DatagramRecv(g_family, call, m, flags);
  if (got >= 0 && named) *len = m.msg_namelen;
  return got;
}

bool HasBytes(const iovec* iov, int count) {
  for (int i = 0; i < count; i++) {
    if (iov[i].iov_len != 0) return true;
  }
  return false;
}

constexpr size_t kMaxPieces = 1024;  // UIO_MAXIOV

// What the kernel finds wrong with a vector before it looks at the socket.
long BadVector(const iovec* iov, size_t count, long too_many) {
  if (count > kMaxPieces) return too_many;
  return count != 0 && BadPointer(iov) ? -EFAULT : 0;
}

// Control messages that a TCP socket does not know. Others mean nothing to it.
bool BadControl(const msghdr& m) {
  auto* at = static_cast<const uint8_t*>(m.msg_control);
  for (size_t left = m.msg_controllen; left >= sizeof(cmsghdr);) {
    cmsghdr c;
    memcpy(&c, at, sizeof c);
    if (c.cmsg_len < sizeof c || c.cmsg_len > left) return true;
    bool known = c.cmsg_type == SCM_RIGHTS || c.cmsg_type == SCM_CREDENTIALS ||
                 c.cmsg_type == SO_TIMESTAMPING || c.cmsg_type == SO_MARK;
    if (c.cmsg_level == SOL_SOCKET && !known) return true;
    size_t step = CMSG_ALIGN(c.cmsg_len);
    if (step >= left) break;
    at += step;
    left -= step;
  }
  return false;
}

// Unlike recv(), read() and readv() of nothing do not wait.
long ReadVector(Call& call, const iovec* iov, int count) {
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0) return bad;
  return HasBytes(iov, count) ? ReceiveVector(call, iov, static_cast<size_t>(count), 0) : 0;
}

// Unlike write(), writev() of nothing does not look at the socket.
long WriteVector(Call& call, const iovec* iov, int count) {
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0) return bad;
  if (!HasBytes(iov, count)) return 0;
  return TransmitVector(call, iov, static_cast<size_t>(count), 0);
}

// A stream socket fills in no name and no control data.
long ReceiveMsg(Call& call, msghdr* m, int flags) {
  pstn_ep& ep = *call.ep();
  if (BadPointer(m)) return -EFAULT;
  long bad = BadVector(m->msg_iov, m->msg_iovlen, -EMSGSIZE);
  if (bad != 0) return bad;
  if ((flags & MSG_ERRQUEUE) != 0) return RecvErrorQueue(ep, m);
  long r = SockRecv(g_family, call, m->msg_iov, m->msg_iovlen, flags);
  if (IsUdp(r, ep)) [[unlikely]]
    return DatagramRecv(g_family, call, *m, flags);
  if (r < 0) return r;  // kPass, too
  size_t room = m->msg_controllen;
  m->msg_namelen = 0;
  m->msg_controllen = 0;
  m->msg_flags = (flags & MSG_OOB) != 0 ? MSG_OOB : 0;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_INQ) != 0) [[unlikely]]
    PutInq(g_family, ep, *m, room);
  return r;
}

}  // namespace

PSTN_EXPORT ssize_t read(int fd, void* buf, size_t n) {
  return Through<ssize_t>(
      fd,
      [&](Call& call) { return n != 0 ? Receive(call, buf, n, 0) : 0; },  // nothing is read at once
      [&](int real_fd) {
        auto real = PSTN_REAL(read);
        return real != nullptr ? real(real_fd, buf, n)
                               : Ret<ssize_t>(sys::Call(SYS_read, real_fd, buf, n));
      });
}
PSTN_EXPORT ssize_t __read_chk(int fd, void* buf, size_t n, size_t room) {
  if (n > room) __builtin_trap();
  return read(fd, buf, n);
}
PSTN_EXPORT ssize_t readv(int fd, const iovec* iov, int count) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return ReadVector(call, iov, count); },
      [&](int real_fd) { return PSTN_REAL(readv)(real_fd, iov, count); });
}
PSTN_EXPORT ssize_t recv(int fd, void* buf, size_t n, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return Receive(call, buf, n, flags); },
      [&](int real_fd) { return PSTN_REAL(recv)(real_fd, buf, n, flags); });
}
PSTN_EXPORT ssize_t __recv_chk(int fd, void* buf, size_t n, size_t room, int flags) {
  if (n > room) __builtin_trap();
  return recv(fd, buf, n, flags);
}
PSTN_EXPORT ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* sa, socklen_t* len) {
  return Through<ssize_t>(
      fd,
      [&](Call& call) {
        return ReceiveFrom(call, {buf, n}, flags, sa, len);
      },
      [&](int real_fd) { return PSTN_REAL(recvfrom)(real_fd, buf, n, flags, sa, len); });
}
PSTN_EXPORT ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags,
                                   sockaddr* sa, socklen_t* len) {
  if (n > room) __builtin_trap();
  return recvfrom(fd, buf, n, flags, sa, len);
}
PSTN_EXPORT ssize_t recvmsg(int fd, msghdr* m, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return ReceiveMsg(call, m, flags); },
      [&](int real_fd) { return PSTN_REAL(recvmsg)(real_fd, m, flags); });
}
namespace {

long ReceiveMany(Call& call, mmsghdr* v, unsigned n, int flags, const timespec* timeout) {
  pstn_ep& ep = *call.ep();
  if (IsKernels(ep)) return kPass;
  if (BadPointer(v) && n != 0) return -EFAULT;
  if (timeout != nullptr &&
      (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000))
    return -EINVAL;
  Deadline until = timeout == nullptr
                       ? Deadline::Never()
                       : Deadline::AfterNs(static_cast<uint64_t>(timeout->tv_sec) * 1000000000u +
                                           static_cast<uint64_t>(timeout->tv_nsec));
  // An error comes before what was received, unlike with recv().
  int error = 0;
  socklen_t len = sizeof error;
  if (SockGetOpt(g_family, call.fd(), ep, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != 0)
    return -error;
  long done = 0, r = 0;
  while (done < n) {
    int f = flags & ~MSG_WAITFORONE;
    if (done != 0 && (flags & MSG_WAITFORONE) != 0) f |= MSG_DONTWAIT;
    r = ReceiveMsg(call, &v[done].msg_hdr, f);
    if (r < 0) break;
    v[done++].msg_len = static_cast<unsigned>(r);
    if (until.left_ns() == 0) break;  // the kernel, too, looks at the time only here
  }
  if (done != 0 && r < 0 && r != kPass && r != -EAGAIN && r != -EINTR)
    StoreRelaxed(ep.error, static_cast<uint32_t>(-r));
  return done != 0 ? done : r;
}

}  // namespace

PSTN_EXPORT int recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* timeout) {
  return Through<int>(
      fd, [&](Call& call) { return ReceiveMany(call, v, n, flags, timeout); },
      [&](int real_fd) { return PSTN_REAL(recvmmsg)(real_fd, v, n, flags, timeout); });
}

// ---------------------------------------------------------------- sending

namespace {

long Transmit(Call& call, const void* buf, size_t n, int flags) {
  iovec iov = {const_cast<void*>(buf), n};
  return TransmitVector(call, &iov, 1, flags);
}
// sendto(): a stream has its peer.
long TransmitTo(Call& call, const iovec& iov, int flags, const sockaddr* sa, socklen_t len) {
  const long r = SockSend(g_family, call, &iov, 1, flags);
  if (!IsUdp(r, *call.ep())) [[likely]]
    return Sent(r, flags);
  msghdr m = {};
  m.msg_name = const_cast<sockaddr*>(sa);
  m.msg_namelen = len;
  m.msg_iov = const_cast<iovec*>(&iov);
  m.msg_iovlen = 1;
  return DatagramSend(g_family, call, m, flags);
}
size_t Length(const msghdr& m) {
  size_t sum = 0;
  for (size_t i = 0; i < m.msg_iovlen; i++) sum += m.msg_iov[i].iov_len;
  return sum;
}
long TransmitMsg(Call& call, const msghdr* m, int flags) {
  pstn_ep& ep = *call.ep();
  if (BadPointer(m)) return -EFAULT;
  long bad = BadVector(m->msg_iov, m->msg_iovlen, -EMSGSIZE);
  if (bad != 0) return bad;
  // [E1]
  if (m->msg_controllen != 0 && LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED && BadControl(*m))
    return -EINVAL;
  const long r = SockSend(g_family, call, m->msg_iov, m->msg_iovlen, flags);
  return IsUdp(r, ep) ? DatagramSend(g_family, call, *m, flags) : Sent(r, flags);
}

}  // namespace

PSTN_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return Transmit(call, buf, n, 0); },
      [&](int real_fd) {
        auto real = PSTN_REAL(write);
        return real != nullptr ? real(real_fd, buf, n)
                               : Ret<ssize_t>(sys::Call(SYS_write, real_fd, buf, n));
      });
}
PSTN_EXPORT ssize_t writev(int fd, const iovec* iov, int count) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return WriteVector(call, iov, count); },
      [&](int real_fd) { return PSTN_REAL(writev)(real_fd, iov, count); });
}
PSTN_EXPORT ssize_t send(int fd, const void* buf, size_t n, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return Transmit(call, buf, n, flags); },
      [&](int real_fd) { return PSTN_REAL(send)(real_fd, buf, n, flags); });
}
PSTN_EXPORT ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* sa,
                           socklen_t len) {
  return Through<ssize_t>(
      fd,
      [&](Call& call) {
        return TransmitTo(call, {const_cast<void*>(buf), n}, flags, sa, len);
      },
      [&](int real_fd) { return PSTN_REAL(sendto)(real_fd, buf, n, flags, sa, len); });
}
PSTN_EXPORT ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  if (FdMeans(g_family, fd) == 0 && !BadPointer(m) && m->msg_controllen != 0) {
    const long r = ExportPassed(fd, m);
    if (r != 0) return Ret<ssize_t>(r);
  }
  return Through<ssize_t>(
      fd, [&](Call& call) { return TransmitMsg(call, m, flags); },
      [&](int real_fd) { return PSTN_REAL(sendmsg)(real_fd, m, flags); });
}

namespace {

long TransmitMany(Call& call, mmsghdr* v, unsigned n, int flags) {
  if (IsKernels(*call.ep())) return kPass;
  if (BadPointer(v) && n != 0) return -EFAULT;
  long done = 0, r = 0;
  while (done < n) {
    r = TransmitMsg(call, &v[done].msg_hdr, flags);
    if (r < 0) break;
    v[done++].msg_len = static_cast<unsigned>(r);
    if (Length(v[done - 1].msg_hdr) != static_cast<size_t>(r)) break;  // nothing goes behind a part
  }
  return done != 0 ? done : r;
}

}  // namespace

PSTN_EXPORT int sendmmsg(int fd, mmsghdr* v, unsigned n, int flags) {
  const bool foreign = FdMeans(g_family, fd) == 0;
  for (unsigned i = 0; foreign && !BadPointer(v) && i < n; i++) {
    const long r = v[i].msg_hdr.msg_controllen != 0 ? ExportPassed(fd, &v[i].msg_hdr) : 0;
    if (r != 0) return Ret<int>(r);
  }
  return Through<int>(
      fd, [&](Call& call) { return TransmitMany(call, v, n, flags); },
      [&](int real_fd) { return PSTN_REAL(sendmmsg)(real_fd, v, n, flags); });
}

// preadv2 and pwritev2 work on sockets when the offset is -1.
namespace {

constexpr int kNowait = 8, kKnownFlags = 0x3f;  // RWF_NOWAIT, RWF_*

long ReadPositioned(Call& call, const iovec* iov, int count, off_t offset, int flags) {
  if (offset != -1 || IsKernels(*call.ep())) return kPass;
  if ((flags & ~kKnownFlags) != 0) return -EOPNOTSUPP;
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0 || !HasBytes(iov, count)) return bad;
  return ReceiveVector(call, iov, static_cast<size_t>(count),
                       (flags & kNowait) != 0 ? MSG_DONTWAIT : 0);
}
long WritePositioned(Call& call, const iovec* iov, int count, off_t offset, int flags) {
  if (offset != -1 || IsKernels(*call.ep())) return kPass;
  if ((flags & ~kKnownFlags) != 0) return -EOPNOTSUPP;
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0 || !HasBytes(iov, count)) return bad;
  int send = (flags & kNowait) != 0 ? MSG_DONTWAIT : 0;
  return TransmitVector(call, iov, static_cast<size_t>(count), send);
}

}  // namespace

PSTN_EXPORT ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return ReadPositioned(call, iov, count, offset, flags); },
      [&](int real_fd) { return PSTN_REAL(preadv2)(real_fd, iov, count, offset, flags); });
}
PSTN_EXPORT ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return WritePositioned(call, iov, count, offset, flags); },
      [&](int real_fd) { return PSTN_REAL(pwritev2)(real_fd, iov, count, offset, flags); });
}
PSTN_EXPORT ssize_t preadv64v2(int fd, const iovec* iov, int count, off64_t offset, int flags) {
  return preadv2(fd, iov, count, offset, flags);
}
PSTN_EXPORT ssize_t pwritev64v2(int fd, const iovec* iov, int count, off64_t offset, int flags) {
  return pwritev2(fd, iov, count, offset, flags);
}
