// SPDX-License-Identifier: Apache-2.0
// ring_way.h - an io_uring of the actor's own, for its one thread. The actor `conform` makes and
// uses it by libc's syscall(), as libuv does; `conform_liburing` by a shared liburing's functions
// (RING_LIBURING); `conform_inline` by system calls in its own code (RING_INLINE).
#pragma once
#include <linux/io_uring.h>

#include <memory>

namespace conform {

class Way {
 public:
  // Null, with errno set: there is none here.
  static std::unique_ptr<Way> Make(unsigned flags);
  virtual ~Way() = default;
  Way() = default;
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  virtual int fd() const = 0;
  virtual io_uring_sqe* Next() = 0;  // an empty entry, which the next Submit() submits
  // What was asked for since the last one; and waits for so many ends. 0, or -errno.
  virtual int Submit(unsigned wait) = 0;
  virtual bool Take(io_uring_cqe* end) = 0;  // the first end that was not taken; false: none
  virtual int Register(unsigned op, void* arg, unsigned count) = 0;  // -errno
};

}  // namespace conform
