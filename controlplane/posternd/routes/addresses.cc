// addresses.cc - netlink notifications and the dump.
// SPDX-License-Identifier: Apache-2.0
#include "addresses.h"

#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../kit/fd.h"
#include "../kit/log.h"
#include "base/ip_address.h"
#include "routes_read.h"

namespace postern::daemon {

std::vector<pstn_addr> LocalAddresses() {
  std::vector<pstn_addr> found;
  Netlink line(NETLINK_ROUTE);
  RouteModel model;
  int error = line.ok() ? -EINTR : -errno;
  for (int i = 0; i < kReadTries && error == -EINTR; i++) {
    model = {};
    error = ReadAddresses(line, model);
  }
  // After the last try: what changed meanwhile is told, and leads to another reading.
  if (error != 0 && error != -EINTR) {
    Warn("cannot read the local addresses: %s", strerror(-error));
    return found;
  }
  for (const AddrEntry& entry : model.addrs) {
    pstn_addr addr = NameOf(IpAt(entry.addr.ip), 0);
    if (IpOf(addr).IsLinkLocal()) addr.scope = entry.addr.ifindex;
    found.push_back(addr);
  }
  // An order of our own, so that an unchanged set compares equal.
  const auto less = [](const pstn_addr& a, const pstn_addr& b) { return CompareAddr(a, b) < 0; };
  const auto same = [](const pstn_addr& a, const pstn_addr& b) { return CompareAddr(a, b) == 0; };
  std::sort(found.begin(), found.end(), less);
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

bool SourceTowards(const pstn_addr& to, pstn_addr& source) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const place = reinterpret_cast<sockaddr*>(&storage);
  // Connecting it sends nothing. IPv4 goes by mapped addresses.
  AddrToSockaddr(NameOf(IpOf(to), to.port), AF_INET6, place, &size);
  const UniqueFd fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.ok() && connect(fd.get(), place, size) == 0 &&
         getsockname(fd.get(), place, &size) == 0 &&
         AddrFromSockaddr(place, size, AF_INET6, source);
}

AddressWatch::AddressWatch(event_base* base, OnChange on_change)
    : on_change_(std::move(on_change)), netlink_(NETLINK_ROUTE) {
  if (netlink_.ok() && netlink_.Join(RTNLGRP_IPV4_IFADDR) == 0 &&
      netlink_.Join(RTNLGRP_IPV6_IFADDR) == 0) {
    readable_ = std::make_unique<Event>(
        base, netlink_.fd(), static_cast<short>(EV_READ | EV_PERSIST), [this] { Drain(); });
    readable_->Add();
  } else {
    Warn("changes of local addresses will not be seen: %s", strerror(errno));
  }
  on_change_(LocalAddresses());
}

void AddressWatch::Drain() {
  (void)netlink_.Drain([](const nlmsghdr*) {});
  on_change_(LocalAddresses());
}

}  // namespace postern::daemon
