// addresses.cc - netlink notifications and the dump.
// SPDX-License-Identifier: Apache-2.0
#include "addresses.h"

#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "log.h"

namespace postern::daemon {
namespace {

bool ToAddr(const sockaddr* from, pstn_addr& to) {
  to = {};
  if (from->sa_family == AF_INET) {
    to.ip[10] = to.ip[11] = 0xff;
    memcpy(to.ip + 12, &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    return true;
  }
  if (from->sa_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(from);
    memcpy(to.ip, &in6->sin6_addr, 16);
    to.scope = in6->sin6_scope_id;
    return true;
  }
  return false;
}

}  // namespace

std::vector<pstn_addr> LocalAddresses() {
  std::vector<pstn_addr> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    Warn("cannot read the local addresses: %s", strerror(errno));
    return found;
  }
  for (ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    pstn_addr addr;
    if (at->ifa_addr != nullptr && ToAddr(at->ifa_addr, addr)) found.push_back(addr);
  }
  freeifaddrs(list);
  // An order of our own, so that an unchanged set compares equal.
  const auto less = [](const pstn_addr& a, const pstn_addr& b) {
    return memcmp(&a, &b, sizeof(a)) < 0;
  };
  const auto same = [](const pstn_addr& a, const pstn_addr& b) {
    return memcmp(&a, &b, sizeof(a)) == 0;
  };
  std::sort(found.begin(), found.end(), less);
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

bool SourceTowards(const pstn_addr& to, pstn_addr& source) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  memcpy(&address.sin6_addr, to.ip, sizeof(to.ip));
  address.sin6_port = htons(to.port);
  socklen_t size = sizeof(address);
  // Connecting it sends nothing. IPv4 goes by mapped addresses.
  const UniqueFd fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  return fd.ok() && connect(fd.get(), place, size) == 0 &&
         getsockname(fd.get(), place, &size) == 0 && ToAddr(place, source);
}

AddressWatch::AddressWatch(event_base* base, OnChange on_change)
    : on_change_(std::move(on_change)),
      netlink_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (netlink_.ok() &&
      bind(netlink_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    readable_ = std::make_unique<Event>(
        base, netlink_.get(), static_cast<short>(EV_READ | EV_PERSIST), [this] { Drain(); });
    readable_->Add();
  } else {
    Warn("changes of local addresses will not be seen: %s", strerror(errno));
  }
  on_change_(LocalAddresses());
}

void AddressWatch::Drain() {
  char buffer[8192];
  for (;;) {
    const ssize_t got = recv(netlink_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno != ENOBUFS && errno != EINTR) break;
  }
  on_change_(LocalAddresses());
}

}  // namespace postern::daemon
