// icmp.cc - reading ICMP errors, and the two answers that are sent.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/icmp.h"

#include <cerrno>

#include "wire/ip/ipv4.h"
#include "wire/ip/ipv6.h"

namespace postern::wire {
namespace {

constexpr uint8_t kEchoReply4 = 0, kUnreachable4 = 3, kEchoRequest4 = 8, kTimeExceeded4 = 11,
                  kParameterProblem4 = 12;
constexpr uint8_t kCodePort4 = 3, kCodeTooBig4 = 4;
constexpr uint8_t kUnreachable6 = 1, kTooBig6 = 2, kTimeExceeded6 = 3, kParameterProblem6 = 4,
                  kEchoRequest6 = 128, kEchoReply6 = 129;
constexpr uint8_t kCodePort6 = 4;
constexpr uint32_t kIpv4MtuMin = 68;
// RFC 1812, 4.3.2.3; RFC 4443, 2.4 (c).
constexpr uint32_t kErrorPacketMax4 = 576, kErrorPacketMax6 = kIpv6MtuMin;
constexpr uint32_t kQuotedL4Bytes = 8;  // RFC 792: that much is always there

struct Meaning {
  int16_t error;
  uint8_t is_hard;
};
// Destination unreachable by code: RFC 792, 1122 (3.2.2.1), 1812 (5.2.7.1), with the errno that
// Linux gives.
constexpr Meaning kUnreachableMeanings4[] = {
    {ENETUNREACH, 0},  {EHOSTUNREACH, 0}, {ENOPROTOOPT, 1},  {ECONNREFUSED, 1},
    {EMSGSIZE, 0},     {EOPNOTSUPP, 0},   {ENETUNREACH, 1},  {EHOSTDOWN, 1},
    {ENONET, 1},       {ENETUNREACH, 1},  {EHOSTUNREACH, 1}, {ENETUNREACH, 0},
    {EHOSTUNREACH, 0}, {EHOSTUNREACH, 1}, {EHOSTUNREACH, 1}, {EHOSTUNREACH, 1},
};
// RFC 4443, 3.1.
constexpr Meaning kUnreachableMeanings6[] = {
    {ENETUNREACH, 0},  {EACCES, 1}, {EHOSTUNREACH, 0}, {EHOSTUNREACH, 0},
    {ECONNREFUSED, 1}, {EACCES, 1}, {EACCES, 1},
};

// ---------------------------------------------------------------- the quoted packet

bool ReadQuotedL4(const uint8_t* at, uint32_t bytes, IcmpQuote& out) {
  if (out.protocol != kProtocolTcp && out.protocol != kProtocolUdp) return true;
  if (bytes < kQuotedL4Bytes) return false;
  out.source_port = LoadBe16(at);
  out.destination_port = LoadBe16(at + 2);
  if (out.protocol == kProtocolTcp) {
    out.has_seq = 1;
    out.seq = LoadBe32(at + 4);
  }
  return true;
}

// Its checksum is not looked at: routers change the header before they quote it.
bool ReadQuote4(const uint8_t* at, uint32_t bytes, IcmpQuote& out) {
  if (bytes < kIpv4HeaderBytes) return false;
  const auto& h = *reinterpret_cast<const Ipv4Header*>(at);
  const uint32_t header_bytes = (h.version_words & 15u) * 4;
  if (h.version_words >> 4 != 4 || header_bytes < kIpv4HeaderBytes || header_bytes > bytes)
    return false;
  if ((h.fragment.get() & kIpv4OffMask) != 0) return false;  // its ports are in another one
  out.source = Ipv4At(h.source);
  out.destination = Ipv4At(h.destination);
  out.protocol = h.protocol;
  out.packet_bytes = h.total_bytes.get();
  return ReadQuotedL4(at + header_bytes, bytes - header_bytes, out);
}

bool ReadQuote6(const uint8_t* at, uint32_t bytes, IcmpQuote& out) {
  if (bytes < kIpv6HeaderBytes) return false;
  const auto& h = *reinterpret_cast<const Ipv6Header*>(at);
  if (h.version_class_flow.get() >> 28 != 6) return false;
  memcpy(out.source.bytes, h.source, sizeof h.source);
  memcpy(out.destination.bytes, h.destination, sizeof h.destination);
  out.packet_bytes = kIpv6HeaderBytes + h.payload_bytes.get();
  uint8_t next = h.next;
  uint32_t off = kIpv6HeaderBytes;
  for (uint32_t count = 0; count < kIpv6ExtensionsMax; count++) {
    if (next != kNextHopByHop && next != kNextRouting && next != kNextDestination &&
        next != kNextFragment)
      break;
    if (bytes - off < sizeof(Ipv6Fragment)) return false;
    const auto& e = *reinterpret_cast<const Ipv6Extension*>(at + off);
    uint32_t header_bytes = 8 + 8u * e.words;
    if (next == kNextFragment) {
      const auto& f = *reinterpret_cast<const Ipv6Fragment*>(at + off);
      if ((f.off_more.get() & 0xfff8) != 0) return false;
      header_bytes = sizeof f;
    }
    if (header_bytes > bytes - off) return false;
    next = e.next;
    off += header_bytes;
  }
  out.protocol = next;
  return ReadQuotedL4(at + off, bytes - off, out);
}

// ---------------------------------------------------------------- what it means

void SetError(IcmpIn& out, const Meaning& meaning) {
  out.kind = IcmpKind::kError;
  out.error = meaning.error;
  out.is_hard = meaning.is_hard;
}

//= rfc1191#7.1
// The next of that section's plateaus below the packet that was too big, for routers that do not
// tell their MTU.
uint32_t PlateauBelow(uint32_t packet_bytes) {
  constexpr uint32_t kPlateaus[] = {32000, 17914, 8166, 4352, 2002, 1492, 1006, 508, 296};
  for (uint32_t plateau : kPlateaus) {
    if (plateau < packet_bytes) return plateau;
  }
  return kIpv4MtuMin;
}

void SetTooBig(IcmpIn& out, uint32_t mtu, uint32_t mtu_min) {
  //= rfc8201#4
  //# If a node receives a Packet Too Big message reporting a next-hop MTU that is less than the
  // IPv6 # minimum link MTU, it must discard it.
  if (mtu < mtu_min) return;
  SetError(out, {EMSGSIZE, 0});
  out.mtu = mtu;
}

void Judge4(const IcmpHeader& h, IcmpIn& out) {
  constexpr size_t kCodes = sizeof kUnreachableMeanings4 / sizeof kUnreachableMeanings4[0];
  switch (h.type) {
    case kUnreachable4:
      if (h.code == kCodeTooBig4) {
        const uint32_t mtu = LoadBe16(h.rest + 2);
        SetTooBig(out, mtu != 0 ? mtu : PlateauBelow(out.quote.packet_bytes), kIpv4MtuMin);
      } else if (h.code < kCodes) {
        SetError(out, kUnreachableMeanings4[h.code]);
      }
      break;
    case kTimeExceeded4:
      SetError(out, {EHOSTUNREACH, 0});
      break;
    case kParameterProblem4:
      SetError(out, {EPROTO, 1});
      break;
    default:
      break;
  }
}

void Judge6(const IcmpHeader& h, IcmpIn& out) {
  constexpr size_t kCodes = sizeof kUnreachableMeanings6 / sizeof kUnreachableMeanings6[0];
  switch (h.type) {
    case kUnreachable6:
      if (h.code < kCodes) SetError(out, kUnreachableMeanings6[h.code]);
      break;
    case kTooBig6:
      SetTooBig(out, LoadBe32(h.rest), kIpv6MtuMin);
      break;
    case kTimeExceeded6:
      SetError(out, {EHOSTUNREACH, 0});
      break;
    case kParameterProblem6:
      SetError(out, {EPROTO, 1});
      break;
    default:
      break;
  }
}

bool IsError(Family family, uint8_t type) {
  if (family == Family::kIpv6) return type < 128;  // RFC 4443, 2.1
  return type == kUnreachable4 || type == kTimeExceeded4 || type == kParameterProblem4;
}

void Complete(uint8_t* message, uint32_t bytes, const Packet& packet) {
  // The answer's addresses are the packet's, exchanged: their sum is the same.
  const uint32_t pseudo =
      packet.ip.family == Family::kIpv4
          ? 0
          : PseudoSum6(packet.ip.source.bytes, packet.ip.destination.bytes, kProtocolIcmpv6, bytes);
  reinterpret_cast<IcmpHeader*>(message)->checksum.set(ChecksumOf(Sum(message, bytes, pseudo)));
}

}  // namespace

IcmpIn ParseIcmp(const uint8_t* frame, const Packet& packet) {
  IcmpIn out{};
  if (!IsIcmp(packet.ip) || packet.l4_state != L4State::kVerified) return out;
  const auto& h = *reinterpret_cast<const IcmpHeader*>(frame + packet.ip.l4_off);
  const bool is4 = packet.ip.family == Family::kIpv4;
  if (h.type == (is4 ? kEchoRequest4 : kEchoRequest6)) {
    out.kind = IcmpKind::kEchoRequest;
  } else if (h.type == (is4 ? kEchoReply4 : kEchoReply6)) {
    out.kind = IcmpKind::kEchoReply;
  }
  if (!IsError(packet.ip.family, h.type)) return out;

  const uint8_t* quoted = frame + packet.payload_off;
  const bool is_read = is4 ? ReadQuote4(quoted, packet.payload_bytes, out.quote)
                           : ReadQuote6(quoted, packet.payload_bytes, out.quote);
  // An error goes to the sender of the packet.
  if (!is_read || out.quote.source != packet.ip.destination) {
    out = IcmpIn{};
    out.kind = IcmpKind::kMalformed;
    return out;
  }
  if (is4) {
    Judge4(h, out);
  } else {
    Judge6(h, out);
  }
  return out;
}

IpOut ReplyIp(const Packet& packet) {
  IpOut ip;
  ip.source = packet.ip.destination;
  ip.destination = packet.ip.source;
  ip.family = packet.ip.family;
  ip.protocol = packet.ip.family == Family::kIpv4 ? kProtocolIcmp : kProtocolIcmpv6;
  return ip;
}

bool MayAnswerWithError(const Packet& packet) {
  // Sources that are no single host have been refused before.
  return packet.link.is_multicast == 0 && packet.ip.is_multicast == 0 &&
         packet.ip.fragment_off == 0 && packet.ip.protocol != kProtocolIcmp &&
         packet.ip.protocol != kProtocolIcmpv6;
}

uint32_t BuildPortUnreachable(uint8_t* to, uint32_t room, const uint8_t* frame,
                              const Packet& packet) {
  const bool is4 = packet.ip.family == Family::kIpv4;
  const uint32_t quote_max =
      (is4 ? kErrorPacketMax4 - kIpv4HeaderBytes : kErrorPacketMax6 - kIpv6HeaderBytes) -
      static_cast<uint32_t>(sizeof(IcmpHeader));
  const uint32_t quote_bytes = packet.ip.ip_bytes < quote_max ? packet.ip.ip_bytes : quote_max;
  const uint32_t bytes = static_cast<uint32_t>(sizeof(IcmpHeader)) + quote_bytes;
  if (bytes > room) return 0;
  auto& h = *reinterpret_cast<IcmpHeader*>(to);
  h = IcmpHeader{};
  h.type = is4 ? kUnreachable4 : kUnreachable6;
  h.code = is4 ? kCodePort4 : kCodePort6;
  memcpy(to + sizeof h, frame + packet.ip.ip_off, quote_bytes);
  Complete(to, bytes, packet);
  return bytes;
}

uint32_t BuildEchoReply(uint8_t* to, uint32_t room, const uint8_t* frame, const Packet& packet) {
  if (ParseIcmp(frame, packet).kind != IcmpKind::kEchoRequest) return 0;
  const uint32_t bytes = packet.ip.l4_bytes;
  if (bytes > room) return 0;
  memcpy(to, frame + packet.ip.l4_off, bytes);
  auto& h = *reinterpret_cast<IcmpHeader*>(to);
  h.type = packet.ip.family == Family::kIpv4 ? kEchoReply4 : kEchoReply6;
  h.checksum.set(0);
  Complete(to, bytes, packet);
  return bytes;
}

}  // namespace postern::wire
