// SPDX-License-Identifier: Apache-2.0
// msg_packet.h - a Msg and the descriptor beside it, as sendmsg() and recvmsg() want them.
#pragma once
#include <sys/socket.h>

#include <cstring>

#include "ctl/proto.h"

namespace postern::ctl {

class Packet {
 public:
  // To be sent, with `fd` beside it unless it is -1.
  Packet(const Msg& message, int fd) : Packet(const_cast<Msg&>(message)) {
    if (fd < 0) {
      header.msg_control = nullptr;
      header.msg_controllen = 0;
      return;
    }
    header.msg_controllen = CMSG_SPACE(sizeof fd);
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  // To be received into `message`.
  explicit Packet(Msg& message) : iov_{&message, sizeof message} {
    header.msg_iov = &iov_;
    header.msg_iovlen = 1;
    header.msg_control = control_;
    header.msg_controllen = sizeof control_;
  }
  Packet(const Packet&) = delete;
  Packet& operator=(const Packet&) = delete;

  // The descriptor that came with it, or -1. The protocol has no place for a second: it is closed,
  // and so are all that the kernel lets one message carry. (Were there no room for them, the kernel
  // would close them itself, during recvmsg(), for which there may be no time: guard/closer.h.)
  template <typename Close>
  int TakeFd(Close close) {
    int first = -1;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
        continue;
      for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
        int fd = -1;
        memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
        if (first < 0) {
          first = fd;
        } else {
          close(fd);
        }
      }
    }
    return first;
  }

  // A descriptor came with it for which this process has no number left: the kernel has dropped it.
  bool LostFd() const { return (header.msg_flags & MSG_CTRUNC) != 0; }

  msghdr header{};

 private:
  static constexpr size_t kMost = 253;  // SCM_MAX_FD
  alignas(cmsghdr) char control_[CMSG_SPACE(kMost * sizeof(int))];
  iovec iov_;
};

}  // namespace postern::ctl
