// kernel_flows.cc - see kernel_flows.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernel_flows.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/ip_address.h"

namespace postern::softnic {
namespace {

constexpr auto kWindow = std::chrono::milliseconds(100);
constexpr uint32_t kAskedMax = 200;  // in a window; some 2 ms of it

struct Request {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

}  // namespace

int KernelFlows::Open() {
  line_ = daemon::UniqueFd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  return line_.ok() ? 0 : -errno;
}

Steer::Holder KernelFlows::Ask(const pstn_xdp_flow& flow, Steer::Why why) {
  const Clock::time_point now = Clock::now();
  if (now - window_ > kWindow) {
    window_ = now;
    asked_[0] = asked_[1] = 0;
  }
  if (++asked_[static_cast<uint32_t>(why)] > kAskedMax) return {};
  Request request{};
  request.head.nlmsg_len = sizeof(request);
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.head.nlmsg_seq = ++seq_;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  request.body.id.idiag_sport = flow.local_port;
  request.body.id.idiag_dport = flow.peer_port;
  request.body.sdiag_family =
      static_cast<uint8_t>(PutIp(IpAt(flow.local.byte), request.body.id.idiag_src));
  (void)PutIp(IpAt(flow.peer.byte), request.body.id.idiag_dst);
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(line_.get(), &request, sizeof(request), 0) != sizeof(request)) return {};
  // The kernel answers within the call.
  alignas(nlmsghdr) char answer[4096];
  const ssize_t got = recv(line_.get(), answer, sizeof(answer), MSG_DONTWAIT);
  const auto* const head = reinterpret_cast<const nlmsghdr*>(answer);
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) ||
      head->nlmsg_type != SOCK_DIAG_BY_FAMILY || head->nlmsg_seq != seq_)
    return {};
  inet_diag_msg found;
  memcpy(&found, NLMSG_DATA(head), sizeof(found));
  return {found.idiag_state == TCP_LISTEN      ? Steer::Has::kListener
          : found.idiag_state == TCP_TIME_WAIT ? Steer::Has::kEnded
                                               : Steer::Has::kConnection,
          found.idiag_uid};
}

}  // namespace postern::softnic
