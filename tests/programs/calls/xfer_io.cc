// xfer_io.cc - the write and read variants.
// SPDX-License-Identifier: Apache-2.0

#include "xfer_io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

namespace xfer {
namespace {

constexpr size_t kPieces = 3;
constexpr size_t kPipeBytes = 1 << 20;

ssize_t Result(ssize_t n) { return n < 0 ? -errno : n; }

// Cuts [data, data+len) into pieces of odd sizes, an empty one among them when there is little.
std::array<iovec, kPieces> Cut(const uint8_t* data, size_t len) {
  auto* p = const_cast<uint8_t*>(data);
  const size_t first = len / 5, second = len / 3;
  return {iovec{p, first}, iovec{p + first, second},
          iovec{p + first + second, len - first - second}};
}

msghdr Message(iovec* pieces, size_t count) {
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  return message;
}

int EnsurePipe(Lane* lane) {
  if (lane->pipe_fds[0] >= 0) return 0;
  if (pipe2(lane->pipe_fds, O_CLOEXEC) != 0) return -errno;
  fcntl(lane->pipe_fds[1], F_SETPIPE_SZ,
        static_cast<int>(kPipeBytes));  // smaller is slower, not wrong
  return 0;
}

ssize_t Sendmmsg(int fd, const uint8_t* data, size_t len) {
  auto pieces = Cut(data, len);
  mmsghdr messages[kPieces] = {};
  for (size_t i = 0; i < kPieces; ++i) messages[i].msg_hdr = Message(&pieces[i], 1);
  const int count = sendmmsg(fd, messages, kPieces, MSG_NOSIGNAL);
  if (count < 0) return -errno;
  ssize_t total = 0;
  for (int i = 0; i < count; ++i) {
    total += messages[i].msg_len;
    // A message may be cut short only if none follows; otherwise a hole is in the stream.
    if (messages[i].msg_len < pieces[static_cast<size_t>(i)].iov_len && i + 1 < count)
      return -EPROTO;
  }
  return total;
}

ssize_t Sendfile(int fd, const uint8_t* data, size_t len, Lane* lane) {
  if (lane->file_fd < 0) lane->file_fd = memfd_create("xfer", MFD_CLOEXEC);
  if (lane->file_fd < 0) return -errno;
  if (pwrite(lane->file_fd, data, len, 0) != static_cast<ssize_t>(len)) return -EIO;
  off_t offset = 0;
  const ssize_t n = Result(sendfile(fd, lane->file_fd, &offset, len));
  // The pages are in flight by reference: the next chunk has to have pages of its own.
  if (n > 0) {
    if (offset != n) return -EPROTO;
    close(lane->file_fd);
    lane->file_fd = -1;
  }
  return n;
}

// What is in the pipe is always the beginning of what is asked to be sent now, as a short count is
// repeated from its end.
ssize_t SpliceOut(int fd, const uint8_t* data, size_t len, bool last, Lane* lane) {
  if (const int error = EnsurePipe(lane); error < 0) return error;
  if (lane->pipe_pending == 0) {
    const ssize_t n = write(lane->pipe_fds[1], data, std::min(len, size_t{65536}));
    if (n < 0) return -errno;
    lane->pipe_pending = static_cast<size_t>(n);
  }
  const bool more = !last && (lane->turn++ % 3) != 0;
  const ssize_t n = Result(splice(lane->pipe_fds[0], nullptr, fd, nullptr, lane->pipe_pending,
                                  more ? SPLICE_F_MORE : 0u));
  if (n > 0) lane->pipe_pending -= static_cast<size_t>(n);
  return n;
}

ssize_t Recvmmsg(int fd, uint8_t* data, size_t len) {
  auto pieces = Cut(data, len);
  mmsghdr messages[kPieces] = {};
  size_t vlen = 0;
  for (auto& piece : pieces) {
    if (piece.iov_len > 0)
      messages[vlen++].msg_hdr =
          Message(&piece, 1);  // an empty one would wait for data and take none
  }
  const int count = recvmmsg(fd, messages, static_cast<unsigned>(vlen), MSG_WAITFORONE, nullptr);
  if (count < 0) return -errno;
  size_t total = 0;
  for (int i = 0; i < count; ++i) {  // close the gaps that short messages leave
    memmove(data + total, messages[i].msg_hdr.msg_iov->iov_base, messages[i].msg_len);
    total += messages[i].msg_len;
  }
  return static_cast<ssize_t>(total);
}

ssize_t Waitall(int fd, uint8_t* data, size_t len, bool blocking, Lane* lane) {
  const ssize_t n = Result(recv(fd, data, len, MSG_WAITALL));
  if (blocking && n > 0 && lane->waitall_was_short) return -EPROTO;
  if (n > 0 && n < static_cast<ssize_t>(len)) lane->waitall_was_short = true;
  return n;
}

ssize_t PeekThenRead(int fd, uint8_t* data, size_t len, Lane* lane) {
  lane->scratch.resize(len);
  const ssize_t seen = recv(fd, lane->scratch.data(), len / 2 + 1, MSG_PEEK);
  if (seen < 0) return -errno;
  if (seen == 0) return Result(read(fd, data, len));
  const ssize_t n = recv(fd, data, static_cast<size_t>(seen), 0);
  if (n != seen || memcmp(data, lane->scratch.data(), static_cast<size_t>(n)) != 0) return -EPROTO;
  return n;
}

ssize_t SpliceIn(int fd, uint8_t* data, size_t len, Lane* lane) {
  if (const int error = EnsurePipe(lane); error < 0) return error;
  const ssize_t n =
      splice(fd, nullptr, lane->pipe_fds[1], nullptr, std::min(len, size_t{65536}), 0);
  if (n <= 0) return Result(n);
  for (ssize_t have = 0; have < n;) {
    const ssize_t part = read(lane->pipe_fds[0], data + have, static_cast<size_t>(n - have));
    if (part <= 0) return -EIO;
    have += part;
  }
  return n;
}

template <typename How, size_t kCount>
bool Find(const std::string& name, const std::array<const char*, kCount>& names, How* how) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const char* n) { return name == n; });
  if (found == names.end()) return false;
  *how = static_cast<How>(found - names.begin());
  return true;
}

}  // namespace

bool Parse(const std::string& name, WriteHow* how) {
  static constexpr std::array kNames = {"write",    "send",   "sendto",   "sendmsg",
                                        "sendmmsg", "writev", "pwritev2", "sendfile",
                                        "splice",   "more",   "mix"};
  return Find(name, kNames, how);
}

bool Parse(const std::string& name, ReadHow* how) {
  static constexpr std::array kNames = {"read",     "recv",   "recvfrom", "recvmsg",
                                        "recvmmsg", "readv",  "preadv2",  "waitall",
                                        "peek",     "splice", "mix"};
  return Find(name, kNames, how);
}

bool Parse(const std::string& name, WaitHow* how) {
  static constexpr std::array kNames = {"none",    "poll",     "ppoll",    "select",
                                        "pselect", "epoll-lt", "epoll-et", "epoll-oneshot"};
  return Find(name, kNames, how);
}

Lane::~Lane() {
  for (const int fd : {pipe_fds[0], pipe_fds[1], file_fd, epoll_fd}) {
    if (fd >= 0) close(fd);
  }
}

ssize_t WriteSome(WriteHow how, int fd, const uint8_t* data, size_t len, bool last, Lane* lane) {
  if (how == WriteHow::kMix) {
    // Bytes that wait in the pipe come first, whatever the turn says.
    how = lane->pipe_pending > 0
              ? WriteHow::kSplice
              : static_cast<WriteHow>(lane->turn++ % static_cast<unsigned>(WriteHow::kMix));
  }
  auto pieces = Cut(data, len);
  msghdr message = Message(pieces.data(), pieces.size());
  switch (how) {
    case WriteHow::kWrite:
      return Result(write(fd, data, len));
    case WriteHow::kSend:
      return Result(send(fd, data, len, MSG_NOSIGNAL));
    case WriteHow::kSendto:
      return Result(sendto(fd, data, len, MSG_NOSIGNAL, nullptr, 0));
    case WriteHow::kSendmsg:
      return Result(sendmsg(fd, &message, MSG_NOSIGNAL));
    case WriteHow::kSendmmsg:
      return Sendmmsg(fd, data, len);
    case WriteHow::kWritev:
      return Result(writev(fd, pieces.data(), kPieces));
    case WriteHow::kPwritev2:
      return Result(pwritev2(fd, pieces.data(), kPieces, -1, 0));
    case WriteHow::kSendfile:
      return Sendfile(fd, data, len, lane);
    case WriteHow::kSplice:
      return SpliceOut(fd, data, len, last, lane);
    case WriteHow::kMore:
      return Result(
          send(fd, data, len, MSG_NOSIGNAL | (last || lane->turn++ % 8 == 0 ? 0 : MSG_MORE)));
    case WriteHow::kMix:
      break;
  }
  return -EINVAL;
}

ssize_t ReadSome(ReadHow how, int fd, uint8_t* data, size_t len, bool blocking, Lane* lane) {
  if (how == ReadHow::kMix)
    how = static_cast<ReadHow>(lane->turn++ % static_cast<unsigned>(ReadHow::kMix));
  auto pieces = Cut(data, len);
  msghdr message = Message(pieces.data(), pieces.size());
  sockaddr_storage from;
  socklen_t from_len = sizeof from;
  switch (how) {
    case ReadHow::kRead:
      return Result(read(fd, data, len));
    case ReadHow::kRecv:
      return Result(recv(fd, data, len, 0));
    case ReadHow::kRecvfrom:
      return Result(recvfrom(fd, data, len, 0, reinterpret_cast<sockaddr*>(&from), &from_len));
    case ReadHow::kRecvmsg:
      return Result(recvmsg(fd, &message, 0));
    case ReadHow::kRecvmmsg:
      return Recvmmsg(fd, data, len);
    case ReadHow::kReadv:
      return Result(readv(fd, pieces.data(), kPieces));
    case ReadHow::kPreadv2:
      return Result(preadv2(fd, pieces.data(), kPieces, -1, 0));
    case ReadHow::kWaitall:
      return Waitall(fd, data, len, blocking, lane);
    case ReadHow::kPeek:
      return PeekThenRead(fd, data, len, lane);
    case ReadHow::kSplice:
      return SpliceIn(fd, data, len, lane);
    case ReadHow::kMix:
      break;
  }
  return -EINVAL;
}

}  // namespace xfer
