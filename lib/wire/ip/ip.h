// SPDX-License-Identifier: Apache-2.0
// ip.h - what IPv4 and IPv6 headers have in common: addresses, what a received header says, what
// one to be sent is to say.
//
// An IPv4 address is kept v4-mapped (base/ip_address.h). On the wire IPv6 headers with such
// addresses are refused, so the two never meet.
#pragma once
#include <cstdint>

#include "base/ip_address.h"
#include "wire/checksum.h"

namespace postern::wire {

enum class Family : uint8_t { kIpv4 = 4, kIpv6 = 6 };

// Of the protocol field or the last next-header field.
inline constexpr uint8_t kProtocolIcmp = 1, kProtocolTcp = 6, kProtocolUdp = 17,
                         kProtocolIcmpv6 = 58, kProtocolNone = 59;

inline constexpr uint32_t kIpv4HeaderBytes = 20, kIpv6HeaderBytes = 40, kFragmentHeaderBytes = 8;
inline constexpr uint32_t kIpBytesMax = 65535;

// Why a frame was refused; refusals.def is the list.
enum class Refusal : uint8_t {
#define PSTN_REFUSAL(name, short_name, text) k##name,
#include "wire/ip/refusals.def"
#undef PSTN_REFUSAL
  kEnd,
};
const char* RefusalName(Refusal refusal);
const char* RefusalText(Refusal refusal);

// What the caller knows of a received frame; bits.
inline constexpr uint32_t kRxIpVerified = 1;  // the device has checked the IPv4 header's checksum
inline constexpr uint32_t kRxL4Verified =
    2;  // and that of TCP or UDP (or there was no wire at all)
// A sender of this host may have left TCP's or UDP's to a device that is not there: the field then
// holds the pseudo header's sum, not inverted, and nothing has been on a wire that could change it.
inline constexpr uint32_t kRxMayBePartial = 4;

// A received IP header. Offsets count from the start of the frame. Plain integers: reassembly keeps
// one in shared memory.
struct IpHead {
  IpAddress source, destination;
  Family family;
  // What begins at l4_off. In a fragment but the first of IPv6: what its fragment header says,
  // which may be one more extension header, and l4_off is data_off.
  uint8_t protocol;
  uint8_t tos;                // or traffic class: DSCP, and ECN in the two low bits
  uint8_t ttl;                // or hop limit
  uint8_t is_fragment;        // 1: L4 is not whole; see the fields below
  uint8_t has_more;           // 1: not the last fragment
  uint8_t is_multicast;       // 1: the destination is a multicast group or the limited broadcast
  uint8_t dont_fragment;      // 1: DF of IPv4; always 1 with IPv6
  uint32_t ip_off, ip_bytes;  // the whole packet as far as it is in this frame, padding not counted
  uint32_t l4_off, l4_bytes;
  uint32_t fragment_id;   // 16 bits for IPv4
  uint32_t fragment_off;  // in bytes, of what is at data_off, in the datagram's fragmentable part
  uint32_t data_off, data_bytes;  // the piece of the fragmentable part
};
static_assert(sizeof(IpHead) == 72);

// ICMP of the other family is a protocol like any that we do not know.
inline bool IsIcmp(const IpHead& ip) {
  return ip.protocol == (ip.family == Family::kIpv4 ? kProtocolIcmp : kProtocolIcmpv6);
}

inline uint8_t EcnOf(uint8_t tos) { return tos & 3; }

// Sum of the pseudo header, see checksum.h. `bytes`: header and data of the upper layer.
inline uint32_t PseudoSum(Family family, const IpAddress& source, const IpAddress& destination,
                          uint8_t protocol, uint32_t bytes) {
  return family == Family::kIpv4 ? PseudoSum4(source.v4(), destination.v4(), protocol, bytes)
                                 : PseudoSum6(source.bytes, destination.bytes, protocol, bytes);
}

// An IP header to be sent.
struct IpOut {
  IpAddress source, destination;
  Family family = Family::kIpv4;
  uint8_t protocol = 0;
  uint8_t tos = 0;
  uint8_t ttl = 64;
  bool dont_fragment = true;  // IPv4
  bool is_fragment = false;   // IPv6: with a fragment header
  bool has_more = false;
  uint32_t fragment_off = 0;  // bytes
  uint32_t id = 0;            // IPv4: 16 bits, always there; IPv6: in the fragment header
  uint32_t flow_label = 0;    // IPv6, 20 bits
};

inline uint32_t IpHeaderBytes(const IpOut& ip) {
  if (ip.family == Family::kIpv4) return kIpv4HeaderBytes;
  return kIpv6HeaderBytes + (ip.is_fragment ? kFragmentHeaderBytes : 0);
}
// Writes the header at `to`, in front of a payload of so many bytes; its size.
uint32_t BuildIp(uint8_t* to, const IpOut& ip, uint32_t payload_bytes);

// Fragments of a datagram whose L4 header and data are `l4_bytes` long, over a link that takes
// packets of `mtu` bytes: call with off = 0, then with the offset behind the piece before. The
// caller has set ip.id; is_fragment, has_more and fragment_off are written. Bytes of the piece: all
// if they fit; 0 behind the end, or if it can't be done (mtu too small, more than 64 KiB).
uint32_t NextFragment(IpOut& ip, uint32_t l4_bytes, uint32_t mtu, uint32_t off);

}  // namespace postern::wire
