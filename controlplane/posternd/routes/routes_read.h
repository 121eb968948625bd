// routes_read.h - reads all that the kernel has of routes, once.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "../kit/netlink.h"
#include "routes_model.h"

namespace postern::daemon {

inline constexpr int kReadTries = 3;  // before the next change is waited for

// 0 or -errno; -EINTR: something changed meanwhile. Filters and `unsynced` are not touched.
int ReadRoutes(Netlink& line, RouteModel& model);
int ReadNeighbours(Netlink& line, std::vector<NeighEntry>& out);
// Only links and addresses.
int ReadAddresses(Netlink& line, RouteModel& model);
// The groups that tell of changes of any of these; neighbours among them.
extern const std::vector<int> kRouteGroups;

// Has the kernel find the neighbour, or confirm it. 0 or -errno (-EPERM without CAP_NET_ADMIN).
int AskForNeighbour(Netlink& line, uint32_t ifindex, const uint8_t ip[16]);
// The same without privileges: by a datagram to the discard port (RFC 863), which has to be
// resolved.
int SendForNeighbour(uint32_t ifindex, const uint8_t ip[16]);

}  // namespace postern::daemon
