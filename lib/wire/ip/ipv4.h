// SPDX-License-Identifier: Apache-2.0
// ipv4.h - the IPv4 header (RFC 791).
#pragma once
#include <cstdint>

#include "wire/be.h"
#include "wire/ip/ip.h"

namespace postern::wire {

struct Ipv4Header {
  uint8_t version_words;  // 7-4 version, 3-0 header length in words of 4 bytes
  uint8_t tos;
  Be16 total_bytes;
  Be16 id;
  Be16 fragment;  // kIpv4DontFragment, kIpv4More, 12-0 offset in units of 8 bytes
  uint8_t ttl;
  uint8_t protocol;
  Be16 checksum;
  uint8_t source[4], destination[4];
};
static_assert(sizeof(Ipv4Header) == kIpv4HeaderBytes);

inline constexpr uint16_t kIpv4DontFragment = 0x4000, kIpv4More = 0x2000, kIpv4OffMask = 0x1fff;

// The header at `ip_off` of a frame that ends at `end`; bytes behind the packet are padding.
// Options are checked and skipped; a source route is refused, as hosts do by default
// (RFC 7126, 4.3).
Refusal ParseIpv4(const uint8_t* frame, uint32_t ip_off, uint32_t end, uint32_t rx, IpHead& out);

// See BuildIp().
uint32_t BuildIpv4(uint8_t* to, const IpOut& ip, uint32_t payload_bytes);

}  // namespace postern::wire
