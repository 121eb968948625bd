// fd.h - an owned file descriptor.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace postern::daemon {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
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
