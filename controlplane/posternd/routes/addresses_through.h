// addresses_through.h - the addresses of another network namespace, asked of the kernel.
// SPDX-License-Identifier: Apache-2.0
//
// A process can say anything of the addresses that it has. So it hands over a socket
// (NETLINK_ROUTE) that it has made in its network namespace, and we ask the kernel through that.
// The process may have a copy: it can take answers away, which is noticed, and send messages of its
// own, which are not the kernel's.
#pragma once
#include <cstdint>
#include <vector>

#include "../kit/fd.h"
#include "abi/postern_abi.h"

namespace postern::daemon {

// Whose addresses they are, which is who may have chosen them.
struct NetnsOwner {
  bool host = false;  // of the same user namespace as ours: the administrator
  uid_t uid = 0;      // else: who has made the user namespace, and may give it any address
};
NetnsOwner OwnerOf(const UniqueFd& netns);

// False: it is no such socket, or not of that network namespace (inode), or the answer is not
// whole. Never waits. At most PSTN_DIR_ADDRS are asked for.
bool AddressesThrough(const UniqueFd& socket, uint64_t netns, std::vector<pstn_addr>& found);

}  // namespace postern::daemon
