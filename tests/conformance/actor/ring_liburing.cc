// SPDX-License-Identifier: Apache-2.0
// ring_liburing.cc - see ring_way.h: a ring by a shared liburing's functions.
#include <errno.h>
#include <liburing.h>

#include <cstring>

#include "ring_way.h"

namespace conform {
namespace {

constexpr unsigned kEntries = 16;

class LibRing : public Way {
 public:
  explicit LibRing(unsigned flags) {
    io_uring_params params{};
    params.flags = flags;
    params.sq_thread_idle = 1;
    made_ = io_uring_queue_init_params(kEntries, &ring_, &params);
  }
  ~LibRing() override {
    if (made_ == 0) io_uring_queue_exit(&ring_);
  }
  int fd() const override { return made_ == 0 ? ring_.ring_fd : made_; }
  io_uring_sqe* Next() override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    memset(entry, 0, sizeof *entry);
    return entry;
  }
  int Submit(unsigned wait) override {
    const int r = wait > 0 ? io_uring_submit_and_wait(&ring_, wait) : io_uring_submit(&ring_);
    return r < 0 ? r : 0;
  }
  bool Take(io_uring_cqe* end) override {
    io_uring_cqe* one = nullptr;
    if (io_uring_peek_cqe(&ring_, &one) != 0) return false;
    *end = *one;
    io_uring_cqe_seen(&ring_, one);
    return true;
  }
  int Register(unsigned op, void* arg, unsigned count) override {
    if (op == IORING_REGISTER_FILES)
      return io_uring_register_files(&ring_, static_cast<int*>(arg), count);
    if (op == IORING_UNREGISTER_FILES) return io_uring_unregister_files(&ring_);
    return io_uring_register(static_cast<unsigned>(ring_.ring_fd), op, arg, count);
  }

 private:
  io_uring ring_{};
  int made_;
};

}  // namespace

std::unique_ptr<Way> Way::Make(unsigned flags) {
  auto ring = std::make_unique<LibRing>(flags);
  if (ring->fd() >= 0) return ring;
  errno = -ring->fd();
  return nullptr;
}

}  // namespace conform
