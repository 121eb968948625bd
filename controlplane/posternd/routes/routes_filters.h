// routes_filters.h - whether something between the routes and the wire would touch our packets.
// SPDX-License-Identifier: Apache-2.0
//
// A VI goes past netfilter and IPsec, so where there is either the kernel has to keep the sockets.
// Coarse, and on the safe side: what can't be seen counts as being there.
//
//   nftables    base chains of the families ip, ip6, inet and netdev, at any hook but forward, that
//               have a rule which does more than count, or drop by policy
//   iptables    (the old one) a table in this namespace, whatever is in it
//   IPVS        a service in this namespace
//   IPsec       any policy
#pragma once
#include <functional>
#include <memory>

#include "../kit/event.h"
#include "../kit/netlink.h"

namespace postern::daemon {

struct Filters {
  bool netfilter = true, xfrm = true;
  bool operator==(const Filters&) const = default;
};

Filters ReadFilters();

// Calls back when something may have changed: told by the kernel, or by looking now and then where
// it doesn't tell.
class FilterWatch {
 public:
  FilterWatch(event_base* base, std::function<void()> on_change);

 private:
  std::function<void()> on_change_;
  std::unique_ptr<Netlink> nftables_, xfrm_;
  std::unique_ptr<Event> nftables_event_, xfrm_event_;
  Event look_;
};

}  // namespace postern::daemon
