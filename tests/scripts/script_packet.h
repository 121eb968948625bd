// SPDX-License-Identifier: Apache-2.0
// script_packet.h - IP packets of the script tier as values and as bytes: TCP over IPv4 or IPv6,
// and the ICMP errors that quote it.
//
// Written apart from lib/wire on purpose: what both agree about was read twice. No fragments, no
// extension headers.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tcp/segment/segment.h"

namespace postern::scripts {

using Bytes = std::vector<uint8_t>;

// As they stand on the wire.
inline uint32_t Get16(const uint8_t* at) { return static_cast<uint32_t>(at[0] << 8 | at[1]); }
inline uint32_t Get32(const uint8_t* at) { return Get16(at) << 16 | Get16(at + 2); }

struct Address {
  bool is_v6 = false;
  std::array<uint8_t, 16> bytes{};  // IPv4: the first four
  bool operator==(const Address&) const = default;
};

struct Flow {  // as the packet has it: from source to destination
  Address source, destination;
  uint16_t source_port = 0, destination_port = 0;
  bool operator==(const Flow&) const = default;
  Flow Back() const { return {destination, source, destination_port, source_port}; }
};

struct TcpPacket {
  Flow flow;
  uint8_t tos = 0;  // traffic class; the ECN bits are its lowest two
  uint8_t ttl = 64;
  uint32_t seq = 0, ack = 0;
  uint8_t flags = 0;
  uint16_t window = 0, urgent = 0;
  Bytes options;  // as on the wire, padded
  Bytes payload;
};

// An error that a router or the peer has sent about a packet of ours.
struct IcmpPacket {
  Address source, destination;
  uint8_t type = 0, code = 0;
  uint32_t mtu = 0;
  Flow quoted;  // the flow of the packet that it is about
  uint32_t quoted_seq = 0;
};

Bytes Encode(const TcpPacket& packet);
Bytes Encode(const IcmpPacket& packet);

enum class Decoded { kTcp, kIcmp, kBad, kOther };
// kBad: lengths or a checksum are wrong, `why` says which.
Decoded Decode(const uint8_t* data, size_t bytes, TcpPacket& tcp, IcmpPacket& icmp,
               std::string& why);

// The options that TCP asks for, laid out as Linux lays them out.
Bytes OptionBytes(const tcp::SegmentOptions& options);
// Unknown ones are skipped; a length that makes no sense ends the list (RFC 9293, 3.1).
tcp::SegmentOptions ReadOptions(const Bytes& options);

// "mss 1460,nop,wscale 7,...": in the language of the scripts.
std::string ShowOptions(const Bytes& options);
std::string ShowFlags(uint8_t flags);

}  // namespace postern::scripts
