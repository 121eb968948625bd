// SPDX-License-Identifier: Apache-2.0
// syscall_calls.cc - libc's syscall(): numbers of calls that we hook go to the hook when their
// descriptor is one that the library knows; everything else to the kernel.
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

#include "base/sys.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "leaving.h"
#include "life/depart.h"
#include "life/process.h"
#include "life/surroundings.h"
#include "peer/contact/contact.h"
#include "real.h"
#include "sock/own_family.h"
#include "uring/entries.h"

extern "C" int pidfd_getfd(int pidfd, int target, unsigned flags) noexcept;

using namespace postern;

namespace {

struct Args {
  long v[6];
  int Fd(int i) const { return static_cast<int>(v[i]); }
  int Int(int i) const { return static_cast<int>(v[i]); }
  unsigned Uint(int i) const { return static_cast<unsigned>(v[i]); }
  size_t Size(int i) const { return static_cast<size_t>(v[i]); }
  template <typename T>
  T* Ptr(int i) const {
    return reinterpret_cast<T*>(v[i]);
  }
};

// Data: the first argument is a descriptor of ours. False: not a call of this kind.
bool Data(long n, const Args& a, long* r) {
  int fd = a.Fd(0);
  switch (n) {
    case SYS_read:
      *r = read(fd, a.Ptr<void>(1), a.Size(2));
      return true;
    case SYS_write:
      *r = write(fd, a.Ptr<void>(1), a.Size(2));
      return true;
    case SYS_readv:
      *r = readv(fd, a.Ptr<iovec>(1), a.Int(2));
      return true;
    case SYS_writev:
      *r = writev(fd, a.Ptr<iovec>(1), a.Int(2));
      return true;
    case SYS_recvfrom:
      *r = recvfrom(fd, a.Ptr<void>(1), a.Size(2), a.Int(3), a.Ptr<sockaddr>(4),
                    a.Ptr<socklen_t>(5));
      return true;
    case SYS_sendto:
      *r = sendto(fd, a.Ptr<void>(1), a.Size(2), a.Int(3), a.Ptr<sockaddr>(4), a.Uint(5));
      return true;
    case SYS_recvmsg:
      *r = recvmsg(fd, a.Ptr<msghdr>(1), a.Int(2));
      return true;
    case SYS_sendmsg:
      *r = sendmsg(fd, a.Ptr<msghdr>(1), a.Int(2));
      return true;
    case SYS_recvmmsg:
      *r = recvmmsg(fd, a.Ptr<mmsghdr>(1), a.Uint(2), a.Int(3), a.Ptr<timespec>(4));
      return true;
    case SYS_sendmmsg:
      *r = sendmmsg(fd, a.Ptr<mmsghdr>(1), a.Uint(2), a.Int(3));
      return true;
    case SYS_sendfile:
      *r = sendfile(fd, a.Fd(1), a.Ptr<off_t>(2), a.Size(3));
      return true;
    default:
      return false;
  }
}

bool Control(long n, const Args& a, long* r) {
  int fd = a.Fd(0);
  switch (n) {
    case SYS_close:
      *r = close(fd);
      return true;
    case SYS_dup:
      *r = dup(fd);
      return true;
    case SYS_fcntl:
      *r = fcntl(fd, a.Int(1), a.v[2]);
      return true;
    case SYS_ioctl:
      *r = ioctl(fd, a.Size(1), a.Ptr<void>(2));
      return true;
    case SYS_bind:
      *r = bind(fd, a.Ptr<sockaddr>(1), a.Uint(2));
      return true;
    case SYS_listen:
      *r = listen(fd, a.Int(1));
      return true;
    case SYS_connect:
      *r = connect(fd, a.Ptr<sockaddr>(1), a.Uint(2));
      return true;
    case SYS_accept:
      *r = accept(fd, a.Ptr<sockaddr>(1), a.Ptr<socklen_t>(2));
      return true;
    case SYS_accept4:
      *r = accept4(fd, a.Ptr<sockaddr>(1), a.Ptr<socklen_t>(2), a.Int(3));
      return true;
    case SYS_shutdown:
      *r = shutdown(fd, a.Int(1));
      return true;
    case SYS_getsockname:
      *r = getsockname(fd, a.Ptr<sockaddr>(1), a.Ptr<socklen_t>(2));
      return true;
    case SYS_getpeername:
      *r = getpeername(fd, a.Ptr<sockaddr>(1), a.Ptr<socklen_t>(2));
      return true;
    case SYS_setsockopt:
      *r = setsockopt(fd, a.Int(1), a.Int(2), a.Ptr<void>(3), a.Uint(4));
      return true;
    case SYS_getsockopt:
      *r = getsockopt(fd, a.Int(1), a.Int(2), a.Ptr<void>(3), a.Ptr<socklen_t>(4));
      return true;
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
      *r = epoll_wait(fd, a.Ptr<epoll_event>(1), a.Int(2), a.Int(3));
      return true;
#endif
    case SYS_epoll_pwait:
      *r = epoll_pwait(fd, a.Ptr<epoll_event>(1), a.Int(2), a.Int(3), a.Ptr<sigset_t>(4));
      return true;
    default:
      return false;
  }
}

// Calls whose descriptors are elsewhere than in the first argument.
bool Others(long n, const Args& a, long* r) {
  switch (n) {
    case SYS_socket:
      *r = socket(a.Int(0), a.Int(1), a.Int(2));
      return true;
    case SYS_epoll_ctl:
      *r = epoll_ctl(a.Fd(0), a.Int(1), a.Fd(2), a.Ptr<epoll_event>(3));
      return true;
    case SYS_pidfd_getfd:
      *r = pidfd_getfd(a.Fd(0), a.Fd(1), a.Uint(2));
      return true;
    case SYS_sendmsg:
      *r = sendmsg(a.Fd(0), a.Ptr<msghdr>(1), a.Int(2));
      return true;
    case SYS_sendmmsg:
      *r = sendmmsg(a.Fd(0), a.Ptr<mmsghdr>(1), a.Uint(2), a.Int(3));
      return true;
    case SYS_prctl:
      *r = prctl(a.Int(0), a.v[1], a.v[2], a.v[3], a.v[4]);
      return true;
    case SYS_seccomp:
      if (a.Uint(0) == SECCOMP_SET_MODE_STRICT
              ? a.Uint(1) == 0
              : a.Uint(0) == SECCOMP_SET_MODE_FILTER && a.v[2] != 0)
        ExportConfined();
      return false;
    case SYS_landlock_restrict_self:
      *r = Ret<long>(sys::Call6(n, a.v[0], a.v[1], a.v[2], a.v[3], a.v[4], a.v[5]));
      ForgetContacts(g_family);
      if (*r == 0 && g_family.attached && !RingsOthers(g_family)) StepAside(kReasonSandbox);
      return true;
    case SYS_setuid:
    case SYS_setreuid:
    case SYS_setresuid:  // of this thread alone, past libc
      *r = Ret<long>(sys::Call6(n, a.v[0], a.v[1], a.v[2], a.v[3], a.v[4], a.v[5]));
      if (*r == 0) UserChanged(g_family);
      return true;
    case SYS_prlimit64:
      *r = prlimit(a.Int(0), static_cast<__rlimit_resource>(a.Int(1)), a.Ptr<rlimit>(2),
                   a.Ptr<rlimit>(3));
      return true;
    case SYS_setrlimit:
      *r = setrlimit(a.Int(0), a.Ptr<rlimit>(1));
      return true;
    case SYS_io_uring_setup:
      *r = Ret<long>(RingSetup(a.Uint(0), a.Ptr<io_uring_params>(1)));
      return true;
    case SYS_io_uring_enter:
      RingEnter(a.Fd(0), a.Uint(1), a.Uint(3));
      return false;
    case SYS_io_uring_register:
      RingRegister(a.Uint(1), a.Ptr<void>(2), a.Uint(3));
      return false;
    case SYS_execve:
      *r = execve(a.Ptr<char>(0), a.Ptr<char*>(1), a.Ptr<char*>(2));
      return true;
    case SYS_close_range:
      *r = close_range(a.Uint(0), a.Uint(1), a.Int(2));
      return true;
#ifdef SYS_dup2
    case SYS_dup2:
      *r = dup2(a.Fd(0), a.Fd(1));
      return true;
#endif
    case SYS_dup3:
      *r = dup3(a.Fd(0), a.Fd(1), a.Int(2));
      return true;
    case SYS_splice:
      *r = splice(a.Fd(0), a.Ptr<off64_t>(1), a.Fd(2), a.Ptr<off64_t>(3), a.Size(4), a.Uint(5));
      return true;
#ifdef SYS_poll
    case SYS_poll:
      *r = poll(a.Ptr<pollfd>(0), a.Size(1), a.Int(2));
      return true;
#endif
    default:
      return false;
  }
}

}  // namespace

namespace {

// Whether the call makes a process with memory of its own: fork by another name.
bool Forks(long n, const Args& a) {
#ifdef SYS_fork
  if (n == SYS_fork) return true;
#endif
  if (n == SYS_clone) return (a.v[0] & (CLONE_VM | CLONE_THREAD)) == 0;
  if (n != SYS_clone3 || a.v[0] == 0) return false;
  uint64_t flags;  // the first member of struct clone_args
  memcpy(&flags, reinterpret_cast<const void*>(a.v[0]), sizeof flags);
  return (flags & (CLONE_VM | CLONE_THREAD)) == 0;
}

// As libc's syscall() has it: only the last page's numbers are errors. A position in /proc/PID/mem
// may be negative as a long.
long Result(long r) { return r < -4095 ? r : Ret<long>(r); }

// Past libc's fork handlers, so the child's share of the stack is seen to here.
long ForkRaw(long n, const Args& a) {
  ForkPrepare(g_family);
  long r = sys::Call6(n, a.v[0], a.v[1], a.v[2], a.v[3], a.v[4], a.v[5]);
  if (r == 0) {
    ForkChild(g_family);
    return 0;
  }
  ForkParent(g_family);
  if (g_family.attached && EmbryoSlot(g_family) != PSTN_NONE) {
    Adopted(EmbryoSlot(g_family), static_cast<pid_t>(r));
  }
  return Ret<long>(r);
}

}  // namespace

PSTN_EXPORT long syscall(long n, ...) noexcept {
  Args a;
  va_list ap;
  va_start(ap, n);
  for (long& v : a.v) v = va_arg(ap, long);
  va_end(ap);
  if (g_family.enabled) {
    long r;
    if (Forks(n, a)) return ForkRaw(n, a);
    const bool known = FdMeans(g_family, a.Fd(0)) != 0 || MayBeSet(g_family, a.Fd(0));
    if (known && (Data(n, a, &r) || Control(n, a, &r))) return r;
    if (Others(n, a, &r)) return r;
  }
  return Result(sys::Call6(n, a.v[0], a.v[1], a.v[2], a.v[3], a.v[4], a.v[5]));
}
