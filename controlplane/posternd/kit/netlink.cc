// netlink.cc - see netlink.h.
// SPDX-License-Identifier: Apache-2.0
#include "netlink.h"

#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

namespace postern::daemon {
namespace {

constexpr int kReceiveBytes = 4 << 20;
constexpr time_t kPatienceSec = 5;  // a kernel that doesn't answer for so long has a bug

// libmnl's are ints.
constexpr size_t Aligned(size_t bytes) { return (bytes + 3) / 4 * 4; }
constexpr size_t kMessageHeader = sizeof(nlmsghdr), kAttrHeader = sizeof(nlattr);

int Collect(const nlmsghdr* message, void* context) {
  (*static_cast<const Netlink::Each*>(context))(message);
  return MNL_CB_OK;
}

}  // namespace

Netlink::Netlink(int protocol)
    : socket_(mnl_socket_open2(protocol, SOCK_CLOEXEC)), buffer_(kBufferBytes) {
  if (socket_ != nullptr && mnl_socket_bind(socket_.get(), 0, MNL_SOCKET_AUTOPID) != 0)
    socket_.reset();
  if (socket_ == nullptr) return;
  const timeval patience{kPatienceSec, 0};
  setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

void Netlink::SetStrict() {
  int on = 1;
  (void)mnl_socket_setsockopt(socket_.get(), NETLINK_GET_STRICT_CHK, &on, sizeof(on));
  (void)mnl_socket_setsockopt(socket_.get(), NETLINK_EXT_ACK, &on, sizeof(on));
}

int Netlink::Join(int group) {
  return mnl_socket_setsockopt(socket_.get(), NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) == 0
             ? 0
             : -errno;
}

void Netlink::SetReceiveBuffer(uint32_t bytes) {
  const int size = bytes != 0 ? static_cast<int>(bytes) : kReceiveBytes;
  // Above net.core.rmem_max with CAP_NET_ADMIN only.
  if (setsockopt(fd(), SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) != 0)
    (void)setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

int Netlink::Dump(uint16_t type, uint16_t flags, const void* header, size_t header_bytes,
                  const std::vector<uint8_t>& attrs, const Each& each) {
  std::vector<char> request(kMessageHeader + Aligned(header_bytes) + attrs.size());
  nlmsghdr* message = mnl_nlmsg_put_header(request.data());
  message->nlmsg_type = type;
  message->nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  message->nlmsg_seq = ++seq_;
  memcpy(mnl_nlmsg_put_extra_header(message, header_bytes), header, header_bytes);
  if (!attrs.empty()) memcpy(request.data() + message->nlmsg_len, attrs.data(), attrs.size());
  message->nlmsg_len += static_cast<uint32_t>(attrs.size());
  // What an earlier request has left behind when it failed.
  while (recv(fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT) >= 0) {
  }
  if (mnl_socket_sendto(socket_.get(), message, message->nlmsg_len) < 0) return -errno;
  const unsigned port = mnl_socket_get_portid(socket_.get());
  bool interrupted = false;
  for (;;) {
    const ssize_t n = mnl_socket_recvfrom(socket_.get(), buffer_.data(), buffer_.size());
    if (n < 0) return -errno;
    // mnl_cb_run stops at an interrupted message; the rest of the answer has to be read all the
    // same.
    for (char* at = buffer_.data(); at < buffer_.data() + n;) {
      auto* one = reinterpret_cast<nlmsghdr*>(at);
      if (!mnl_nlmsg_ok(one, static_cast<int>(buffer_.data() + n - at))) break;
      if ((one->nlmsg_flags & NLM_F_DUMP_INTR) != 0) {
        interrupted = true;
        one->nlmsg_flags = static_cast<uint16_t>(one->nlmsg_flags & ~NLM_F_DUMP_INTR);
      }
      at += Aligned(one->nlmsg_len);
    }
    const int more = mnl_cb_run(buffer_.data(), static_cast<size_t>(n), seq_, port, Collect,
                                const_cast<Each*>(&each));
    if (more < 0) return -errno;
    if (more == 0) return interrupted ? -EINTR : 0;
  }
}

int Netlink::Drain(const Each& each) {
  int result = 0;
  for (;;) {
    const ssize_t n = recv(fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != ENOBUFS) return errno == EAGAIN ? result : -errno;
    if (n < 0 || static_cast<size_t>(n) > buffer_.size()) {
      result = -ENOBUFS;
      continue;
    }
    int left = static_cast<int>(n);
    for (auto* one = reinterpret_cast<const nlmsghdr*>(buffer_.data()); mnl_nlmsg_ok(one, left);
         one = mnl_nlmsg_next(one, &left))
      each(one);
  }
}

std::vector<uint8_t> AttrBytes(uint16_t type, const void* data, size_t bytes) {
  std::vector<uint8_t> out(Aligned(kAttrHeader + bytes));
  const auto size = static_cast<uint16_t>(kAttrHeader + bytes);
  memcpy(out.data(), &size, sizeof(size));
  memcpy(out.data() + sizeof(size), &type, sizeof(type));
  memcpy(out.data() + kAttrHeader, data, bytes);
  return out;
}

}  // namespace postern::daemon
