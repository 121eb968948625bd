// SPDX-License-Identifier: Apache-2.0
// claim.cc - the names that a client gives its connection: the kernel's TCP would not let it lie.
//
// Servers decide by addresses (redis serves strangers on the loopback only). Inside one user's
// programs nothing is gained by a lie; others can claim only what a connection of theirs could
// have.
#include <cstring>

#include "sock/sock.h"

namespace postern {
namespace {

bool IsOwn(const pstn_dir& d, const pstn_addr& a) {
  const uint32_t count = LoadRelaxed(d.addr_count);
  for (uint32_t i = 0; i < count && i < PSTN_DIR_ADDRS; i++) {
    if (memcmp(d.addrs[i].ip, a.ip, sizeof a.ip) == 0) return true;
  }
  return false;
}

}  // namespace

bool IsCredible(const pstn_dir& d, uint32_t remote, const pstn_addr& client,
                const pstn_addr& server) {
  switch (remote) {
    case PSTN_LGR_SAME_USER:
      return true;
    case PSTN_LGR_OTHER_NETNS:  // from nowhere here, to an address that can be reached from there
      return !AddrIsLoopback(client) && !AddrIsAny(client) && !IsOwn(d, client) &&
             !AddrIsLoopback(server) && IsOwn(d, server);
    default:
      return (AddrIsLoopback(client) || IsOwn(d, client)) &&
             (AddrIsLoopback(server) || IsOwn(d, server));
  }
}

}  // namespace postern
