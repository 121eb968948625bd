// sock_diag.cc - see sock_diag.h.
// SPDX-License-Identifier: Apache-2.0
#include "sock_diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <cerrno>
#include <memory>
#include <vector>

namespace postern::daemon {
namespace {

constexpr size_t kBufferBytes = 32768;  // the kernel makes messages of a dump no larger

}  // namespace

int DumpSockets(uint8_t family, uint32_t states, mnl_cb_t each, void* context) {
  const std::unique_ptr<mnl_socket, int (*)(mnl_socket*)> line(
      mnl_socket_open2(NETLINK_SOCK_DIAG, SOCK_CLOEXEC), mnl_socket_close);
  if (line == nullptr) return -errno;
  std::vector<char> buffer(kBufferBytes);
  nlmsghdr* header = mnl_nlmsg_put_header(buffer.data());
  header->nlmsg_type = SOCK_DIAG_BY_FAMILY;
  header->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  auto* request =
      static_cast<inet_diag_req_v2*>(mnl_nlmsg_put_extra_header(header, sizeof(inet_diag_req_v2)));
  request->sdiag_family = family;
  request->sdiag_protocol = IPPROTO_TCP;
  request->idiag_states = states;
  if (mnl_socket_sendto(line.get(), header, header->nlmsg_len) < 0) return -errno;
  const unsigned port = mnl_socket_get_portid(line.get());
  ssize_t n;
  int more = 1;
  do {
    n = mnl_socket_recvfrom(line.get(), buffer.data(), buffer.size());
    if (n > 0) more = mnl_cb_run(buffer.data(), static_cast<size_t>(n), 0, port, each, context);
  } while (n > 0 && more > 0);
  return n < 0 || more < 0 ? -errno : 0;
}

}  // namespace postern::daemon
