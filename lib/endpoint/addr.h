// SPDX-License-Identifier: Apache-2.0
// addr.h - addresses as programs give them, and as endpoints keep them.
#pragma once
#include <sys/socket.h>

#include <cstring>

#include "family/family.h"

namespace postern {

bool AddrFromSockaddr(const sockaddr* sa, socklen_t len, uint32_t family, pstn_addr& out);
// As accept, getsockname and friends do it: truncates, and sets *len to the full length.
void AddrToSockaddr(const pstn_addr& a, uint32_t family, sockaddr* sa, socklen_t* len);
bool AddrIsAny(const pstn_addr& a);
bool AddrIsV4(const pstn_addr& a);
bool AddrIsLoopback(const pstn_addr& a);
inline bool SameIp(const pstn_addr& a, const pstn_addr& b) {
  return memcmp(a.ip, b.ip, sizeof a.ip) == 0;
}

}  // namespace postern
