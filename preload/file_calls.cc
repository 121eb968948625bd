// SPDX-License-Identifier: Apache-2.0
// file_calls.cc - calls on descriptors of any kind: close, dup, fcntl, sendfile, splice, stdio, and
// those that make descriptors, so that a number closed behind our back is noticed when it comes
// again.
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/refs.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "leaving.h"
#include "option/socket_options.h"
#include "peer/close.h"
#include "real.h"
#include "sock/message.h"
#include "sock/own_family.h"

using namespace postern;

namespace {

// A socket stays until the image comes, which may be one that gets it from the kernel.
int CloseInVfork(int fd) {
  const uint32_t e = FdEntry(g_family, fd);
  if (IsHidden(e)) return Ret<int>(-EBADF);
  return (e & PSTN_FD_KIND) == PSTN_FD_EP ? Ret<int>(sys::Fcntl(fd, F_SETFD, FD_CLOEXEC))
                                          : Ret<int>(sys::Close(fd));
}

int DupInVfork(int fd, int r) {
  if (r >= 0) NoteMoved(fd);
  return r;
}

}  // namespace

PSTN_EXPORT int close(int fd) {
  if (InVfork()) return CloseInVfork(fd);
  for (;;) {
    const uint32_t e = AwaitReplaced(g_family, fd);
    if (e == 0 && MayBeSet(g_family, fd)) {
      const long r = SockEpollClose(g_family, fd);
      if (r == -EAGAIN) continue;
      return Ret<int>(r);
    }
    if (e == 0) {
      auto real = PSTN_REAL(close);
      return real != nullptr ? real(fd) : Ret<int>(sys::Close(fd));
    }
    if (IsHidden(e)) return Ret<int>(-EBADF);
    const long r = SockClose(g_family, fd, e);
    if (r != -EAGAIN) return Ret<int>(r);  // else it means something else by now
  }
}

namespace {

// The kernel's close_range over [first, last], which holds nothing of ours.
int KernelCloseRange(unsigned first, unsigned last, int flags) {
  if (first > last) return 0;
  return Ret<int>(sys::Call(SYS_close_range, static_cast<unsigned long>(first),
                            static_cast<unsigned long>(last), static_cast<long>(flags)));
}

}  // namespace

PSTN_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  constexpr unsigned kKnown = CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC;
  if (first > last || (static_cast<unsigned>(flags) & ~kKnown) != 0) return Ret<int>(-EINVAL);
  unsigned hw = LoadAcquire(g_family.fd_hw);  // [T1]
  unsigned gap = first;
  for (unsigned fd = first; fd < hw && fd <= last; fd++) {
    uint32_t e = FdMeans(g_family, static_cast<int>(fd));
    if (e == 0) continue;
    if (gap < fd && KernelCloseRange(gap, fd - 1, flags) != 0) return -1;
    gap = fd + 1;
    if ((static_cast<unsigned>(flags) & CLOSE_RANGE_CLOEXEC) == 0) {
      (void)close(static_cast<int>(fd));
    } else if ((e & PSTN_FD_KIND) == PSTN_FD_EP || (e & PSTN_FD_KIND) == PSTN_FD_EPOLL) {
      (void)fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
    }
  }
  return KernelCloseRange(gap, last, flags);
}
PSTN_EXPORT void closefrom(int low) noexcept {
  (void)close_range(low < 0 ? 0u : static_cast<unsigned>(low), ~0u, 0);
}

namespace {

// A duplicate of `fd` by `make()`. Another thread may give the number to another file meanwhile: it
// changes the table before the kernel hears of it, so if the table is as before, the duplicate is
// of what the table says.
template <typename Make>
int Duplicate(int fd, Make make) {
  for (;;) {
    Call call(g_family, fd);
    if (IsHidden(call.entry())) return Ret<int>(-EBADF);
    TableChange change(g_family);
    const Fresh fresh;
    const bool kernel_set = call.entry() == 0 && MayBeSet(g_family, fd);
    if (kernel_set) SockEpollDups(g_family, fd);
    int r = make();
    if (OutOfFds(r)) r = make();
    if (r < 0) return r;
    fresh.Fd(r);
    if (FdEntry(g_family, fd) == call.entry()) {
      if (call.entry() != 0) SockDup(g_family, call.entry(), r);
      if (kernel_set) SockEpollDuped(g_family, r);
      return r;
    }
    sys::Close(r);
  }
}

// Claims `to`: what it means goes, but for calls that are under way on it. What it was, whose
// reference is the caller's. False: a number of the library's own.
bool Vacate(int to, uint32_t* old) {
  for (*old = 0; static_cast<uint32_t>(to) < kFdMax;) {
    *old = AwaitUnclaimed(g_family, to);
    if ((*old & PSTN_FD_KIND) == PSTN_FD_CACHED) {
      CacheRemove(g_family, to);
    } else if ((*old & PSTN_FD_KIND) == PSTN_FD_INTERNAL) {
      return false;
    } else if (ClaimFd(g_family, to, *old, kFdReplaced)) {
      if (*old != 0) (void)HandToUsers(g_family, to, *old);
      return true;
    }
  }
  return true;
}

// Around dup2(). A number that means nothing in the table may have just been given to another
// thread, which has not entered what it means: that would replace what dup2() enters. So no other
// thread changes the table meanwhile, as during a fork.
class Replacing {
 public:
  explicit Replacing(bool alone) : alone_(alone) {
    if (alone_) TableFreeze(g_family);
  }
  ~Replacing() {
    if (alone_) TableThaw(g_family);
  }
  Replacing(const Replacing&) = delete;
  Replacing& operator=(const Replacing&) = delete;

 private:
  const bool alone_;
};

// dup3(), on `to` as it was when `is_fresh` was found. kPass: it is fresh after all.
int ReplaceNumber(const Call& call, int from, int to, int flags, bool is_fresh) {
  const Replacing replacing(is_fresh);
  TableChange change(g_family);
  uint32_t old;
  if (!Vacate(to, &old)) return Ret<int>(-EBADF);
  if (old == 0 && !is_fresh && g_family.attached && __libc_single_threaded == 0) {
    uint32_t claimed = kFdReplaced;  // another thread may have entered what it has been given
    if (static_cast<uint32_t>(to) < kFdMax) (void)CompareExchange(g_family.fd[to], claimed, 0u);
    return static_cast<int>(kPass);
  }
  const bool kernel_set = call.entry() == 0 && MayBeSet(g_family, from);
  if (kernel_set) SockEpollDups(g_family, from);
  // By the number that this call has: the program's may mean another file by now (Duplicate).
  int r = PSTN_REAL(dup3)(call.fd(), to, flags);
  const int e = errno;
  if (r >= 0 && MayBeSet(g_family, to)) SockEpollGone(g_family, to);
  if (r >= 0 && kernel_set) SockEpollDuped(g_family, to);
  if (r < 0) {
    MarkPrivate(g_family, to, old);
  } else {
    if (old != 0) DropNumber(g_family, to, old);
    if (call.entry() != 0)
      SockDup(g_family, call.entry(), to);
    else
      MarkPrivate(g_family, to, 0);
  }
  if (is_fresh) FetchAdd(g_family.replaced, 1u);  // [T7]
  if (r < 0) errno = e;
  return r;
}

}  // namespace

PSTN_EXPORT int dup(int fd) noexcept {
  if (InVfork()) return DupInVfork(fd, PSTN_REAL(dup)(fd));
  return NoteStandard(Duplicate(fd, [&] { return PSTN_REAL(dup)(fd); }), true);
}

namespace {

int Dup3(int from, int to, int flags) {
  Call call(g_family, from);
  if (IsHidden(call.entry())) return Ret<int>(-EBADF);
  if (from == to) return PSTN_REAL(dup3)(from, to, flags);
  const bool is_fresh =
      g_family.attached && __libc_single_threaded == 0 && FdMeans(g_family, to) == 0;
  const int r = ReplaceNumber(call, from, to, flags, is_fresh);
  return r != static_cast<int>(kPass) ? r : ReplaceNumber(call, from, to, flags, true);
}

}  // namespace

PSTN_EXPORT int dup3(int from, int to, int flags) noexcept {
  if (InVfork()) return DupInVfork(from, PSTN_REAL(dup3)(from, to, flags));
  return NoteStandard(Dup3(from, to, flags), true);
}
PSTN_EXPORT int dup2(int from, int to) noexcept {
  if (from == to) return Foreign(from) == kPass ? PSTN_REAL(dup2)(from, to) : Ret<int>(-EBADF);
  return dup3(from, to, 0);
}

PSTN_EXPORT int fcntl(int fd, int cmd, ...) {
  va_list ap;
  va_start(ap, cmd);
  long arg = va_arg(ap, long);
  va_end(ap);
  const bool dups = cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC;
  if (InVfork() && (dups || cmd == F_GETFD || cmd == F_SETFD)) {
    const int r = PSTN_REAL(fcntl)(fd, cmd, arg);
    return dups ? DupInVfork(fd, r) : r;
  }
  uint32_t e = FdMeans(g_family, fd);
  if (e == 0 && !(dups && MayBeSet(g_family, fd))) {
    const Fresh fresh;
    int r = PSTN_REAL(fcntl)(fd, cmd, arg);
    return dups ? fresh.Fd(r) : r;
  }
  uint32_t kind = e & PSTN_FD_KIND;
  if (kind == PSTN_FD_CACHED || kind == PSTN_FD_INTERNAL) return Ret<int>(-EBADF);
  if (dups)
    return NoteStandard(Duplicate(fd, [&] { return PSTN_REAL(fcntl)(fd, cmd, arg); }), true);
  return Through<int>(
      fd, [&](Call& call) { return SockFcntl(g_family, call.fd(), *call.ep(), cmd, arg); },
      [&](int real_fd) { return PSTN_REAL(fcntl)(real_fd, cmd, arg); });
}
PSTN_EXPORT int fcntl64(int fd, int cmd, ...) {
  va_list ap;
  va_start(ap, cmd);
  long arg = va_arg(ap, long);
  va_end(ap);
  return fcntl(fd, cmd, arg);
}

// Only so that a number which the program has closed is closed for these, too.
PSTN_EXPORT int fstat(int fd, struct stat* st) noexcept {
  return Foreign(fd) == kPass ? PSTN_REAL(fstat)(fd, st) : Ret<int>(-EBADF);
}
PSTN_EXPORT int fstat64(int fd, struct stat64* st) noexcept {
  return Foreign(fd) == kPass ? PSTN_REAL(fstat64)(fd, st) : Ret<int>(-EBADF);
}
extern "C" int __fxstat(int version, int fd, struct stat* st) noexcept;
extern "C" int __fxstat64(int version, int fd, struct stat64* st) noexcept;
PSTN_EXPORT int __fxstat(int version, int fd, struct stat* st) noexcept {
  return Foreign(fd) == kPass ? PSTN_REAL(__fxstat)(version, fd, st) : Ret<int>(-EBADF);
}
PSTN_EXPORT int __fxstat64(int version, int fd, struct stat64* st) noexcept {
  return Foreign(fd) == kPass ? PSTN_REAL(__fxstat64)(version, fd, st) : Ret<int>(-EBADF);
}
PSTN_EXPORT off_t lseek(int fd, off_t offset, int whence) noexcept {
  return Foreign(fd) == kPass ? PSTN_REAL(lseek)(fd, offset, whence) : Ret<off_t>(-EBADF);
}
PSTN_EXPORT off64_t lseek64(int fd, off64_t offset, int whence) noexcept {
  return Foreign(fd) == kPass ? PSTN_REAL(lseek64)(fd, offset, whence) : Ret<off64_t>(-EBADF);
}

// ---------------------------------------------------------------- moving data

PSTN_EXPORT ssize_t sendfile(int out, int in, off_t* offset, size_t count) noexcept {
  if (Foreign(in) != kPass) return Ret<ssize_t>(-EBADF);
  return Through<ssize_t>(
      out, [&](Call& call) { return SockSendfile(g_family, call, in, offset, count); },
      [&](int real_fd) { return PSTN_REAL(sendfile)(real_fd, in, offset, count); });
}
PSTN_EXPORT ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) noexcept {
  return sendfile(out, in, offset, count);
}
PSTN_EXPORT ssize_t splice(int in, off64_t* off_in, int out, off64_t* off_out, size_t len,
                           unsigned flags) {
  for (;;) {
    Call call_in(g_family, in);
    Call call_out(g_family, out, call_in);
    long r = -EBADF;
    if (!IsHidden(call_in.entry()) && !IsHidden(call_out.entry()))
      r = SockSplice(g_family, call_in, off_in, call_out, off_out, in, out, len, flags);
    if (r == kRestart) continue;
    return r != kPass ? Ret<ssize_t>(r)
                      : PSTN_REAL(splice)(call_in.fd(), off_in, call_out.fd(), off_out, len, flags);
  }
}

// ---------------------------------------------------------------- descriptors that are not ours

#define PSTN_WATCHED(call)         \
  const Fresh fresh_;              \
  int fd_ = (call);                \
  if (OutOfFds(fd_)) fd_ = (call); \
  return fresh_.Fd(fd_)

namespace {
unsigned ModeOf(int flags, va_list ap) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(ap, unsigned) : 0;
}

int OpenAt(int dir, const char* path, int flags, unsigned mode) {
  auto real = PSTN_REAL(openat);
  if (real != nullptr) return real(dir, path, flags, mode);
  return Ret<int>(
      sys::Call(SYS_openat, dir, path, static_cast<long>(flags), static_cast<long>(mode)));
}
}  // namespace

PSTN_EXPORT int open(const char* path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  unsigned mode = ModeOf(flags, ap);
  va_end(ap);
  PSTN_WATCHED(OpenAt(AT_FDCWD, path, flags, mode));
}
PSTN_EXPORT int open64(const char* path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  unsigned mode = ModeOf(flags, ap);
  va_end(ap);
  PSTN_WATCHED(OpenAt(AT_FDCWD, path, flags | O_LARGEFILE, mode));
}
PSTN_EXPORT int openat(int dir, const char* path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  unsigned mode = ModeOf(flags, ap);
  va_end(ap);
  PSTN_WATCHED(OpenAt(dir, path, flags, mode));
}
PSTN_EXPORT int openat64(int dir, const char* path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  unsigned mode = ModeOf(flags, ap);
  va_end(ap);
  PSTN_WATCHED(OpenAt(dir, path, flags | O_LARGEFILE, mode));
}
PSTN_EXPORT int creat(const char* path, mode_t mode) {
  return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
PSTN_EXPORT int creat64(const char* path, mode_t mode) {
  return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

PSTN_EXPORT int pipe2(int p[2], int flags) noexcept {
  const Fresh fresh;
  int r = PSTN_REAL(pipe2)(p, flags);
  if (OutOfFds(r)) r = PSTN_REAL(pipe2)(p, flags);
  if (r == 0) fresh.Fd(p[0]), fresh.Fd(p[1]);
  return r;
}
PSTN_EXPORT int pipe(int p[2]) noexcept { return pipe2(p, 0); }
PSTN_EXPORT int eventfd(unsigned count, int flags) noexcept {
  PSTN_WATCHED(PSTN_REAL(eventfd)(count, flags));
}
PSTN_EXPORT int timerfd_create(clockid_t clock, int flags) noexcept {
  PSTN_WATCHED(PSTN_REAL(timerfd_create)(clock, flags));
}
PSTN_EXPORT int epoll_create1(int flags) noexcept {
  if (InVfork()) return PSTN_REAL(epoll_create1)(flags);
  TableChange change(g_family);  // as in close()
  const Fresh fresh;
  int fd = PSTN_REAL(epoll_create1)(flags);
  if (OutOfFds(fd)) fd = PSTN_REAL(epoll_create1)(flags);
  fresh.Fd(fd);
  if (fd >= 0) SockEpollMade(g_family, fd);
  return fd;
}
PSTN_EXPORT int epoll_create(int size) noexcept {
  return size <= 0 ? Ret<int>(-EINVAL) : epoll_create1(0);
}
