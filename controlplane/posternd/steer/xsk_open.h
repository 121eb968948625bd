// xsk_open.h - makes the AF_XDP sockets of a VI over a stack's packet area.
// SPDX-License-Identifier: Apache-2.0
//
// To be called in the interface's network namespace, with CAP_NET_ADMIN and CAP_NET_RAW there (and
// CAP_IPC_LOCK, or a limit on locked memory that is large enough). The kernel gives each queue of
// an interface to one area only (EBUSY): a VI has all queues of its interface, since a packet can't
// go from one queue to the socket of another.
#pragma once
#include <string>
#include <vector>

#include "../kit/fd.h"
#include "ctl/vi_grant.h"
#include "vi/packet_area.h"

namespace postern::daemon {

struct NetInterface {
  uint32_t ifindex = 0;
  std::string name, driver;
  uint32_t mtu = 0, queues = 1;
  uint8_t mac[6] = {};
};

// 0 or -errno; EOPNOTSUPP: no Ethernet.
int ReadInterface(uint32_t ifindex, NetInterface& out);

struct SocketsWanted {
  uint32_t slots = 0;    // of each ring; a power of two, 0: as we like
  bool generic = false;  // the program is attached in generic mode: no zero copy
};

// Fills the grant but for its id. 0 or -errno, after Warn().
int OpenSockets(const NetInterface& interface, const UniqueFd& area, const SocketsWanted& wanted,
                std::vector<UniqueFd>& sockets, ctl::ViGrant& grant);

}  // namespace postern::daemon
