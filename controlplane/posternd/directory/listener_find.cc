// listener_find.cc - a listener without its descriptor: by the kernel's table of sockets.
// SPDX-License-Identifier: Apache-2.0
#include <linux/inet_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <map>
#include <utility>

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

uint64_t CookieOf(const inet_diag_msg& d) {
  return d.id.idiag_cookie[0] | static_cast<uint64_t>(d.id.idiag_cookie[1]) << 32;
}

int TakeCookie(const nlmsghdr* answer, void* context) {
  const auto& d = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
  if (mnl_nlmsg_get_payload_len(answer) >= sizeof d)
    static_cast<std::set<uint64_t>*>(context)->insert(CookieOf(d));
  return MNL_CB_OK;
}

// Asks for the socket at that address, not for a list. -ENOENT: another one is there, or none.
int AskFor(const Listener& listener, mnl_cb_t each, void* context) {
  const auto family = static_cast<uint8_t>(listener.family);
  const IpAddress ip = IpOf(listener.local);
  static constexpr uint8_t kAny[4] = {};
  const void* const bytes = family == AF_INET6 ? static_cast<const void*>(listener.local.ip)
                            : ip.IsV4()        ? static_cast<const void*>(ip.v4())
                                               : kAny;
  return AskSocket(family, bytes, listener.local.port, listener.cookie, each, context);
}

int TakeListens(const nlmsghdr* answer, void* context) {
  const auto& d = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
  if (mnl_nlmsg_get_payload_len(answer) >= sizeof d)
    *static_cast<bool*>(context) = d.idiag_state == TCP_LISTEN;
  return MNL_CB_OK;
}

bool Listens(const Listener& listener) {
  bool listens = false;
  return AskFor(listener, TakeListens, &listens) == 0 && listens;
}

// Of that port, or of all.
int TakeCookies(uint32_t family, uint16_t port, std::set<uint64_t>& cookies) {
  return DumpSockets(static_cast<uint8_t>(family), 1u << TCP_LISTEN, port, TakeCookie, &cookies);
}

// As many ports are asked for one by one. A list of all listeners of a large host takes as long.
constexpr size_t kPortsOneByOne = 8;

int Compare(const nlmsghdr* answer, void* context) {
  auto& search = *static_cast<ListenerSearch*>(context);
  const auto& d = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
  if (mnl_nlmsg_get_payload_len(answer) < sizeof d) return MNL_CB_OK;
  const Listener& w = search.wanted;
  if (d.idiag_state == TCP_LISTEN && CookieOf(d) == w.cookie &&
      ntohs(d.id.idiag_sport) == w.local.port && d.idiag_uid == search.uid && d.id.idiag_if == 0 &&
      SameAddress(d, w.local) && (d.idiag_family != AF_INET6 || V6Only(answer) == (w.v6only != 0)))
    search.found = true;
  return MNL_CB_OK;
}

}  // namespace

int StillListens(const Listener& listener) {
  if (Listens(listener)) return 0;
  // It may share its port with others, or have a mapped address.
  std::set<uint64_t> there;
  const int error = TakeCookies(listener.family, listener.local.port, there);
  return error != 0 ? error : there.count(listener.cookie) != 0 ? 0 : -ENOENT;
}

// A port that many share is asked for once.
WhichListen LookWhichListen(const std::vector<Listener>& all) {
  WhichListen which;
  std::map<std::pair<uint32_t, uint16_t>, std::set<uint64_t>> open;
  for (const Listener& l : all) {
    if (Listens(l)) {
      which.listening.insert(l.cookie);
    } else {
      open[{l.family, l.local.port}].insert(l.cookie);
    }
  }
  if (open.size() > kPortsOneByOne) {
    std::map<std::pair<uint32_t, uint16_t>, std::set<uint64_t>> of_all;
    for (const auto& [where, cookies] : open)
      of_all[{where.first, 0}].insert(cookies.begin(), cookies.end());
    open.swap(of_all);
  }
  for (const auto& [where, cookies] : open) {
    std::set<uint64_t> there;
    if (TakeCookies(where.first, where.second, there) != 0) continue;
    for (const uint64_t cookie : cookies)
      (there.count(cookie) != 0 ? which.listening : which.ended).insert(cookie);
  }
  return which;
}

int FindListener(const Listener& listener, uid_t uid) {
  ListenerSearch search{listener, uid};
  return AskFor(listener, Compare, &search) == 0 && search.found ? 0 : -ENOENT;
}

int FindInList(const Listener& listener, uid_t uid) {
  ListenerSearch search{listener, uid};
  const int error = DumpSockets(static_cast<uint8_t>(listener.family), 1u << TCP_LISTEN,
                                listener.local.port, Compare, &search);
  return error != 0 ? error : search.found ? 0 : -ENOENT;
}

}  // namespace postern::daemon
