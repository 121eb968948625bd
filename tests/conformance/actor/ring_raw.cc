// SPDX-License-Identifier: Apache-2.0
// ring_raw.cc - see ring_way.h: a ring by system calls, libc's or the program's own.
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "ring_way.h"
#ifdef RING_INLINE
#include "base/sys.h"
#endif

namespace conform {
namespace {

constexpr unsigned kEntries = 16;

#ifdef RING_INLINE
template <typename... Args>
long Raw(long number, Args... args) {
  return postern::sys::Call(number, args...);
}
#else
template <typename... Args>
long Raw(long number, Args... args) {
  const long r = syscall(number, args...);
  return r < 0 ? -errno : r;
}
#endif

class RawRing : public Way {
 public:
  explicit RawRing(unsigned flags) {
    params_.flags = flags;
    params_.sq_thread_idle = 1;
    fd_ = static_cast<int>(Raw(SYS_io_uring_setup, static_cast<long>(kEntries), &params_));
    if (fd_ < 0) return;
    sq_bytes_ = params_.sq_off.array + params_.sq_entries * sizeof(uint32_t);
    cq_bytes_ = params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe);
    sq_ = Map(sq_bytes_, IORING_OFF_SQ_RING);
    cq_ = Map(cq_bytes_, IORING_OFF_CQ_RING);
    table_ = reinterpret_cast<io_uring_sqe*>(Map(TableBytes(), IORING_OFF_SQES));
  }
  ~RawRing() override {
    if (fd_ < 0) return;
    munmap(sq_, sq_bytes_);
    munmap(cq_, cq_bytes_);
    munmap(table_, TableBytes());
    close(fd_);
  }
  int fd() const override { return fd_; }

  io_uring_sqe* Next() override {
    const uint32_t tail = *Word(sq_, params_.sq_off.tail) + pending_++;
    const uint32_t at = tail & *Word(sq_, params_.sq_off.ring_mask);
    Word(sq_, params_.sq_off.array)[at] = at;
    memset(&table_[at], 0, sizeof table_[at]);
    return &table_[at];
  }

  int Submit(unsigned wait) override {
    uint32_t* const tail = Word(sq_, params_.sq_off.tail);
    __atomic_store_n(tail, *tail + pending_, __ATOMIC_SEQ_CST);
    const bool polls = (params_.flags & IORING_SETUP_SQPOLL) != 0;
    const uint32_t flags = __atomic_load_n(Word(sq_, params_.sq_off.flags), __ATOMIC_SEQ_CST);
    const unsigned wake =
        polls && (flags & IORING_SQ_NEED_WAKEUP) != 0 ? IORING_ENTER_SQ_WAKEUP : 0;
    const unsigned count = pending_;
    pending_ = 0;
    const long r =
        Raw(SYS_io_uring_enter, fd_, static_cast<long>(count), static_cast<long>(wait),
            static_cast<long>((wait > 0 ? IORING_ENTER_GETEVENTS : 0u) | wake), nullptr, 0L);
    return r < 0 ? static_cast<int>(r) : 0;
  }

  bool Take(io_uring_cqe* end) override {
    uint32_t* const head = Word(cq_, params_.cq_off.head);
    if (__atomic_load_n(Word(cq_, params_.cq_off.tail), __ATOMIC_ACQUIRE) == *head) return false;
    *end = reinterpret_cast<io_uring_cqe*>(
        cq_ + params_.cq_off.cqes)[*head & *Word(cq_, params_.cq_off.ring_mask)];
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return true;
  }

  int Register(unsigned op, void* arg, unsigned count) override {
    return static_cast<int>(
        Raw(SYS_io_uring_register, fd_, static_cast<long>(op), arg, static_cast<long>(count)));
  }

 private:
  static uint32_t* Word(uint8_t* ring, uint32_t off) {
    return reinterpret_cast<uint32_t*>(ring + off);
  }
  size_t TableBytes() const { return params_.sq_entries * sizeof(io_uring_sqe); }
  uint8_t* Map(size_t bytes, uint64_t what) const {
    void* at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(what));
    if (at == MAP_FAILED) _exit(9);
    return static_cast<uint8_t*>(at);
  }

  io_uring_params params_{};
  int fd_;
  unsigned pending_ = 0;
  size_t sq_bytes_ = 0, cq_bytes_ = 0;
  uint8_t *sq_ = nullptr, *cq_ = nullptr;
  io_uring_sqe* table_ = nullptr;
};

}  // namespace

std::unique_ptr<Way> Way::Make(unsigned flags) {
  auto ring = std::make_unique<RawRing>(flags);
  if (ring->fd() >= 0) return ring;
  errno = -ring->fd();
  return nullptr;
}

}  // namespace conform
