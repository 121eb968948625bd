// SPDX-License-Identifier: Apache-2.0
// packet.h - a received frame as a value: the one entry for what a VI hands over.
//
// One pass over the headers, nothing is copied and nothing kept. What it does not refuse may be
// trusted as far as lengths, offsets and checksums go: every offset lies in the frame, and
//   frame: | link | IP, options, extensions | L4 header | payload | padding
//          0      ip_off                    l4_off      payload_off
// A fragment is delivered unchecked above IP: it goes to reassembly
// (stack/reassembly/reassembly.h). Protocols other than TCP, UDP and ICMP pass with l4_state
// kUnknown.
#pragma once
#include <cstdint>

#include "wire/ip/ip.h"
#include "wire/packet/ethernet.h"

namespace postern::wire {

enum class L4State : uint8_t {
  kUnknown,     // not looked at: another protocol, a fragment
  kVerified,    // its checksum is right, by us or by the VI (kRxL4Verified)
  kNoChecksum,  // UDP over IPv4 without one
};

struct Packet {
  LinkHead link;
  IpHead ip;
  L4State l4_state;
  // TCP and UDP, also in a first fragment; else 0.
  uint16_t source_port, destination_port;
  // Behind the header of TCP (options included), UDP or ICMP (8 bytes); else L4 itself.
  uint32_t payload_off, payload_bytes;
};

// `rx` are bits kRx*. What `out` holds after a refusal is undefined beyond `link`, but initialised.
Refusal ParseFrame(const uint8_t* frame, uint32_t bytes, uint32_t rx, Packet& out);

// The same from the IP header on, for VIs without Ethernet (TUN) and for tests: `ip_off` is where
// it begins, link.type which of the two it is.
Refusal ParseIpFrame(const uint8_t* frame, uint32_t ip_off, uint32_t bytes, uint32_t rx,
                     Packet& out);

// The same of a large packet: its first `here` bytes are at `frame`, all its headers among them;
// the rest lies elsewhere, and `bytes` are all. Only TCP's, and no fragments, which no device
// gathers. l4_state is kUnknown unless `rx` has kRxL4Verified: VerifyL4() has to follow, or
// IsPartial().
Refusal ParseLargeFrame(const uint8_t* frame, uint32_t here, uint32_t bytes, uint32_t rx,
                        Packet& out);

// ---- a datagram that has been put together: `out.ip` is the first fragment's, with l4_bytes of
// all.

// `l4` are the first `here` bytes of its upper layer. Fills in ports and payload, and l4_state: if
// that is kUnknown and the protocol has a checksum (HasChecksum), VerifyL4() has to follow.
Refusal ParseL4(const uint8_t* l4, uint32_t here, Packet& out);
bool HasChecksum(const Packet& packet);
// What the checksum covers, from l4_off on. (The end of UDP may be before that of the packet.)
inline uint32_t CoveredBytes(const Packet& packet) {
  return packet.payload_off - packet.ip.l4_off + packet.payload_bytes;
}
// `sum` is that of all covered bytes, without pseudo header.
Refusal VerifyL4(uint32_t sum, Packet& out);
// Whether TCP's or UDP's checksum was never completed (kRxMayBePartial). `frame` has their header.
bool IsPartial(const uint8_t* frame, const Packet& packet);

}  // namespace postern::wire
