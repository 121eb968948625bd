// SPDX-License-Identifier: Apache-2.0
// open_fds.cc - see open_fds.h.

#include <cstring>

#include "base/sys.h"
#include "family/family.h"
#include "family/open_fds.h"

namespace postern {
namespace {

// What getdents64 gives: the name stands behind it.
struct Entry {
  uint64_t ino;
  int64_t off;
  uint16_t bytes;
  uint8_t type;
};
constexpr size_t kNameOff = 19;

}  // namespace

FdDirectory::FdDirectory()
    : fd_(static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), "/proc/self/fd",
                                     static_cast<long>(O_RDONLY | O_DIRECTORY | O_CLOEXEC)))) {}

FdDirectory::~FdDirectory() {
  if (fd_ >= 0) sys::Close(fd_);
}

int FdDirectory::Next() {
  for (;;) {
    if (at_ + kNameOff >= end_) {
      const long n = sys::Call(SYS_getdents64, fd_, &batch_[0], sizeof batch_);
      if (n <= 0) return -1;
      at_ = 0;
      end_ = static_cast<size_t>(n);
    }
    Entry entry;
    memcpy(&entry, batch_ + at_, sizeof entry.ino + sizeof entry.off + sizeof entry.bytes);
    const char* name = batch_ + at_ + kNameOff;
    at_ += entry.bytes;
    if (*name < '0' || *name > '9') continue;  // . and ..
    uint32_t number = 0;
    for (; *name >= '0' && *name <= '9'; name++)
      number = number * 10 + static_cast<uint32_t>(*name - '0');
    if (number < kFdMax && static_cast<int>(number) != fd_) return static_cast<int>(number);
  }
}

uint32_t PollOpen(uint32_t first, bool open[kPollBatch]) {
  rlimit limit = {kPollBatch, kPollBatch};
  (void)sys::Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), nullptr, &limit);
  uint32_t n = kFdMax - first < kPollBatch ? kFdMax - first : kPollBatch;
  if (n > limit.rlim_cur) n = limit.rlim_cur != 0 ? static_cast<uint32_t>(limit.rlim_cur) : 1;
  pollfd fds[kPollBatch];
  for (uint32_t i = 0; i < n; i++) fds[i] = {static_cast<int>(first + i), 0, 0};
  // A handler of the program may interrupt it, but there is nothing to wait for. -EINVAL: the limit
  // has been lowered meanwhile.
  if (sys::Call(SYS_poll, &fds[0], n, 0L) < 0) {
    for (uint32_t i = 0; i < n; i++) {
      open[i] = sys::Fcntl(static_cast<int>(first + i), F_GETFD, 0) >= 0;
    }
    return n;
  }
  for (uint32_t i = 0; i < n; i++) open[i] = (fds[i].revents & POLLNVAL) == 0;
  return n;
}

}  // namespace postern
