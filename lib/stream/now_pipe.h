// SPDX-License-Identifier: Apache-2.0
// now_pipe.h - a pipe that is read or written without a wait, whatever other threads do to it.
#pragma once
#include <linux/fs.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdio>

#include "base/sys.h"

namespace postern {

// The program's number; or, where the kernel can't do it with that (before 6.4, and named ones), a
// description of our own, made when it is first needed, of the same pipe.
class NowPipe {
 public:
  explicit NowPipe(int fd) : fd_(fd) {}
  ~NowPipe() {
    if (own_ >= 0) (void)sys::Close(own_);
  }
  NowPipe(const NowPipe&) = delete;
  NowPipe& operator=(const NowPipe&) = delete;

  // Until it is ready for `events`: 1; 0, if it is not to wait; or -errno.
  long Await(short events, bool wait) const {
    pollfd p = {fd_, events, 0};
    return sys::Call(SYS_poll, &p, 1L, wait ? -1L : 0L);
  }
  // As read() and write(): -EAGAIN.
  long Read(void* data, size_t bytes) { return Move(SYS_preadv2, SYS_read, data, bytes); }
  long Write(void* data, size_t bytes) { return Move(SYS_pwritev2, SYS_write, data, bytes); }

 private:
  long Move(long vector, long plain, void* data, size_t bytes) {
    iovec iov = {data, bytes};
    constexpr long kHere = -1;  // as the file's own position, in both halves
    const long r =
        own_ >= 0 ? -EOPNOTSUPP
                  : sys::Call(vector, fd_, &iov, 1L, kHere, kHere, static_cast<long>(RWF_NOWAIT));
    // A filter of the program's (seccomp) may not know that call.
    if (r != -EOPNOTSUPP && r != -EPERM && r != -ENOSYS) return r;
    if (own_ < 0) own_ = Open(plain == SYS_read ? O_RDONLY : O_WRONLY);
    // Without /proc: it was ready a moment ago.
    return sys::Call(plain, own_ >= 0 ? own_ : fd_, data, bytes);
  }
  int Open(int access) const {
    char path[40];
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd_);
    return static_cast<int>(sys::MakeOurs([&] {
      return sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), path,
                       static_cast<long>(access | O_NONBLOCK | O_CLOEXEC), 0L);
    }));
  }

  const int fd_;
  int own_ = -1;
};

}  // namespace postern
