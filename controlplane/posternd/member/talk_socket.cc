// talk_socket.cc - see talk_socket.h.
// SPDX-License-Identifier: Apache-2.0
#include "talk_socket.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "../guard/patience.h"
#include "peer/negotiate.h"

namespace postern::daemon {
namespace {

struct Result {
  ssize_t value = -1;
  int error = EBUSY;
  std::string bytes;
};

struct BothNames {
  bool there = false;
  pstn_addr own{}, peer{};
};

BothNames AskNames(int fd) {
  BothNames names;
  names.there = NamesOf(fd, names.own, names.peer);
  return names;
}

}  // namespace

ssize_t TalkSocket::Send(std::span<const uint8_t> bytes) const {
  const std::string copy(bytes.begin(), bytes.end());
  const auto r = AnswerInTime(whose_, [fd = fd_, copy] {
                   Result of;
                   of.value =
                       send(fd->get(), copy.data(), copy.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
                   of.error = errno;
                   return of;
                 }).value_or(Result());
  errno = r.error;
  return r.value;
}

ssize_t TalkSocket::Receive(std::span<uint8_t> bytes, int flags) const {
  const auto r = AnswerInTime(whose_, [fd = fd_, size = bytes.size(), flags] {
                   Result of;
                   of.bytes.resize(size);
                   of.value = recv(fd->get(), of.bytes.data(), size, flags | MSG_DONTWAIT);
                   of.error = errno;
                   return of;
                 }).value_or(Result());
  if (r.value > 0) std::copy_n(r.bytes.begin(), r.value, bytes.begin());
  errno = r.error;
  return r.value;
}

void TalkSocket::WakeAt(int bytes) const {
  (void)DoneInTime(whose_, [fd = fd_, bytes] {
    (void)setsockopt(fd->get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
  });
}

void TalkSocket::ResetAtEnd() const {
  (void)DoneInTime(whose_, [fd = fd_] {
    const linger reset{1, 0};
    (void)setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  });
}

bool TalkSocket::Names(pstn_addr& own, pstn_addr& peer) const {
  const auto names =
      AnswerInTime(whose_, [fd = fd_] { return AskNames(fd->get()); }).value_or(BothNames());
  own = names.own;
  peer = names.peer;
  return names.there;
}

bool NamesInTime(const UniqueFd& fd, uid_t whose, pstn_addr& own, pstn_addr& peer) {
  UniqueFd copy(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0), kTcpSocket);
  return copy.ok() && TalkSocket(std::move(copy), whose).Names(own, peer);
}

}  // namespace postern::daemon
