// SPDX-License-Identifier: Apache-2.0
// uring_lib.h - as one_entry_ring.h, made and used by liburing.
#pragma once
#include <liburing.h>
#include <sys/syscall.h>

#include <cstdio>
#include <cstdlib>

namespace ring {

inline long Register(int fd, unsigned op, const void* arg, unsigned count) {
  return io_uring_register(static_cast<unsigned>(fd), op, arg, count);
}

class Ring {
 public:
  Ring(unsigned entries, unsigned flags) : made_(io_uring_queue_init(entries, &ring_, flags)) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  bool made() const { return made_ == 0; }
  int fd() const { return made_ == 0 ? ring_.ring_fd : made_; }

  int Do(const io_uring_sqe& request) const {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    *entry = request;
    entry->user_data = 1;
    io_uring_cqe* done = nullptr;
    const int submitted = io_uring_submit(&ring_);
    // More than one: the kernel's thread has not said yet that it has taken the one before.
    const int r = submitted > 0 ? io_uring_wait_cqe(&ring_, &done) : submitted;
    if (r != 0) {
      std::fprintf(stderr, "uring_lib.h: %d\n", r);
      std::exit(1);
    }
    const int result = done->res;
    io_uring_cqe_seen(&ring_, done);
    return result;
  }

 private:
  mutable io_uring ring_{};
  const int made_;
};

}  // namespace ring
