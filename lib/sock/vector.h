// SPDX-License-Identifier: Apache-2.0
// vector.h - the pieces of memory that a call names, as the kernel judges them before it looks at
// the socket.
#pragma once
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>

#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"

namespace postern {

inline constexpr size_t kMaxPieces = 1024;       // UIO_MAXIOV
inline constexpr size_t kMaxBytes = 0x7ffff000;  // MAX_RW_COUNT: more is not looked at
inline constexpr int kPositionedNowait = 8, kPositionedFlags = 0x3f;  // RWF_NOWAIT, all RWF_*

inline bool HasBytes(const iovec* iov, int count) {
  for (int i = 0; i < count; i++) {
    if (iov[i].iov_len != 0) return true;
  }
  return false;
}

// A buffer of send() or recv(), whose length the kernel takes for less where it is more.
inline size_t Bounded(size_t bytes) { return bytes < kMaxBytes ? bytes : kMaxBytes; }

// What is wrong with a vector, or 0. `too_many`: the error for more pieces than the kernel takes.
inline long BadVector(const iovec* iov, size_t count, long too_many) {
  if (count > kMaxPieces) return too_many;
  if (!UserReadable(iov, count * sizeof *iov)) return -EFAULT;
  bool beyond = false;
  for (size_t i = 0; i < count; i++) {
    const size_t bytes = iov[i].iov_len;
    if (static_cast<ssize_t>(bytes) < 0) return -EINVAL;  // before any address
    beyond = beyond || IsBeyond(iov[i].iov_base, count == 1 ? Bounded(bytes) : bytes);
  }
  return beyond ? -EFAULT : 0;
}

// The kernel takes over an address before it looks at the socket. 0 or -errno.
inline long BadAddress(const sockaddr* sa, socklen_t len) {
  if (sa == nullptr) return 0;
  if (len > sizeof(sockaddr_storage)) return -EINVAL;  // negative, too
  return UserReadable(sa, len) ? 0 : -EFAULT;
}

inline size_t LengthOf(const msghdr& m) {
  size_t sum = 0;
  for (size_t i = 0; i < m.msg_iovlen; i++) sum += m.msg_iov[i].iov_len;
  return sum;
}

// StreamSend and StreamRecv pass what is not a stream of ours: a UDP socket may be on the wire.
inline bool IsUdp(long r, const Call& call) { return r == kPass && IsDatagram(*call.ep()); }

// preadv2 and pwritev2 work on sockets when the offset is -1. 0, kPass or -errno.
inline long BadPosition(const pstn_ep& ep, off_t offset, int flags) {
  if (offset != -1 || IsKernels(ep)) return kPass;
  return (flags & ~kPositionedFlags) != 0 ? -EOPNOTSUPP : 0;
}

}  // namespace postern
