// listener_find.cc - a listener without its descriptor: by the kernel's table of sockets.
// SPDX-License-Identifier: Apache-2.0
#include <linux/inet_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "../kit/sock_diag.h"
#include "base/ip_address.h"
#include "listener_check.h"

namespace postern::daemon {
namespace {

struct ListenerSearch {
  const Listener& wanted;
  uid_t uid;
  bool found = false;
};

bool V6Only(const nlmsghdr* answer) {
  bool only = false;
  mnl_attr_parse(
      answer, sizeof(inet_diag_msg),
      [](const nlattr* attr, void* data) {
        if (mnl_attr_get_type(attr) == INET_DIAG_SKV6ONLY)
          *static_cast<bool*>(data) = mnl_attr_get_u8(attr) != 0;
        return MNL_CB_OK;
      },
      &only);
  return only;
}

bool SameAddress(const inet_diag_msg& d, const pstn_addr& a) {
  IpAddress ip = IpAt(d.idiag_family, d.id.idiag_src);
  if (d.idiag_family == AF_INET && ip.IsAny()) ip = {};  // as listener_check.cc has it
  return ip == IpOf(a);
}

struct CookieSearch {
  uint64_t cookie;
  bool found = false;
};

uint64_t CookieOf(const inet_diag_msg& d) {
  return d.id.idiag_cookie[0] | static_cast<uint64_t>(d.id.idiag_cookie[1]) << 32;
}

int CompareCookie(const nlmsghdr* answer, void* context) {
  auto& search = *static_cast<CookieSearch*>(context);
  const auto& d = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
  search.found |= mnl_nlmsg_get_payload_len(answer) >= sizeof d && CookieOf(d) == search.cookie;
  return MNL_CB_OK;
}

int Compare(const nlmsghdr* answer, void* context) {
  auto& search = *static_cast<ListenerSearch*>(context);
  const auto& d = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
  if (mnl_nlmsg_get_payload_len(answer) < sizeof d) return MNL_CB_OK;
  const Listener& w = search.wanted;
  if (CookieOf(d) == w.cookie && ntohs(d.id.idiag_sport) == w.local.port &&
      d.idiag_uid == search.uid && d.id.idiag_if == 0 && SameAddress(d, w.local) &&
      (d.idiag_family != AF_INET6 || V6Only(answer) == (w.v6only != 0)))
    search.found = true;
  return MNL_CB_OK;
}

}  // namespace

int StillListens(const Listener& listener) {
  const auto family = static_cast<uint8_t>(listener.family);
  const IpAddress ip = IpOf(listener.local);
  static constexpr uint8_t kAny[4] = {};
  const void* const bytes = family == AF_INET6 ? static_cast<const void*>(listener.local.ip)
                            : ip.IsV4()        ? static_cast<const void*>(ip.v4())
                                               : kAny;
  const int state = ListenerState(family, bytes, listener.local.port, listener.cookie);
  if (state == TCP_LISTEN) return 0;
  // Sockets that share a port are asked for one by one; so is one that has a mapped address.
  CookieSearch search{listener.cookie};
  const int error =
      DumpSockets(family, 1u << TCP_LISTEN, listener.local.port, CompareCookie, &search);
  return error != 0 ? error : search.found ? 0 : -ENOENT;
}

int FindListener(const Listener& listener, uid_t uid) {
  ListenerSearch search{listener, uid};
  const int error = DumpSockets(static_cast<uint8_t>(listener.family), 1u << TCP_LISTEN,
                                listener.local.port, Compare, &search);
  return error != 0 ? error : search.found ? 0 : -ENOENT;
}

}  // namespace postern::daemon
