// SPDX-License-Identifier: Apache-2.0
// sys.h - system calls made directly, so that neither our own hooks nor errno are involved.
//
// Each returns what the kernel returns: a value, or -errno. Safe in signal handlers and before
// main.
#pragma once
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/atomic.h"

namespace postern::sys {

inline long Call6(long n, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long ret;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(ret)
                   : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return ret;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = n;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
#else
#error "port the system call instruction"
#endif
}

template <typename T>
inline long Word(T v) {
  if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<long>(v);
  } else {
    return static_cast<long>(v);
  }
}

template <typename... A>
inline long Call(long n, A... args) {
  long v[6] = {};
  size_t i = 0;
  ((v[i++] = Word(args)), ...);
  return Call6(n, v[0], v[1], v[2], v[3], v[4], v[5]);
}

#if defined(__SANITIZE_THREAD__)
// What closes a number has to happen before what opens it again: ThreadSanitizer watches libc's
// functions for that, and would see the second half only.
extern "C" void __sanitizer_syscall_pre_impl_close(long fd);
inline int Close(int fd) {
  __sanitizer_syscall_pre_impl_close(fd);
  return static_cast<int>(Call(SYS_close, fd));
}
#else
inline int Close(int fd) { return static_cast<int>(Call(SYS_close, fd)); }
#endif
inline int Fcntl(int fd, int cmd, long arg) {
  return static_cast<int>(Call(SYS_fcntl, fd, cmd, arg));
}
inline int Socket(int f, int t, int p) { return static_cast<int>(Call(SYS_socket, f, t, p)); }
inline int Dup3(int from, int to, int flags) {
  return static_cast<int>(Call(SYS_dup3, from, to, flags));
}
inline int Tid() { return static_cast<int>(Call(SYS_gettid)); }
inline int Pid() { return static_cast<int>(Call(SYS_getpid)); }
// False for a thread that does not exist, and for a process that is dead and not yet waited for.
inline bool ThreadIsAlive(uint32_t tid) {
  if (Call(SYS_kill, static_cast<long>(tid), 0L) == -3) return false;  // ESRCH
  int fd = static_cast<int>(Call(SYS_pidfd_open, static_cast<long>(tid), 0L));
  if (fd < 0) return true;  // not the first thread of its process: those leave no zombie
  pollfd p = {fd, POLLIN, 0};
  bool dead = Call(SYS_poll, &p, 1L, 0L) > 0;
  Close(fd);
  return !dead;
}

inline long FutexWait(uint32_t* word, uint32_t expected, const timespec* relative) {
  return Call(SYS_futex, word, FUTEX_WAIT, static_cast<long>(expected), relative, 0L, 0L);
}
inline long FutexWake(uint32_t* word, int count) {
  return Call(SYS_futex, word, FUTEX_WAKE, static_cast<long>(count), 0L, 0L, 0L);
}

// Where our numbers begin under a large limit: behind what select() can name, and where no program
// would put one of its own. dup2() over one of ours is EBADF.
inline constexpr long kOursFrom = 1747;

// While one exists, the limit on numbers is higher than the program has set it, where that is
// allowed. One thread at a time: two would each put back what they have found.
class AboveLimit {
 public:
  static constexpr uint64_t kHighest = 65536;  // tables by number stay small
  static constexpr uint64_t kSmall = 4096;     // a program with so many numbers may use them all
  AboveLimit() {
    const uint32_t own = static_cast<uint32_t>(Pid());  // a child of fork has no other thread
    uint32_t seen = LoadRelaxed(busy_);
    if (seen == own || !CompareExchange(busy_, seen, own)) return;
    constexpr uint64_t kRoom = 4096;
    mine_ = true;
    (void)Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), nullptr, &limit_);
    if (limit_.rlim_cur > kHighest) return;
    rlimit more = {limit_.rlim_cur + kRoom, limit_.rlim_max};
    if (more.rlim_max < more.rlim_cur) more.rlim_max = more.rlim_cur;
    raised_ = Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), &more, nullptr) == 0;
  }
  ~AboveLimit() {
    if (raised_) (void)Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), &limit_, nullptr);
    if (mine_) StoreRelaxed(busy_, 0u);
  }
  AboveLimit(const AboveLimit&) = delete;
  AboveLimit& operator=(const AboveLimit&) = delete;
  bool raised() const { return raised_; }
  long programs() const { return static_cast<long>(limit_.rlim_cur); }  // the first beyond it

 private:
  static uint32_t busy_;  // (a) the process of the thread that has one; 0: none has (room.cc)
  rlimit limit_ = {1024, 1024};
  bool mine_ = false, raised_ = false;
};

// A duplicate out of the program's way, close-on-exec. Under a small limit on numbers that is
// raised for the moment, where that is allowed: no call of the program can then mean ours, or count
// it; else it is among the highest numbers. Under a large one it is low, since each fork copies the
// table up to the highest number (at 20,000 that took 0.2 ms of 0.9).
inline int DupHigh(int fd) {
  constexpr uint64_t kOurs = 512;
  rlimit limit = {1024, 1024};
  (void)Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), nullptr, &limit);
  if (limit.rlim_cur > AboveLimit::kSmall) return Fcntl(fd, F_DUPFD_CLOEXEC, kOursFrom);
  {
    const AboveLimit above;
    const int high = above.raised() ? Fcntl(fd, F_DUPFD_CLOEXEC, above.programs()) : -1;
    if (high >= 0) return high;
  }
  const uint64_t end = limit.rlim_cur, ours = end / 8 < kOurs ? end / 8 : kOurs;
  return Fcntl(fd, F_DUPFD_CLOEXEC, static_cast<long>(end - ours));
}

// A descriptor of the library's own by `make()`, for which the program's limit need not have room.
template <typename Make>
inline long MakeOurs(Make make) {
  const long r = make();
  if (r != -24) return r;  // EMFILE
  const AboveLimit above;
  return above.raised() ? make() : r;
}

inline void Nap(uint64_t ns) {
  timespec ts = {0, static_cast<long>(ns)};
  (void)Call(SYS_nanosleep, &ts, nullptr);
}

// Maps shared memory; null on failure.
inline void* MapShared(int fd, size_t bytes, int prot) {
  long r = Call(SYS_mmap, 0L, bytes, prot, MAP_SHARED, fd, 0L);
  return r < 0 && r > -4096 ? nullptr : reinterpret_cast<void*>(r);
}
// Zeroed memory of this process alone; null: none.
inline void* MapPrivate(size_t bytes) {
  long r = Call(SYS_mmap, 0L, bytes, static_cast<long>(PROT_READ | PROT_WRITE),
                static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
  return r < 0 && r > -4096 ? nullptr : reinterpret_cast<void*>(r);
}
inline void Unmap(void* p, size_t bytes) { (void)Call(SYS_munmap, p, bytes); }

}  // namespace postern::sys
