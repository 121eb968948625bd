// netlink.h - a netlink socket: dumps, single requests, and notifications.
// SPDX-License-Identifier: Apache-2.0
//
// Notifications and requests are on sockets of their own, so that an overrun of the one loses
// nothing of the other. Requests wait for the kernel's answer, which it gives at once.
#pragma once
#include <libmnl/libmnl.h>

#include <functional>
#include <memory>
#include <vector>

namespace postern::daemon {

class Netlink {
 public:
  using Each = std::function<void(const nlmsghdr*)>;

  // `protocol`: NETLINK_*. Not ok() where the kernel has no such.
  explicit Netlink(int protocol);
  bool ok() const { return socket_ != nullptr; }
  int fd() const { return socket_ != nullptr ? mnl_socket_get_fd(socket_.get()) : -1; }

  // The kernel refuses requests that it doesn't understand wholly, instead of ignoring half of
  // them.
  void SetStrict();
  // 0 or -errno. Notifications of this group come to Drain().
  int Join(int group);
  void SetReceiveBuffer(uint32_t bytes);  // 0: a large one

  // Calls `each` for each message of the answer, to its end. 0 or -errno: -EINTR if something
  // changed meanwhile and the answer is no picture of one moment; -ENOSPC if a message was cut.
  int Dump(uint16_t type, uint16_t flags, const void* header, size_t header_bytes,
           const std::vector<uint8_t>& attrs, const Each& each);
  // Takes what has arrived. -ENOBUFS: some was lost; 0: all is there.
  int Drain(const Each& each);

 private:
  static constexpr size_t kBufferBytes = 65536;  // messages of a dump are at most 32 KiB
  struct Close {
    void operator()(mnl_socket* socket) const { mnl_socket_close(socket); }
  };
  std::unique_ptr<mnl_socket, Close> socket_;
  std::vector<char> buffer_;
  uint32_t seq_ = 0;
};

// An attribute as bytes, to be put behind a request's header.
std::vector<uint8_t> AttrBytes(uint16_t type, const void* data, size_t bytes);

}  // namespace postern::daemon
