// SPDX-License-Identifier: Apache-2.0
// route_key.h - addresses as 128-bit numbers, and the hash that writer and readers share.
#pragma once
#include <cstdint>

#include "base/ip_address.h"

namespace postern {

// The address with its first bit on top.
struct RouteKey {
  uint64_t hi, lo;
  bool operator==(const RouteKey&) const = default;
};

inline RouteKey KeyOf(const uint8_t ip[16]) { return {LoadBe64(ip), LoadBe64(ip + 8)}; }

inline RouteKey Masked(const RouteKey& k, uint32_t plen) {
  if (plen >= 128) return k;
  if (plen >= 64) return {k.hi, plen == 64 ? 0 : k.lo & ~(~0ull >> (plen - 64))};
  return {plen == 0 ? 0 : k.hi & ~(~0ull >> plen), 0};
}

inline uint32_t V4Of(const uint8_t ip[16]) { return static_cast<uint32_t>(LoadBe64(ip + 8)); }

inline uint64_t MixBits(uint64_t z) {  // the finaliser of splitmix64
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// Of a prefix of a table; `key` is masked.
inline uint32_t RouteHash(uint32_t table, uint32_t plen, const RouteKey& key) {
  return static_cast<uint32_t>(
      MixBits(MixBits(key.hi ^ (static_cast<uint64_t>(table) << 8 | plen)) ^ key.lo));
}

inline uint32_t NeighHash(uint32_t ifindex, const RouteKey& key) {
  return static_cast<uint32_t>(MixBits(MixBits(key.hi ^ ifindex) ^ key.lo));
}

}  // namespace postern
