// SPDX-License-Identifier: Apache-2.0
// claim.cc - the names that a client gives its connection.
//
// They are the client's word, which programs go by: which clients may log in, which to trust (redis
// serves strangers on the loopback only). Any process of the client's network namespace could have
// had what is credible with the kernel's TCP.

#include "peer/claim.h"
#include "base/ip_address.h"
#include "family/family.h"
#include "peer/connect.h"

namespace postern {
namespace {

bool IsOurs(Family& fam, const pstn_addr& a) {
  const pstn_dir* d = LoadAcquire(fam.dir);  // [T4]
  return a.scope == 0 && (AddrIsLoopback(a) || (d != nullptr && IsLocalAddress(*d, a)));
}

}  // namespace

bool IsCredible(Family& fam, const pstn_ep& listener, uint32_t remote, const pstn_addr& client,
                const pstn_addr& server) {
  const pstn_addr& here = listener.local;
  if (client.port < kFreePorts || server.port != here.port) return false;
  if (AddrIsV4(client) != AddrIsV4(server)) return false;
  if (listener.family == AF_INET && !AddrIsV4(server)) return false;
  if (!AddrIsAny(here) && !SameIp(here, server)) return false;
  if (remote == PSTN_LGR_OTHER_NETNS)  // from nowhere here, to what can be reached from there
    return !AddrIsAny(client) && !IsOurs(fam, client) && IsOurs(fam, server) &&
           !AddrIsLoopback(server);
  return (SameIp(client, server) || IsOurs(fam, client)) && IsOurs(fam, server);
}

}  // namespace postern
