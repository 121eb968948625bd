// SPDX-License-Identifier: Apache-2.0
// one_entry_ring.h - an io_uring for one request at a time, made and used by libc's syscall() as
// libuv makes its own; or, with RING_INLINE, by the program's own system call instructions.
#pragma once
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/sys.h"

namespace ring {

inline long Raw(long number, long a, long b, long c = 0, long d = 0) {
  return postern::sys::Call6(number, a, b, c, d, 0, 0);
}

// The kernel's own answer, past whatever stands in for libc. The number is not a constant of the
// code: Postern takes a program that has it for one with rings of its own.
inline long KernelSetup(unsigned entries, io_uring_params* params) {
  volatile long number = SYS_io_uring_setup;
  return Raw(number, entries, reinterpret_cast<long>(params));
}

inline long Setup(unsigned entries, io_uring_params* params) {
#ifdef RING_INLINE
  return Raw(SYS_io_uring_setup, entries, reinterpret_cast<long>(params));
#else
  const long r = syscall(SYS_io_uring_setup, entries, params);
  return r < 0 ? -errno : r;
#endif
}
inline long Enter(int fd, unsigned submit, unsigned wait, unsigned flags) {
#ifdef RING_INLINE
  return Raw(SYS_io_uring_enter, fd, submit, wait, flags);
#else
  const long r = syscall(SYS_io_uring_enter, fd, submit, wait, flags, nullptr, 0);
  return r < 0 ? -errno : r;
#endif
}
inline long Register(int fd, unsigned op, const void* arg, unsigned count) {
#ifdef RING_INLINE
  return Raw(SYS_io_uring_register, fd, op, reinterpret_cast<long>(arg), count);
#else
  const long r = syscall(SYS_io_uring_register, fd, op, arg, count);
  return r < 0 ? -errno : r;
#endif
}

class Ring {
 public:
  Ring(unsigned entries, unsigned flags) {
    params_.flags = flags;
    fd_ = static_cast<int>(Setup(entries, &params_));
    if (fd_ < 0) return;
    sq_ = Map(params_.sq_off.array + params_.sq_entries * sizeof(uint32_t), IORING_OFF_SQ_RING);
    cq_ = Map(params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    sqe_ = reinterpret_cast<io_uring_sqe*>(
        Map(params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  bool made() const { return fd_ >= 0; }
  int fd() const { return fd_; }  // or -errno

  // Has this entry done, and waits for it; its result.
  int Do(const io_uring_sqe& request) const {
    constexpr uint64_t kToken = 0x1122334455667788;
    const uint32_t tail = *Word(sq_, params_.sq_off.tail);
    const uint32_t at = tail & *Word(sq_, params_.sq_off.ring_mask);
    sqe_[at] = request;
    sqe_[at].user_data = kToken;
    Word(sq_, params_.sq_off.array)[at] = at;
    __atomic_store_n(Word(sq_, params_.sq_off.tail), tail + 1, __ATOMIC_SEQ_CST);
    const bool polls = (params_.flags & IORING_SETUP_SQPOLL) != 0;
    const uint32_t flags = __atomic_load_n(Word(sq_, params_.sq_off.flags), __ATOMIC_SEQ_CST);
    const unsigned wake =
        polls && (flags & IORING_SQ_NEED_WAKEUP) != 0 ? IORING_ENTER_SQ_WAKEUP : 0;
    const uint32_t head = *Word(cq_, params_.cq_off.head);
    unsigned submit = 1;
    while (__atomic_load_n(Word(cq_, params_.cq_off.tail), __ATOMIC_ACQUIRE) == head) {
      const long r = Enter(fd_, submit, 1, IORING_ENTER_GETEVENTS | wake);
      if (r >= 0) submit = 0;
      if (r < 0 && r != -EINTR) Die("io_uring_enter", r);
    }
    const auto* done = reinterpret_cast<const io_uring_cqe*>(cq_ + params_.cq_off.cqes) +
                       (head & *Word(cq_, params_.cq_off.ring_mask));
    if (done->user_data != kToken) Die("another entry's end", 0);
    const int result = done->res;
    __atomic_store_n(Word(cq_, params_.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
  }

 private:
  [[noreturn]] static void Die(const char* what, long r) {
    std::fprintf(stderr, "one_entry_ring.h: %s: %ld\n", what, r);
    std::exit(1);
  }
  static uint32_t* Word(uint8_t* ring, uint32_t off) {
    return reinterpret_cast<uint32_t*>(ring + off);
  }
  uint8_t* Map(size_t bytes, uint64_t what) const {
    void* at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(what));
    if (at == MAP_FAILED) Die("mmap", errno);
    return static_cast<uint8_t*>(at);
  }

  io_uring_params params_{};
  int fd_;
  uint8_t *sq_ = nullptr, *cq_ = nullptr;
  io_uring_sqe* sqe_ = nullptr;
};

}  // namespace ring
