// xfer_io.h - every way to write to, read from and wait for a stream socket, behind one call each.
// SPDX-License-Identifier: Apache-2.0
//
// WriteSome and ReadSome move at most `len` bytes and return the count, 0 at the end of the stream
// (reads), or -errno. A Lane is what one user of one direction needs besides the socket: pipes,
// scratch memory, an epoll fd. It belongs to one process and one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace xfer {

enum class WriteHow {
  kWrite,
  kSend,
  kSendto,
  kSendmsg,
  kSendmmsg,
  kWritev,
  kPwritev2,
  kSendfile,
  kSplice,
  kMore,
  kMix
};
enum class ReadHow {
  kRead,
  kRecv,
  kRecvfrom,
  kRecvmsg,
  kRecvmmsg,
  kReadv,
  kPreadv2,
  kWaitall,
  kPeek,
  kSplice,
  kMix
};
enum class WaitHow { kNone, kPoll, kPpoll, kSelect, kPselect, kEpollLt, kEpollEt, kEpollOneshot };

// Each returns false when the name is unknown.
bool Parse(const std::string& name, WriteHow* how);
bool Parse(const std::string& name, ReadHow* how);
bool Parse(const std::string& name, WaitHow* how);

struct Lane {
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  int pipe_fds[2] = {-1, -1};
  size_t pipe_pending = 0;  // bytes written to the pipe and not yet spliced on to the socket
  int file_fd = -1;         // memfd for sendfile
  int epoll_fd = -1;
  uint32_t epoll_events = 0;  // as registered; 0: the socket is not in the set
  std::vector<uint8_t> scratch;
  unsigned turn = 0;               // rotates the methods of kMix, the flags of kMore
  bool waitall_was_short = false;  // then only the end of the stream may follow
};

ssize_t WriteSome(WriteHow how, int fd, const uint8_t* data, size_t len, bool last, Lane* lane);
ssize_t ReadSome(ReadHow how, int fd, uint8_t* data, size_t len, bool blocking, Lane* lane);

// Blocks until one of `events` (POLLIN, POLLOUT) or an end is there. Returns 0 or -errno.
int WaitFor(WaitHow how, int fd, short events, Lane* lane);

}  // namespace xfer
