// SPDX-License-Identifier: Apache-2.0
// open_fds.h - which descriptors this process has open, whatever their numbers.
//
// A number says nothing of how many there are: a program with three sockets may have one of them at
// a million. /proc/self/fd lists what is open. Where there is no /proc (a chroot, a process that
// may not look at itself), poll() says of each number in a batch whether it is open.
#pragma once
#include <poll.h>

#include <cstddef>
#include <cstdint>

#include "base/sys.h"
#include "family/family.h"

namespace postern {

// A directory of /proc that lists numbers, one batch at a time.
class FdDirectory {
 public:
  FdDirectory();
  ~FdDirectory();
  FdDirectory(const FdDirectory&) = delete;
  FdDirectory& operator=(const FdDirectory&) = delete;
  bool ok() const { return fd_ >= 0; }
  // The next number, the directory's own left out; -1: there are no more.
  int Next();

 private:
  int fd_;
  size_t at_ = 0, end_ = 0;
  alignas(8) char batch_[1024];
};

inline constexpr uint32_t kPollBatch = 128;
// Of the numbers from `first` on, kPollBatch or as many as one poll() may have: which are open.
// How many were looked at.
uint32_t PollOpen(uint32_t first, bool open[kPollBatch]);

template <typename Fn>
void EachOpenByPoll(Fn fn) {
  bool open[kPollBatch];
  for (uint32_t fd = 0; fd < kFdMax;) {
    const uint32_t n = PollOpen(fd, open);
    for (uint32_t i = 0; i < n; i++) {
      if (open[i]) fn(static_cast<int>(fd + i));
    }
    fd += n;
  }
}

// Calls fn(number) for each; fn opens and closes nothing.
template <typename Fn>
void EachOpen(Fn fn) {
  FdDirectory directory;
  if (!directory.ok()) return EachOpenByPoll(fn);
  for (int fd; (fd = directory.Next()) >= 0;) fn(fd);
}

}  // namespace postern
