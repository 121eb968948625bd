// SPDX-License-Identifier: Apache-2.0
// socket_calls.cc - the socket API: translate, call lib/sock, translate back.
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdarg>
#include <cstring>

#include "leaving.h"
#include "real.h"

using namespace postern;

PSTN_EXPORT int socket(int domain, int type, int protocol) noexcept {
  long r = SockSocket(domain, type, protocol);
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
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockBind(fd, *ep, sa, len) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(bind)(fd, sa, len);
}

PSTN_EXPORT int listen(int fd, int backlog) noexcept {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockListen(fd, *ep, backlog) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(listen)(fd, backlog);
}

PSTN_EXPORT int connect(int fd, const sockaddr* sa, socklen_t len) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockConnect(fd, *ep, sa, len) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(connect)(fd, sa, len);
}

PSTN_EXPORT int accept4(int fd, sockaddr* sa, socklen_t* len, int flags) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockAccept(fd, *ep, sa, len, flags) : Foreign(fd);
  if (r != kPass) return Ret<int>(r);
  int n = PSTN_REAL(accept4)(fd, sa, len, flags);
  if (OutOfFds(n)) n = PSTN_REAL(accept4)(fd, sa, len, flags);
  return FreshFd(n);
}
PSTN_EXPORT int accept(int fd, sockaddr* sa, socklen_t* len) { return accept4(fd, sa, len, 0); }

PSTN_EXPORT int shutdown(int fd, int how) noexcept {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockShutdown(fd, *ep, how) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(shutdown)(fd, how);
}

PSTN_EXPORT int getsockname(int fd, sockaddr* sa, socklen_t* len) noexcept {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockGetName(fd, *ep, sa, len, false) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(getsockname)(fd, sa, len);
}
PSTN_EXPORT int getpeername(int fd, sockaddr* sa, socklen_t* len) noexcept {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockGetName(fd, *ep, sa, len, true) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(getpeername)(fd, sa, len);
}

PSTN_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t len) noexcept {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockSetOpt(fd, *ep, level, name, value, len) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(setsockopt)(fd, level, name, value, len);
}
PSTN_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* len) noexcept {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockGetOpt(fd, *ep, level, name, value, len) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(getsockopt)(fd, level, name, value, len);
}

PSTN_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list ap;
  va_start(ap, request);
  void* arg = va_arg(ap, void*);
  va_end(ap);
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? SockIoctl(fd, *ep, request, arg) : Foreign(fd);
  return r != kPass ? Ret<int>(r) : PSTN_REAL(ioctl)(fd, request, arg);
}

// ---------------------------------------------------------------- receiving

namespace {

// The kernel's, as far as SockRecv and SockSend know; a UDP socket may be on the wire, too.
bool IsUdp(long r, const pstn_ep& ep) { return r == kPass && IsDatagram(ep); }

long ReceiveVector(int fd, pstn_ep& ep, const iovec* iov, size_t count, int flags) {
  const long r = SockRecv(fd, ep, iov, count, flags);
  if (!IsUdp(r, ep)) [[likely]]
    return r;
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = count;
  return DatagramRecv(fd, ep, m, flags);
}

long TransmitVector(int fd, pstn_ep& ep, const iovec* iov, size_t count, int flags) {
  const long r = SockSend(fd, ep, iov, count, flags);
  if (!IsUdp(r, ep)) [[likely]]
    return Sent(r, flags);
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = count;
  return DatagramSend(fd, ep, m, flags);
}

ssize_t Receive(int fd, pstn_ep& ep, void* buf, size_t n, int flags) {
  iovec iov = {buf, n};
  return ReceiveVector(fd, ep, &iov, 1, flags);
}

// recvfrom(): of a stream there is no name to tell.
long ReceiveFrom(int fd, pstn_ep& ep, const iovec& iov, int flags, sockaddr* sa, socklen_t* len) {
  const long r = SockRecv(fd, ep, &iov, 1, flags);
  if (!IsUdp(r, ep)) [[likely]] {
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
  const long got = DatagramRecv(fd, ep, m, flags);
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
long ReadVector(int fd, pstn_ep& ep, const iovec* iov, int count) {
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0) return bad;
  return HasBytes(iov, count) ? ReceiveVector(fd, ep, iov, static_cast<size_t>(count), 0) : 0;
}

// Unlike write(), writev() of nothing does not look at the socket.
long WriteVector(int fd, pstn_ep& ep, const iovec* iov, int count) {
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0) return bad;
  if (!HasBytes(iov, count)) return 0;
  return TransmitVector(fd, ep, iov, static_cast<size_t>(count), 0);
}

// A stream socket fills in no name and no control data.
long ReceiveMsg(int fd, pstn_ep& ep, msghdr* m, int flags) {
  if (BadPointer(m)) return -EFAULT;
  long bad = BadVector(m->msg_iov, m->msg_iovlen, -EMSGSIZE);
  if (bad != 0) return bad;
  if ((flags & MSG_ERRQUEUE) != 0) return RecvErrorQueue(ep, m);
  long r = SockRecv(fd, ep, m->msg_iov, m->msg_iovlen, flags);
  if (IsUdp(r, ep)) [[unlikely]]
    return DatagramRecv(fd, ep, *m, flags);
  if (r < 0) return r;  // kPass, too
  size_t room = m->msg_controllen;
  m->msg_namelen = 0;
  m->msg_controllen = 0;
  m->msg_flags = (flags & MSG_OOB) != 0 ? MSG_OOB : 0;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_INQ) != 0) [[unlikely]]
    PutInq(ep, *m, room);
  return r;
}

}  // namespace

PSTN_EXPORT ssize_t read(int fd, void* buf, size_t n) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? (n != 0 ? Receive(fd, *ep, buf, n, 0) : 0)
                         : Foreign(fd);  // nothing is read at once
  if (r != kPass) return Ret<ssize_t>(r);
  auto real = PSTN_REAL(read);
  return real != nullptr ? real(fd, buf, n) : Ret<ssize_t>(sys::Call(SYS_read, fd, buf, n));
}
PSTN_EXPORT ssize_t __read_chk(int fd, void* buf, size_t n, size_t room) {
  if (n > room) __builtin_trap();
  return read(fd, buf, n);
}
PSTN_EXPORT ssize_t readv(int fd, const iovec* iov, int count) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? ReadVector(fd, *ep, iov, count) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(readv)(fd, iov, count);
}
PSTN_EXPORT ssize_t recv(int fd, void* buf, size_t n, int flags) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? Receive(fd, *ep, buf, n, flags) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(recv)(fd, buf, n, flags);
}
PSTN_EXPORT ssize_t __recv_chk(int fd, void* buf, size_t n, size_t room, int flags) {
  if (n > room) __builtin_trap();
  return recv(fd, buf, n, flags);
}
PSTN_EXPORT ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* sa, socklen_t* len) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? ReceiveFrom(fd, *ep, {buf, n}, flags, sa, len) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(recvfrom)(fd, buf, n, flags, sa, len);
}
PSTN_EXPORT ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags,
                                   sockaddr* sa, socklen_t* len) {
  if (n > room) __builtin_trap();
  return recvfrom(fd, buf, n, flags, sa, len);
}
PSTN_EXPORT ssize_t recvmsg(int fd, msghdr* m, int flags) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? ReceiveMsg(fd, *ep, m, flags) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(recvmsg)(fd, m, flags);
}
PSTN_EXPORT int recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* timeout) {
  pstn_ep* ep = Ours(fd);
  if (ep == nullptr || IsKernels(*ep)) {
    return Foreign(fd) != kPass ? Ret<int>(-EBADF) : PSTN_REAL(recvmmsg)(fd, v, n, flags, timeout);
  }
  if (BadPointer(v) && n != 0) return Ret<int>(-EFAULT);
  if (timeout != nullptr &&
      (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000))
    return Ret<int>(-EINVAL);
  Deadline until = timeout == nullptr
                       ? Deadline::Never()
                       : Deadline::AfterNs(static_cast<uint64_t>(timeout->tv_sec) * 1000000000u +
                                           static_cast<uint64_t>(timeout->tv_nsec));
  // An error comes before what was received, unlike with recv().
  int error = 0;
  socklen_t len = sizeof error;
  if (SockGetOpt(fd, *ep, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != 0)
    return Ret<int>(-error);
  unsigned done = 0;
  long r = 0;
  while (done < n) {
    int f = flags & ~MSG_WAITFORONE;
    if (done != 0 && (flags & MSG_WAITFORONE) != 0) f |= MSG_DONTWAIT;
    r = ReceiveMsg(fd, *ep, &v[done].msg_hdr, f);
    if (r < 0) break;
    v[done++].msg_len = static_cast<unsigned>(r);
    if (until.left_ns() == 0) break;  // the kernel, too, looks at the time only here
  }
  if (r == kPass)
    return done != 0 ? static_cast<int>(done) : PSTN_REAL(recvmmsg)(fd, v, n, flags, timeout);
  if (done != 0 && r < 0 && r != -EAGAIN && r != -EINTR)
    StoreRelaxed(ep->error, static_cast<uint32_t>(-r));
  return done != 0 ? static_cast<int>(done) : Ret<int>(r);
}

// ---------------------------------------------------------------- sending

namespace {

long Transmit(int fd, pstn_ep& ep, const void* buf, size_t n, int flags) {
  iovec iov = {const_cast<void*>(buf), n};
  return TransmitVector(fd, ep, &iov, 1, flags);
}
// sendto(): a stream has its peer.
long TransmitTo(int fd, pstn_ep& ep, const iovec& iov, int flags, const sockaddr* sa,
                socklen_t len) {
  const long r = SockSend(fd, ep, &iov, 1, flags);
  if (!IsUdp(r, ep)) [[likely]]
    return Sent(r, flags);
  msghdr m = {};
  m.msg_name = const_cast<sockaddr*>(sa);
  m.msg_namelen = len;
  m.msg_iov = const_cast<iovec*>(&iov);
  m.msg_iovlen = 1;
  return DatagramSend(fd, ep, m, flags);
}
size_t Length(const msghdr& m) {
  size_t sum = 0;
  for (size_t i = 0; i < m.msg_iovlen; i++) sum += m.msg_iov[i].iov_len;
  return sum;
}
long TransmitMsg(int fd, pstn_ep& ep, const msghdr* m, int flags) {
  if (BadPointer(m)) return -EFAULT;
  long bad = BadVector(m->msg_iov, m->msg_iovlen, -EMSGSIZE);
  if (bad != 0) return bad;
  if (m->msg_controllen != 0 && LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED && BadControl(*m))
    return -EINVAL;
  const long r = SockSend(fd, ep, m->msg_iov, m->msg_iovlen, flags);
  return IsUdp(r, ep) ? DatagramSend(fd, ep, *m, flags) : Sent(r, flags);
}

}  // namespace

PSTN_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? Transmit(fd, *ep, buf, n, 0) : Foreign(fd);
  if (r != kPass) return Ret<ssize_t>(r);
  auto real = PSTN_REAL(write);
  return real != nullptr ? real(fd, buf, n) : Ret<ssize_t>(sys::Call(SYS_write, fd, buf, n));
}
PSTN_EXPORT ssize_t writev(int fd, const iovec* iov, int count) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? WriteVector(fd, *ep, iov, count) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(writev)(fd, iov, count);
}
PSTN_EXPORT ssize_t send(int fd, const void* buf, size_t n, int flags) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? Transmit(fd, *ep, buf, n, flags) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(send)(fd, buf, n, flags);
}
PSTN_EXPORT ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* sa,
                           socklen_t len) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? TransmitTo(fd, *ep, {const_cast<void*>(buf), n}, flags, sa, len)
                         : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(sendto)(fd, buf, n, flags, sa, len);
}
PSTN_EXPORT ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  pstn_ep* ep = Ours(fd);
  long r = ep != nullptr ? TransmitMsg(fd, *ep, m, flags) : Foreign(fd);
  if (ep == nullptr && r == kPass && !BadPointer(m) && m->msg_controllen != 0 &&
      (r = ExportPassed(m)) == 0)
    r = kPass;
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(sendmsg)(fd, m, flags);
}
PSTN_EXPORT int sendmmsg(int fd, mmsghdr* v, unsigned n, int flags) {
  pstn_ep* ep = Ours(fd);
  if (ep == nullptr || IsKernels(*ep)) {
    if (Foreign(fd) != kPass) return Ret<int>(-EBADF);
    for (unsigned i = 0; !BadPointer(v) && i < n; i++) {
      long r = v[i].msg_hdr.msg_controllen != 0 ? ExportPassed(&v[i].msg_hdr) : 0;
      if (r != 0) return Ret<int>(r);
    }
    return PSTN_REAL(sendmmsg)(fd, v, n, flags);
  }
  if (BadPointer(v) && n != 0) return Ret<int>(-EFAULT);
  unsigned done = 0;
  long r = 0;
  while (done < n) {
    r = TransmitMsg(fd, *ep, &v[done].msg_hdr, flags);
    if (r < 0) break;
    v[done++].msg_len = static_cast<unsigned>(r);
    if (Length(v[done - 1].msg_hdr) != static_cast<size_t>(r)) break;  // nothing goes behind a part
  }
  if (r == kPass && done == 0) return PSTN_REAL(sendmmsg)(fd, v, n, flags);  // since a moment
  return done != 0 ? static_cast<int>(done) : Ret<int>(r);
}

// preadv2 and pwritev2 work on sockets when the offset is -1.
namespace {

constexpr int kNowait = 8, kKnownFlags = 0x3f;  // RWF_NOWAIT, RWF_*

long ReadPositioned(int fd, pstn_ep& ep, const iovec* iov, int count, int flags) {
  if (IsKernels(ep)) return kPass;
  if ((flags & ~kKnownFlags) != 0) return -EOPNOTSUPP;
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0 || !HasBytes(iov, count)) return bad;
  return ReceiveVector(fd, ep, iov, static_cast<size_t>(count),
                       (flags & kNowait) != 0 ? MSG_DONTWAIT : 0);
}
long WritePositioned(int fd, pstn_ep& ep, const iovec* iov, int count, int flags) {
  if (IsKernels(ep)) return kPass;
  if ((flags & ~kKnownFlags) != 0) return -EOPNOTSUPP;
  long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0 || !HasBytes(iov, count)) return bad;
  int send = (flags & kNowait) != 0 ? MSG_DONTWAIT : 0;
  return TransmitVector(fd, ep, iov, static_cast<size_t>(count), send);
}

}  // namespace

PSTN_EXPORT ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  pstn_ep* ep = offset == -1 ? Ours(fd) : nullptr;
  long r = ep != nullptr ? ReadPositioned(fd, *ep, iov, count, flags) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(preadv2)(fd, iov, count, offset, flags);
}
PSTN_EXPORT ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  pstn_ep* ep = offset == -1 ? Ours(fd) : nullptr;
  long r = ep != nullptr ? WritePositioned(fd, *ep, iov, count, flags) : Foreign(fd);
  return r != kPass ? Ret<ssize_t>(r) : PSTN_REAL(pwritev2)(fd, iov, count, offset, flags);
}
PSTN_EXPORT ssize_t preadv64v2(int fd, const iovec* iov, int count, off64_t offset, int flags) {
  return preadv2(fd, iov, count, offset, flags);
}
PSTN_EXPORT ssize_t pwritev64v2(int fd, const iovec* iov, int count, off64_t offset, int flags) {
  return pwritev2(fd, iov, count, offset, flags);
}
