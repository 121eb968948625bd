// SPDX-License-Identifier: Apache-2.0
// socket_calls.cc - the socket API: translate, call lib/, translate back.
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdarg>

#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "leaving.h"
#include "option/socket_options.h"
#include "peer/connect.h"
#include "real.h"
#include "sock/message.h"
#include "sock/own_family.h"
#include "sock/socket.h"
#include "uring/code_scan.h"

using namespace postern;

PSTN_EXPORT int socket(int domain, int type, int protocol) noexcept {
  if (InVfork()) return PSTN_REAL(socket)(domain, type, protocol);
  LookForRing(domain);
  long r = SockSocket(g_family, domain, type, protocol);
  if (r != kPass) {
    const int made = Ret<int>(r);
    if (!OutOfFds(made)) return NoteStandard(Aside(made), false);
  }
  const Fresh fresh;
  int fd = PSTN_REAL(socket)(domain, type, protocol);
  if (OutOfFds(fd)) fd = PSTN_REAL(socket)(domain, type, protocol);
  return fresh.Fd(fd);
}

PSTN_EXPORT int socketpair(int domain, int type, int protocol, int sv[2]) noexcept {
  const Fresh fresh;
  int r = PSTN_REAL(socketpair)(domain, type, protocol, sv);
  if (OutOfFds(r)) r = PSTN_REAL(socketpair)(domain, type, protocol, sv);
  if (r == 0) fresh.Fd(sv[0]), fresh.Fd(sv[1]);
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

namespace {

int Accept(int fd, sockaddr* sa, socklen_t* len, int flags) {
  return Through<int>(
      fd, [&](Call& call) { return SockAccept(g_family, call, sa, len, flags); },
      [&](int real_fd) {
        const Fresh fresh;
        return fresh.Fd(PSTN_REAL(accept4)(real_fd, sa, len, flags));
      });
}

}  // namespace

PSTN_EXPORT int accept4(int fd, sockaddr* sa, socklen_t* len, int flags) {
  int n = Accept(fd, sa, len, flags);
  if (OutOfFds(n)) n = Accept(fd, sa, len, flags);
  return NoteStandard(Aside(n), false);
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

// The C library's asks the kernel past our ioctl().
PSTN_EXPORT int sockatmark(int fd) noexcept {
  int at = 0;
  return ioctl(fd, SIOCATMARK, &at) == 0 ? at : -1;
}

// ---------------------------------------------------------------- receiving

PSTN_EXPORT ssize_t read(int fd, void* buf, size_t n) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockRead(g_family, call, buf, n); },
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
      fd, [&](Call& call) { return SockReadv(g_family, call, iov, count); },
      [&](int real_fd) { return PSTN_REAL(readv)(real_fd, iov, count); });
}
PSTN_EXPORT ssize_t recv(int fd, void* buf, size_t n, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockRecvfrom(g_family, call, buf, n, flags, nullptr, nullptr); },
      [&](int real_fd) { return PSTN_REAL(recv)(real_fd, buf, n, flags); });
}
PSTN_EXPORT ssize_t __recv_chk(int fd, void* buf, size_t n, size_t room, int flags) {
  if (n > room) __builtin_trap();
  return recv(fd, buf, n, flags);
}
PSTN_EXPORT ssize_t recvfrom(int fd, void* buf, size_t n, int flags, sockaddr* sa, socklen_t* len) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockRecvfrom(g_family, call, buf, n, flags, sa, len); },
      [&](int real_fd) { return PSTN_REAL(recvfrom)(real_fd, buf, n, flags, sa, len); });
}
PSTN_EXPORT ssize_t __recvfrom_chk(int fd, void* buf, size_t n, size_t room, int flags,
                                   sockaddr* sa, socklen_t* len) {
  if (n > room) __builtin_trap();
  return recvfrom(fd, buf, n, flags, sa, len);
}
PSTN_EXPORT ssize_t recvmsg(int fd, msghdr* m, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockRecvmsg(g_family, call, m, flags); },
      [&](int real_fd) { return PSTN_REAL(recvmsg)(real_fd, m, flags); });
}
PSTN_EXPORT int recvmmsg(int fd, mmsghdr* v, unsigned n, int flags, timespec* timeout) {
  return Through<int>(
      fd, [&](Call& call) { return SockRecvmmsg(g_family, call, v, n, flags, timeout); },
      [&](int real_fd) { return PSTN_REAL(recvmmsg)(real_fd, v, n, flags, timeout); });
}

// ---------------------------------------------------------------- sending

PSTN_EXPORT ssize_t write(int fd, const void* buf, size_t n) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockWrite(g_family, call, buf, n); },
      [&](int real_fd) {
        auto real = PSTN_REAL(write);
        return real != nullptr ? real(real_fd, buf, n)
                               : Ret<ssize_t>(sys::Call(SYS_write, real_fd, buf, n));
      });
}
PSTN_EXPORT ssize_t writev(int fd, const iovec* iov, int count) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockWritev(g_family, call, iov, count); },
      [&](int real_fd) { return PSTN_REAL(writev)(real_fd, iov, count); });
}
PSTN_EXPORT ssize_t send(int fd, const void* buf, size_t n, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockSendto(g_family, call, buf, n, flags, nullptr, 0); },
      [&](int real_fd) { return PSTN_REAL(send)(real_fd, buf, n, flags); });
}
PSTN_EXPORT ssize_t sendto(int fd, const void* buf, size_t n, int flags, const sockaddr* sa,
                           socklen_t len) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockSendto(g_family, call, buf, n, flags, sa, len); },
      [&](int real_fd) { return PSTN_REAL(sendto)(real_fd, buf, n, flags, sa, len); });
}
PSTN_EXPORT ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  if (FdMeans(g_family, fd) == 0) {
    const long r = ExportPassed(fd, m);
    if (r != 0) return Ret<ssize_t>(r);
  }
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockSendmsg(g_family, call, m, flags); },
      [&](int real_fd) { return PSTN_REAL(sendmsg)(real_fd, m, flags); });
}

PSTN_EXPORT int sendmmsg(int fd, mmsghdr* v, unsigned n, int flags) {
  const bool foreign = g_faults_watched && FdMeans(g_family, fd) == 0;
  constexpr unsigned kMost = 1024;  // the kernel sends no more at once
  for (unsigned i = 0; foreign && i < n && i < kMost; i++) {
    const long r = ExportPassed(fd, &v[i].msg_hdr);
    if (r != 0) return Ret<int>(r);
  }
  return Through<int>(
      fd, [&](Call& call) { return SockSendmmsg(g_family, call, v, n, flags); },
      [&](int real_fd) { return PSTN_REAL(sendmmsg)(real_fd, v, n, flags); });
}

PSTN_EXPORT ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockPreadv2(g_family, call, iov, count, offset, flags); },
      [&](int real_fd) { return PSTN_REAL(preadv2)(real_fd, iov, count, offset, flags); });
}
PSTN_EXPORT ssize_t pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return Through<ssize_t>(
      fd, [&](Call& call) { return SockPwritev2(g_family, call, iov, count, offset, flags); },
      [&](int real_fd) { return PSTN_REAL(pwritev2)(real_fd, iov, count, offset, flags); });
}
PSTN_EXPORT ssize_t preadv64v2(int fd, const iovec* iov, int count, off64_t offset, int flags) {
  return preadv2(fd, iov, count, offset, flags);
}
PSTN_EXPORT ssize_t pwritev64v2(int fd, const iovec* iov, int count, off64_t offset, int flags) {
  return pwritev2(fd, iov, count, offset, flags);
}
