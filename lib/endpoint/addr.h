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

// An endpoint's names may be asked for while its connection is made or ended: word by word, as the
// kernel's are.
static_assert(sizeof(pstn_addr) % sizeof(uint32_t) == 0 && alignof(pstn_addr) >= alignof(uint32_t));
inline constexpr size_t kAddrWords = sizeof(pstn_addr) / sizeof(uint32_t);
inline void StoreAddr(pstn_addr& to, const pstn_addr& from) {
  uint32_t words[kAddrWords];
  memcpy(words, &from, sizeof words);
  auto* const at = reinterpret_cast<uint32_t*>(&to);
  for (size_t i = 0; i < kAddrWords; i++) StoreRelaxed(at[i], words[i]);
}
inline pstn_addr LoadAddr(const pstn_addr& from) {
  uint32_t words[kAddrWords];
  const auto* const at = reinterpret_cast<const uint32_t*>(&from);
  for (size_t i = 0; i < kAddrWords; i++) words[i] = LoadRelaxed(at[i]);
  pstn_addr to;
  memcpy(&to, words, sizeof to);
  return to;
}

}  // namespace postern
