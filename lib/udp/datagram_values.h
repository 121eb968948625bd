// SPDX-License-Identifier: Apache-2.0
// datagram_values.h - UDP datagrams as values: what came in, what goes out, what an ICMP message
// says. lib/wire makes bytes of them.
#pragma once
#include <sys/uio.h>

#include <cstdint>

#include "base/ip_address.h"

namespace postern::udp {

inline constexpr uint32_t kHeaderBytes = 8;
inline constexpr uint32_t kIpv4HeaderBytes = 20, kIpv6HeaderBytes = 40;
inline constexpr uint32_t kPayloadMax = 65507;  // of IPv4; IPv6: 65527
inline constexpr uint32_t kPayloadMax6 = 65527;

// What the checksum field of a received datagram said.
enum class Checksum : uint8_t { kZero, kGood, kBad };
// What its frame or its address was sent to.
enum class Cast : uint8_t { kUnicast, kMulticast, kBroadcast };

struct DatagramIn {
  IpAddress source, dest;
  uint16_t source_port = 0, dest_port = 0;
  uint32_t ifindex = 0;
  Checksum checksum = Checksum::kGood;
  Cast cast = Cast::kUnicast;  // kMulticast: of a group that the interface has joined
  uint8_t tos = 0, ttl = 0;
  uint32_t packet = 0;  // the Host's name for the buffer
  uint32_t off = 0;     // where the payload begins in it
  uint32_t bytes = 0;   // of payload, by UDP's own length field
  uint64_t arrived_ns = 0;
};

struct DatagramOut {
  IpAddress source, dest;
  uint16_t source_port = 0, dest_port = 0;
  uint32_t ifindex = 0;
  uint8_t tos = 0, ttl = 0;
  bool dont_fragment = false;  // else the Host fragments what is longer than the path's MTU
  bool no_checksum = false;    // the field is 0
  bool loop = false;           // to members on this host, too: Input() gets a copy
  bool confirm = false;        // MSG_CONFIRM: the neighbour has answered
  const iovec* iov = nullptr;  // payload: `bytes` from `skip` on
  uint32_t iov_count = 0;
  uint32_t skip = 0, bytes = 0;
};

// An ICMP error about a datagram of ours; the first bytes of that are quoted in it.
struct IcmpIn {
  bool v6 = false;
  uint8_t type = 0, code = 0;
  uint32_t info = 0;       // the MTU, of "too big" and "fragmentation needed"
  IpAddress from;          // the sender of the error
  IpAddress source, dest;  // of the datagram
  uint16_t source_port = 0, dest_port = 0;
  uint32_t ifindex = 0;
  uint32_t packet = 0, off = 0, bytes = 0;  // what is quoted of its payload
};

}  // namespace postern::udp
