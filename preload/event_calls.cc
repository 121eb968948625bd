// SPDX-License-Identifier: Apache-2.0
// event_calls.cc - epoll, poll and select.
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include <climits>
#include <cstring>
#include <initializer_list>

#include "base/clock.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "event/epoll.h"
#include "event/poll.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/turn.h"
#include "real.h"
#include "sock/own_family.h"
#include "sock/watch.h"

using namespace postern;

namespace {

bool IsSet(int epfd) { return SockIsSet(g_family, epfd); }

bool BadTime(const timespec* ts) {
  return ts != nullptr && (ts->tv_sec < 0 || ts->tv_nsec < 0 || ts->tv_nsec > 999999999);
}
Deadline Until(const timespec* ts) {
  return ts == nullptr ? Deadline::Never() : Deadline::After(*ts);
}

// What a call that waits for many is about, as far as it is the library's to know. Of a program
// that has no accelerated socket nothing is, and its memory is not looked at; nor is memory that
// can't be read, of which the kernel says so.
enum class About : uint8_t { kKernels, kHidden, kOurs };

// Any accelerated socket among the descriptors of a select?
bool SelectHasOurs(int n, const fd_set* r, const fd_set* w, const fd_set* x) {
  for (int at = 0; at < n; at += 64) {
    uint64_t bits = 0;
    for (const fd_set* s : {r, w, x}) {
      if (s != nullptr) bits |= reinterpret_cast<const uint64_t*>(s)[at / 64];
    }
    for (; bits != 0; bits &= bits - 1) {
      int fd = at + __builtin_ctzll(bits);
      if (fd >= n) break;
      const Call call(g_family, fd);
      if (SockIsServed(call) || IsSet(fd)) return true;
    }
  }
  return false;
}

// A number among them that is closed to the program, though the kernel knows it?
bool SelectHasHidden(int n, const fd_set* r, const fd_set* w, const fd_set* x) {
  for (int at = 0; at < n; at += 64) {
    uint64_t bits = 0;
    for (const fd_set* s : {r, w, x}) {
      if (s != nullptr) bits |= reinterpret_cast<const uint64_t*>(s)[at / 64];
    }
    for (; bits != 0; bits &= bits - 1) {
      int fd = at + __builtin_ctzll(bits);
      if (fd < n && Foreign(fd) != kPass) return true;
    }
  }
  return false;
}

// poll() with such numbers: as the kernel does it, POLLNVAL makes the call return at once. The
// caller's array is changed for the time of the call: negative numbers are skipped, and none is as
// low as these.
bool PollHasHidden(const pollfd* fds, nfds_t n) {
  for (nfds_t i = 0; i < n; i++) {
    if (Foreign(fds[i].fd) != kPass) return true;
  }
  return false;
}
About PollIsAbout(pollfd* fds, nfds_t n) {
  if (!g_faults_watched || n > kFdMax || !UserReadable(fds, n * sizeof *fds))
    return About::kKernels;
  if (PollHasHidden(fds, n)) return About::kHidden;
  return AnyOurs(g_family, fds, n) ? About::kOurs : About::kKernels;
}

// The sets of a select() below `n`, as many numbers as the kernel looks at: those that there are.
size_t SetBytes(int n) { return (static_cast<size_t>(n) + 63) / 64 * 8; }
int Looked(int n) {
  const auto hw = static_cast<int>(LoadAcquire(g_family.fd_hw));  // [T1]
  return n < hw ? n : hw;
}
About SelectIsAbout(int n, const fd_set* r, const fd_set* w, const fd_set* x) {
  if (!g_faults_watched || n <= 0) return About::kKernels;
  const int looked = Looked(n);
  for (const fd_set* s : {r, w, x})
    if (s != nullptr && !UserReadable(s, SetBytes(looked))) return About::kKernels;
  if (SelectHasHidden(looked, r, w, x)) return About::kHidden;
  return SelectHasOurs(looked, r, w, x) ? About::kOurs : About::kKernels;
}

// poll() in memory that can be read only: it waits as any, and then can't tell.
long PollInVain(const pollfd* fds, nfds_t n, Deadline until, const sigset_t* mask) {
  constexpr nfds_t kMost = 64;
  pollfd copy[kMost];
  if (n <= kMost && CopyUser(copy, fds, n * sizeof *fds))
    (void)SockPoll(g_family, copy, n, until, mask);
  return -EFAULT;
}
long PollOurs(pollfd* fds, nfds_t n, Deadline until, const sigset_t* mask) {
  if (mask != nullptr && !UserReadable(mask, 8)) return -EFAULT;
  if (!UserWritable(fds, n * sizeof *fds)) return PollInVain(fds, n, until, mask);
  return WireEvents(g_family, SockPoll(g_family, fds, n, until, mask));
}
long SelectOurs(int n, fd_set* r, fd_set* w, fd_set* x, Deadline until, const sigset_t* mask) {
  if (n > static_cast<int>(kFdMax)) n = static_cast<int>(kFdMax);
  if (mask != nullptr && !UserReadable(mask, 8)) return -EFAULT;
  for (const fd_set* s : {r, w, x})
    if (s != nullptr && !UserReadable(s, SetBytes(n))) return -EFAULT;
  for (fd_set* s : {r, w, x})
    if (s != nullptr && !UserWritable(s, SetBytes(n))) return -EFAULT;
  return SockSelect(g_family, n, r, w, x, until, mask);
}
int PollHidden(pollfd* fds, nfds_t n) {
  if (!UserWritable(fds, n * sizeof *fds)) return Ret<int>(-EFAULT);
  int hidden = 0;
  for (nfds_t i = 0; i < n; i++) {
    if (Foreign(fds[i].fd) != kPass) fds[i].fd += INT_MIN, hidden++;
  }
  int r = poll(fds, n, 0);
  for (nfds_t i = 0; i < n; i++) {
    if (fds[i].fd < 0 && Foreign(fds[i].fd - INT_MIN) != kPass) {
      fds[i].fd -= INT_MIN;
      fds[i].revents = POLLNVAL;
    }
  }
  return r < 0 ? r : r + hidden;
}

// The kernel's answer for a set that it served alone: the set may have become ours meanwhile, and
// events of sets within it may be over. If nothing is left, the wait goes on.
int AfterKernelWait(int epfd, epoll_event* out, int r, int max, Deadline until,
                    const sigset_t* mask) {
  while (r > 0) {
    const long kept = SockEpollFilter(g_family, epfd, out, r);
    if (kept != 0 || until.left_ns() == 0) return static_cast<int>(kept);
    if (IsSet(epfd)) {
      const long ours = SockEpollWait(g_family, epfd, out, max, until, mask);
      if (ours != kPass) return Ret<int>(ours);
    }
    if (IsHidden(FdMeans(g_family, epfd))) return Ret<int>(-EBADF);
    uint64_t ms = until.never() ? 0 : (until.left_ns() + 999999) / 1000000;
    r = PSTN_REAL(epoll_pwait)(
        epfd, out, max, until.never() ? -1 : static_cast<int>(ms < INT32_MAX ? ms : INT32_MAX),
        mask);
  }
  return r;
}

}  // namespace

PSTN_EXPORT int epoll_ctl(int epfd, int op, int fd, epoll_event* ev) noexcept {
  long r = Foreign(epfd);
  if (r != kPass) return Ret<int>(r);
  {
    const Call call(g_family, fd);
    r = call.ep() == nullptr ? Foreign(fd) : SockWatch(g_family, call, epfd, op, fd, ev);
  }
  if (r == -EMFILE && OutOfFds(Ret<int>(r))) return epoll_ctl(epfd, op, fd, ev);
  if (r != kPass) return Ret<int>(r);
  // A tail call: each return after a system call is one that the CPU has not predicted.
  if (!MayBeSet(g_family, fd)) return PSTN_REAL(epoll_ctl)(epfd, op, fd, ev);
  int done = PSTN_REAL(epoll_ctl)(epfd, op, fd, ev);
  if (done == 0) SockEpollNest(g_family, epfd, op, fd, ev);
  return done;
}
PSTN_EXPORT int epoll_wait(int epfd, epoll_event* out, int max, int ms) {
  WaitsForMany waits;
  long r = IsSet(epfd) ? SockEpollWait(g_family, epfd, out, max, Deadline::AfterMs(ms), nullptr)
                       : Foreign(epfd);
  if (r != kPass) return Ret<int>(r);
  Deadline until = Deadline::AfterMs(ms);
  return AfterKernelWait(epfd, out, PSTN_REAL(epoll_wait)(epfd, out, max, ms), max, until, nullptr);
}
PSTN_EXPORT int epoll_pwait(int epfd, epoll_event* out, int max, int ms, const sigset_t* mask) {
  WaitsForMany waits;
  long r = Foreign(epfd);
  if (IsSet(epfd)) {
    if (mask != nullptr && !UserReadable(mask, 8)) return Ret<int>(-EFAULT);
    r = SockEpollWait(g_family, epfd, out, max, Deadline::AfterMs(ms), mask);
  }
  if (r != kPass) return Ret<int>(r);
  Deadline until = Deadline::AfterMs(ms);
  return AfterKernelWait(epfd, out, PSTN_REAL(epoll_pwait)(epfd, out, max, ms, mask), max, until,
                         mask);
}
PSTN_EXPORT int epoll_pwait2(int epfd, epoll_event* out, int max, const timespec* ts,
                             const sigset_t* mask) {
  WaitsForMany waits;
  long r = Foreign(epfd);
  if (IsSet(epfd)) {
    if (ts != nullptr && !UserReadable(ts, sizeof *ts)) return Ret<int>(-EFAULT);
    if (BadTime(ts)) return Ret<int>(-EINVAL);
    if (mask != nullptr && !UserReadable(mask, 8)) return Ret<int>(-EFAULT);
    r = SockEpollWait(g_family, epfd, out, max, Until(ts), mask);
  }
  if (r != kPass) return Ret<int>(r);
  const bool timed =
      ts != nullptr && g_faults_watched && UserReadable(ts, sizeof *ts) && !BadTime(ts);
  Deadline until = timed ? Until(ts) : Deadline::Never();
  return AfterKernelWait(epfd, out, PSTN_REAL(epoll_pwait2)(epfd, out, max, ts, mask), max, until,
                         mask);
}

PSTN_EXPORT int poll(pollfd* fds, nfds_t n, int ms) {
  const About about = PollIsAbout(fds, n);
  if (about == About::kKernels) return PSTN_REAL(poll)(fds, n, ms);
  if (about == About::kHidden) return PollHidden(fds, n);
  WaitsForMany waits;
  return Ret<int>(PollOurs(fds, n, Deadline::AfterMs(ms), nullptr));
}
PSTN_EXPORT int __poll_chk(pollfd* fds, nfds_t n, int ms, size_t room) {
  if (room / sizeof *fds < n) __builtin_trap();
  return poll(fds, n, ms);
}
PSTN_EXPORT int ppoll(pollfd* fds, nfds_t n, const timespec* ts, const sigset_t* mask) {
  const About about = PollIsAbout(fds, n);
  if (about == About::kKernels) return PSTN_REAL(ppoll)(fds, n, ts, mask);
  if (about == About::kHidden) return PollHidden(fds, n);
  if (BadTime(ts)) return Ret<int>(-EINVAL);
  WaitsForMany waits;
  return Ret<int>(PollOurs(fds, n, Until(ts), mask));
}
PSTN_EXPORT int __ppoll_chk(pollfd* fds, nfds_t n, const timespec* ts, const sigset_t* mask,
                            size_t room) {
  if (room / sizeof *fds < n) __builtin_trap();
  return ppoll(fds, n, ts, mask);
}

PSTN_EXPORT int select(int n, fd_set* r, fd_set* w, fd_set* x, timeval* tv) {
  const About about = SelectIsAbout(n, r, w, x);
  if (about == About::kKernels) return PSTN_REAL(select)(n, r, w, x, tv);
  if (about == About::kHidden) return Ret<int>(-EBADF);
  if (tv != nullptr && (tv->tv_sec < 0 || tv->tv_usec < 0)) return Ret<int>(-EINVAL);
  // The kernel, too, takes microseconds beyond a second.
  Deadline until =
      tv == nullptr
          ? Deadline::Never()
          : Deadline::After({tv->tv_sec + tv->tv_usec / 1000000, tv->tv_usec % 1000000 * 1000});
  WaitsForMany waits;
  long got = SelectOurs(n, r, w, x, until, nullptr);
  if (tv != nullptr && !until.never()) {  // Linux tells the time that was left
    const uint64_t left = until.left_ns();
    const timeval rest = {static_cast<time_t>(left / 1000000000u),
                          static_cast<suseconds_t>(left % 1000000000u / 1000u)};
    (void)PutUser(tv, rest);  // where it can
  }
  return Ret<int>(got);
}
PSTN_EXPORT int pselect(int n, fd_set* r, fd_set* w, fd_set* x, const timespec* ts,
                        const sigset_t* mask) {
  const About about = SelectIsAbout(n, r, w, x);
  if (about == About::kKernels) return PSTN_REAL(pselect)(n, r, w, x, ts, mask);
  if (about == About::kHidden) return Ret<int>(-EBADF);
  if (BadTime(ts)) return Ret<int>(-EINVAL);
  WaitsForMany waits;
  return Ret<int>(SelectOurs(n, r, w, x, Until(ts), mask));
}

PSTN_EXPORT int pthread_cancel(pthread_t thread) {
  FetchAdd(g_family.cancels, 1u);
  const int r = PSTN_REAL(pthread_cancel)(thread);
  if (r == 0) WakeOwnSleepers(g_family);
  return r;
}
