// talk_socket.h - the TCP connection of a handshake, which the process that handed it over may have
// kept, too: then it can hold the lock that each call on it takes (guard/patience.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "../kit/fd.h"
#include "abi/postern_abi.h"

namespace postern::daemon {

class TalkSocket {
 public:
  // whose: the user that has sent it.
  TalkSocket(UniqueFd fd, uid_t whose) : fd_(Share(std::move(fd))), whose_(whose) {}

  int get() const { return fd_->get(); }
  // As the calls of these names, which never sleep: -1 with errno EBUSY if its user has them do so.
  ssize_t Send(std::span<const uint8_t> bytes) const;
  ssize_t Receive(std::span<uint8_t> bytes, int flags) const;
  // It is readable with that many bytes.
  void WakeAt(int bytes) const;
  // Its end is a reset.
  void ResetAtEnd() const;
  bool Names(pstn_addr& own, pstn_addr& peer) const;
  SharedFd Take() { return std::move(fd_); }

 private:
  SharedFd fd_;
  const uid_t whose_;
};

// The same of a socket that is still a message's.
bool NamesInTime(const UniqueFd& fd, uid_t whose, pstn_addr& own, pstn_addr& peer);

}  // namespace postern::daemon
