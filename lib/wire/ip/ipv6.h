// SPDX-License-Identifier: Apache-2.0
// ipv6.h - the IPv6 header and its extensions (RFC 8200).
#pragma once
#include <cstdint>

#include "wire/be.h"
#include "wire/ip/ip.h"

namespace postern::wire {

struct Ipv6Header {
  Be32 version_class_flow;  // 31-28 version, 27-20 traffic class, 19-0 flow label
  Be16 payload_bytes;
  uint8_t next;
  uint8_t hop_limit;
  uint8_t source[16], destination[16];
};
static_assert(sizeof(Ipv6Header) == kIpv6HeaderBytes);

struct Ipv6Fragment {
  uint8_t next;
  uint8_t reserved;
  Be16 off_more;  // 15-3 offset in units of 8 bytes, 0 more
  Be32 id;
};
static_assert(sizeof(Ipv6Fragment) == kFragmentHeaderBytes);

// Of hop-by-hop, routing and destination; the length is 8 + 8 * words.
struct Ipv6Extension {
  uint8_t next;
  uint8_t words;
  uint8_t routing_type;   // of a routing header
  uint8_t segments_left;  // of a routing header
};

inline constexpr uint8_t kNextHopByHop = 0, kNextRouting = 43, kNextFragment = 44,
                         kNextDestination = 60;
// A chain as RFC 8200, 4.1 recommends it has five of those we follow.
inline constexpr uint32_t kIpv6ExtensionsMax = 8;
inline constexpr uint32_t kIpv6MtuMin = 1280;

// The header at `ip_off` of a frame that ends at `end`, and the extension headers we know. Others
// (AH, ESP, mobility) are taken for the upper layer. An atomic fragment is none (RFC 6946).
Refusal ParseIpv6(const uint8_t* frame, uint32_t ip_off, uint32_t end, IpHead& out);

// See BuildIp().
uint32_t BuildIpv6(uint8_t* to, const IpOut& ip, uint32_t payload_bytes);

}  // namespace postern::wire
