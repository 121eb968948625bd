// fd.h - an owned file descriptor, and whose it was before.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "../guard/closer.h"

namespace postern::daemon {

// Not another process's: to close it takes no time.
inline constexpr uid_t kOurOwn = static_cast<uid_t>(-1);

// Another process's, but a socket of TCP or UDP: it is closed at once, since others wait for its
// port. What its maker could have it wait for, the closer cuts short.
inline constexpr uid_t kTcpSocket = static_cast<uid_t>(-2);

// A descriptor that came from another process says from whose; it is closed in another thread
// (guard/closer.h), wherever it is dropped.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd, uid_t from = kOurOwn) : fd_(fd), from_(from) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), from_(other.from_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
      from_ = other.from_;
    }
    return *this;
  }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  void CameFrom(uid_t from) { from_ = from; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0 && from_ == kTcpSocket) {
      CloseTcp(fd_);
    } else if (fd_ >= 0 && from_ != kOurOwn) {
      CloseElsewhere(fd_, from_);
    } else if (fd_ >= 0) {
      close(fd_);
    }
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  uid_t from_ = kOurOwn;
};

// For messages that wait in several queues at once.
using SharedFd = std::shared_ptr<const UniqueFd>;
inline SharedFd Share(UniqueFd fd) { return std::make_shared<const UniqueFd>(std::move(fd)); }

// -1: there is no such descriptor. Of a memfd the user that made it, which can't give it away.
inline uid_t OwnerOf(int fd) {
  struct stat st {};
  return fstat(fd, &st) == 0 ? st.st_uid : static_cast<uid_t>(-1);
}
// 0: there is no such descriptor.
inline uint64_t InodeOf(int fd) {
  struct stat st {};
  return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

}  // namespace postern::daemon
