// sock_diag.cc - see sock_diag.h.
// SPDX-License-Identifier: Apache-2.0
#include "sock_diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace postern::daemon {
namespace {

constexpr size_t kBufferBytes = 32768;  // the kernel makes messages of a dump no larger

struct Question {
  explicit Question(uint16_t flags)
      : line(mnl_socket_open2(NETLINK_SOCK_DIAG, SOCK_CLOEXEC), mnl_socket_close),
        buffer(kBufferBytes),
        header(mnl_nlmsg_put_header(buffer.data())) {
    header->nlmsg_type = SOCK_DIAG_BY_FAMILY;
    header->nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
    request = static_cast<inet_diag_req_v2*>(
        mnl_nlmsg_put_extra_header(header, sizeof(inet_diag_req_v2)));
    request->sdiag_protocol = IPPROTO_TCP;
  }
  // 0 or -errno.
  int Ask(mnl_cb_t each, void* context) {
    const bool all = (header->nlmsg_flags & NLM_F_DUMP) != 0;
    if (line == nullptr || mnl_socket_sendto(line.get(), header, header->nlmsg_len) < 0)
      return -errno;
    const unsigned port = mnl_socket_get_portid(line.get());
    ssize_t n;
    int more = 1;
    do {
      n = mnl_socket_recvfrom(line.get(), buffer.data(), buffer.size());
      if (n > 0) more = mnl_cb_run(buffer.data(), static_cast<size_t>(n), 0, port, each, context);
    } while (all && n > 0 && more > 0);
    return n < 0 || more < 0 ? -errno : 0;
  }

  const std::unique_ptr<mnl_socket, int (*)(mnl_socket*)> line;
  std::vector<char> buffer;
  nlmsghdr* header;
  inet_diag_req_v2* request;
};

}  // namespace

int DumpSockets(uint8_t family, uint32_t states, uint16_t port, mnl_cb_t each, void* context,
                uint8_t extensions) {
  Question question(NLM_F_DUMP);
  question.request->idiag_ext = extensions;
  question.request->sdiag_family = family;
  question.request->idiag_states = states;
  question.request->id.idiag_sport = htons(port);
  return question.Ask(each, context);
}

int AskSocket(uint8_t family, const void* ip, uint16_t port, uint64_t cookie, mnl_cb_t each,
              void* context) {
  Question question(0);
  question.request->sdiag_family = family;
  question.request->idiag_states = UINT32_MAX;
  inet_diag_sockid& id = question.request->id;
  id.idiag_sport = htons(port);
  memcpy(id.idiag_src, ip, family == AF_INET ? 4 : 16);
  id.idiag_cookie[0] = static_cast<uint32_t>(cookie);
  id.idiag_cookie[1] = static_cast<uint32_t>(cookie >> 32);
  return question.Ask(each, context);
}

}  // namespace postern::daemon
