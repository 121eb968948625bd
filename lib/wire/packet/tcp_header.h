// SPDX-License-Identifier: Apache-2.0
// tcp_header.h - TCP headers and their options: bytes <-> tcp::SegmentIn and tcp::SegmentOut.
//
// Options: RFC 9293 3.1 (end, no-operation, MSS), 7323 (window scale, timestamps), 2018 (SACK
// permitted, SACK), and SMC's experimental one (abi/syn_option.h).
//
// To send: BuildTcp(), the payload behind it with Checksummer::Copy, then CompleteTcp().
#pragma once
#include <cstdint>

#include "tcp/segment/segment.h"
#include "wire/be.h"
#include "wire/packet/packet.h"

namespace postern::wire {

struct TcpHeader {
  Be16 source_port, destination_port;
  Be32 seq, ack;
  uint8_t data_off;  // 7-4: header length in words of 4 bytes
  uint8_t flags;
  Be16 window, checksum, urgent;
};
static_assert(sizeof(TcpHeader) == 20);

inline constexpr uint32_t kTcpHeaderBytes = 20, kTcpHeaderBytesMax = 60;
inline constexpr uint32_t kTcpOptionBytesMax = kTcpHeaderBytesMax - kTcpHeaderBytes;

// `bytes` are header and payload. False: the header does not fit into them or is shorter than
// possible. Everything else is a segment: bad options are skipped or end the list. Not set: `ecn`
// and `packet`, which are not TCP's.
bool ParseTcp(const uint8_t* at, uint32_t bytes, tcp::SegmentIn& out);
// The same of a frame that ParseFrame has not refused, with `ecn`.
bool ParseTcp(const uint8_t* frame, const Packet& packet, tcp::SegmentIn& out);

// Header of a segment with these options, a multiple of 4. SACK blocks that do not fit are left
// out.
uint32_t TcpHeaderBytes(const tcp::SegmentOptions& options);

struct Ports {
  uint16_t source = 0, destination = 0;
};
// Writes the header with checksum 0; returns its size, which is TcpHeaderBytes(): at most 60.
uint32_t BuildTcp(uint8_t* to, Ports ports, const tcp::SegmentOut& segment);
// `pseudo` is PseudoSum() of header and payload, `payload` the payload's sum (Checksummer::sum).
void CompleteTcp(uint8_t* header, uint32_t header_bytes, uint32_t pseudo, uint32_t payload);
// For a device that finishes it: the field holds the pseudo header's sum, not inverted.
void CompleteTcpOffloaded(uint8_t* header, uint32_t pseudo);

}  // namespace postern::wire
