// SPDX-License-Identifier: Apache-2.0
// udp_header.h - UDP headers (RFC 768). packet.h parses them.
//
// To send: BuildUdp(), the payload behind it with Checksummer::Copy, then CompleteUdp().
#pragma once
#include <cstdint>

#include "wire/be.h"
#include "wire/checksum.h"
#include "wire/packet/tcp_header.h"

namespace postern::wire {

struct UdpHeader {
  Be16 source_port, destination_port;
  Be16 bytes;  // header and payload
  Be16 checksum;
};
static_assert(sizeof(UdpHeader) == 8);
inline constexpr uint32_t kUdpHeaderBytes = 8;

// Writes the header with checksum 0, which IPv4 takes for "none"; its size.
uint32_t BuildUdp(uint8_t* to, Ports ports, uint32_t payload_bytes);
// `pseudo` is PseudoSum() of header and payload, `payload` the payload's sum.
void CompleteUdp(uint8_t* header, uint32_t pseudo, uint32_t payload);
// For a device that finishes it: the field holds the pseudo header's sum, not inverted.
void CompleteUdpOffloaded(uint8_t* header, uint32_t pseudo);

}  // namespace postern::wire
