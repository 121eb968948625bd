// packet.cc - one pass over a received frame.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/packet.h"

#include <cstring>

#include "wire/ip/ipv4.h"
#include "wire/ip/ipv6.h"
#include "wire/packet/tcp_header.h"
#include "wire/packet/udp_header.h"

namespace postern::wire {
namespace {

constexpr uint32_t kIcmpHeaderBytes = 8;

void SetPayload(Packet& out, uint32_t header_bytes, uint32_t bytes) {
  out.payload_off = out.ip.l4_off + header_bytes;
  out.payload_bytes = bytes - header_bytes;
}

Refusal ParseTcpLengths(const uint8_t* l4, uint32_t here, Packet& out) {
  if (here < kTcpHeaderBytes) return Refusal::kL4Short;
  const auto& h = *reinterpret_cast<const TcpHeader*>(l4);
  const uint32_t header_bytes = (h.data_off >> 4) * 4u;
  if (header_bytes < kTcpHeaderBytes || header_bytes > out.ip.l4_bytes) return Refusal::kL4Length;
  if (header_bytes > here) return Refusal::kL4Short;
  out.source_port = h.source_port.get();
  out.destination_port = h.destination_port.get();
  SetPayload(out, header_bytes, out.ip.l4_bytes);
  return Refusal::kNone;
}

Refusal ParseUdpLengths(const uint8_t* l4, uint32_t here, Packet& out) {
  if (here < kUdpHeaderBytes) return Refusal::kL4Short;
  const auto& h = *reinterpret_cast<const UdpHeader*>(l4);
  const uint32_t bytes = h.bytes.get();
  if (bytes < kUdpHeaderBytes || bytes > out.ip.l4_bytes) return Refusal::kL4Length;
  out.source_port = h.source_port.get();
  out.destination_port = h.destination_port.get();
  SetPayload(out, kUdpHeaderBytes, bytes);
  if (h.checksum.get() != 0) return Refusal::kNone;
  //= rfc8200#8.1
  //# IPv6 receivers must discard UDP packets containing a zero checksum
  if (out.ip.family == Family::kIpv6) return Refusal::kL4Checksum;
  out.l4_state = L4State::kNoChecksum;
  return Refusal::kNone;
}

// The first piece of a datagram whose length is not known yet: only its ports are of use, and that
// its header is whole (RFC 1858, 3; RFC 7112, 5).
Refusal ParseFirstFragment(const uint8_t* frame, Packet& out) {
  const uint32_t here = out.ip.l4_bytes;
  out.ip.l4_bytes = kIpBytesMax;
  const Refusal bad = ParseL4(frame + out.ip.l4_off, here, out);
  out.ip.l4_bytes = here;
  out.l4_state = L4State::kUnknown;
  if (bad == Refusal::kL4Short) return Refusal::kTinyFragment;
  if (bad != Refusal::kNone) return bad;
  const uint32_t header_bytes = out.payload_off - out.ip.l4_off;
  out.payload_bytes = here - header_bytes;
  return Refusal::kNone;
}

}  // namespace

bool HasChecksum(const Packet& packet) {
  return packet.ip.protocol == kProtocolTcp || packet.ip.protocol == kProtocolUdp ||
         IsIcmp(packet.ip);
}

Refusal ParseL4(const uint8_t* l4, uint32_t here, Packet& out) {
  out.l4_state = L4State::kUnknown;
  out.source_port = out.destination_port = 0;
  if (out.ip.protocol == kProtocolTcp) [[likely]]
    return ParseTcpLengths(l4, here, out);
  if (out.ip.protocol == kProtocolUdp) return ParseUdpLengths(l4, here, out);
  if (!IsIcmp(out.ip)) {
    SetPayload(out, 0, out.ip.l4_bytes);
    return Refusal::kNone;
  }
  if (here < kIcmpHeaderBytes) return Refusal::kL4Short;
  SetPayload(out, kIcmpHeaderBytes, out.ip.l4_bytes);
  return Refusal::kNone;
}

Refusal VerifyL4(uint32_t sum, Packet& out) {
  // ICMP of IPv4 has no pseudo header (RFC 792), that of IPv6 has (RFC 4443, 2.3).
  if (out.ip.protocol != kProtocolIcmp)
    sum = AddSums(sum, PseudoSum(out.ip.family, out.ip.source, out.ip.destination, out.ip.protocol,
                                 CoveredBytes(out)));
  if (!IsChecksumGood(sum)) return Refusal::kL4Checksum;
  out.l4_state = L4State::kVerified;
  return Refusal::kNone;
}

bool IsPartial(const uint8_t* frame, const Packet& p) {
  const bool tcp = p.ip.protocol == kProtocolTcp;
  if (!tcp && p.ip.protocol != kProtocolUdp) return false;
  const uint32_t at = p.ip.l4_off + (tcp ? 16 : 6);  // both headers are known to be there
  uint16_t field;
  memcpy(&field, frame + at, sizeof field);
  return field == FoldSum(PseudoSum(p.ip.family, p.ip.source, p.ip.destination, p.ip.protocol,
                                    CoveredBytes(p)));
}

Refusal ParseIpFrame(const uint8_t* frame, uint32_t ip_off, uint32_t bytes, uint32_t rx,
                     Packet& out) {
  out.l4_state = L4State::kUnknown;
  out.source_port = out.destination_port = 0;
  out.payload_off = out.payload_bytes = 0;
  Refusal bad = Refusal::kEtherType;
  if (out.link.type == kEtherIpv4) [[likely]] {
    bad = ParseIpv4(frame, ip_off, bytes, rx, out.ip);
  } else if (out.link.type == kEtherIpv6) {
    bad = ParseIpv6(frame, ip_off, bytes, out.ip);
  } else {
    out.ip = IpHead{};
  }
  if (bad != Refusal::kNone) return bad;
  if (out.ip.is_fragment != 0) [[unlikely]] {
    if (out.ip.fragment_off == 0) return ParseFirstFragment(frame, out);
    out.payload_off = out.ip.l4_off;
    out.payload_bytes = out.ip.l4_bytes;
    return Refusal::kNone;
  }
  const uint8_t* l4 = frame + out.ip.l4_off;
  bad = ParseL4(l4, out.ip.l4_bytes, out);
  if (bad != Refusal::kNone) return bad;
  //= rfc9293#3.9.2.3
  //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a
  //# broadcast or multicast address
  // And all others: no connection has such an address.
  if (out.ip.protocol == kProtocolTcp && (out.link.is_multicast | out.ip.is_multicast) != 0)
    return Refusal::kMartian;
  if (out.l4_state == L4State::kNoChecksum || !HasChecksum(out)) return Refusal::kNone;
  if ((rx & kRxL4Verified) != 0 && !IsIcmp(out.ip)) {
    out.l4_state = L4State::kVerified;
    return Refusal::kNone;
  }
  bad = VerifyL4(Sum(l4, CoveredBytes(out), 0), out);
  if (bad != Refusal::kNone && (rx & kRxMayBePartial) != 0 && IsPartial(frame, out)) {
    out.l4_state = L4State::kVerified;
    return Refusal::kNone;
  }
  return bad;
}

Refusal ParseFrame(const uint8_t* frame, uint32_t bytes, uint32_t rx, Packet& out) {
  out.link = LinkHead{};
  const Refusal bad = ParseEthernet(frame, bytes, out.link);
  if (bad != Refusal::kNone) [[unlikely]] {
    const LinkHead link = out.link;
    out = Packet{};
    out.link = link;
    return bad;
  }
  return ParseIpFrame(frame, out.link.bytes, bytes, rx, out);
}

namespace {

// Nothing is read behind `here`: the longest headers of IPv4 and TCP are within, and extension
// headers of IPv6, which may be longer, are refused.
Refusal ParseLargeIp(const uint8_t* frame, uint32_t here, uint32_t bytes, uint32_t rx,
                     Packet& out) {
  constexpr uint32_t kIpv4HeaderBytesMax = 60, kIpv6NextOff = 6;
  const uint32_t ip_off = out.link.bytes;
  if (here < bytes && here < ip_off + kIpv4HeaderBytesMax + kTcpHeaderBytesMax)
    return Refusal::kLarge;
  if (out.link.type == kEtherIpv4) return ParseIpv4(frame, ip_off, bytes, rx, out.ip);
  if (out.link.type != kEtherIpv6) return Refusal::kEtherType;
  if (here < ip_off + kIpv6HeaderBytes) return Refusal::kIpShort;
  if (frame[ip_off + kIpv6NextOff] != kProtocolTcp) return Refusal::kLarge;
  return ParseIpv6(frame, ip_off, bytes, out.ip);
}

}  // namespace

Refusal ParseLargeFrame(const uint8_t* frame, uint32_t here, uint32_t bytes, uint32_t rx,
                        Packet& out) {
  out = Packet{};
  Refusal bad = ParseEthernet(frame, here, out.link);
  if (bad == Refusal::kNone) bad = ParseLargeIp(frame, here, bytes, rx, out);
  if (bad != Refusal::kNone) return bad;
  if (out.ip.is_fragment != 0 || out.ip.protocol != kProtocolTcp) return Refusal::kLarge;
  if ((out.link.is_multicast | out.ip.is_multicast) != 0) return Refusal::kMartian;
  if (here <= out.ip.l4_off) return Refusal::kL4Short;
  bad = ParseL4(frame + out.ip.l4_off, here - out.ip.l4_off, out);
  if (bad == Refusal::kNone && (rx & kRxL4Verified) != 0) out.l4_state = L4State::kVerified;
  return bad;
}

}  // namespace postern::wire
