// ipv6.cc - parsing IPv6 headers and what stands between them and the upper layer; building.
// SPDX-License-Identifier: Apache-2.0
#include "wire/ip/ipv6.h"

namespace postern::wire {
namespace {

constexpr uint8_t kOptionPad1 = 0, kOptionJumbo = 0xc2;

// Of a hop-by-hop or destination header, behind its first two bytes.
Refusal CheckIpv6Options(const uint8_t* at, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes;) {
    if (at[i] == kOptionPad1) {
      i++;
      continue;
    }
    if (bytes - i < 2 || at[i + 1] > bytes - i - 2) return Refusal::kExtension;
    if (at[i] == kOptionJumbo) return Refusal::kJumbogram;
    //= rfc8200#4.2
    //# 00 - skip over this option and continue processing the header
    // All other values of the two bits discard the packet. (Whether an ICMP message is due is not
    // asked: none is sent.)
    if (at[i] >> 6 != 0) return Refusal::kExtension;
    i += 2u + at[i + 1];
  }
  return Refusal::kNone;
}

// A walk along the chain of next-header fields.
struct Chain {
  const uint8_t* frame;
  uint32_t first_off;  // behind the IPv6 header
  uint32_t off, end;
  uint8_t next;
};

Refusal PassFragment(Chain& chain, IpHead& out) {
  if (chain.end - chain.off < sizeof(Ipv6Fragment)) return Refusal::kExtension;
  if (out.is_fragment != 0) return Refusal::kExtension;
  const auto& f = *reinterpret_cast<const Ipv6Fragment*>(chain.frame + chain.off);
  const uint32_t before = chain.off - chain.first_off;
  chain.off += static_cast<uint32_t>(sizeof f);
  chain.next = f.next;
  const uint16_t off_more = f.off_more.get();
  out.fragment_id = f.id.get();
  if ((off_more & 0xfff9) == 0) return Refusal::kNone;
  out.is_fragment = 1;
  out.has_more = off_more & 1;
  out.fragment_off = off_more & 0xfff8u;
  out.data_off = chain.off;
  out.data_bytes = chain.end - chain.off;
  //= rfc8200#4.5
  //# If the length of a fragment, as derived from the fragment packet's Payload Length field, is
  // not # a multiple of 8 octets and the M flag of that fragment is 1, then that fragment must be #
  // discarded
  const bool is_cut = out.has_more != 0 && out.data_bytes % 8 != 0;
  //# If the length and offset of a fragment are such that the Payload Length of the packet
  //# reassembled from that fragment would exceed 65,535 octets, then that fragment must be
  // discarded
  const bool is_beyond = before + out.fragment_off + out.data_bytes > kIpBytesMax;
  return out.data_bytes == 0 || is_cut || is_beyond ? Refusal::kFragment : Refusal::kNone;
}

Refusal PassExtension(Chain& chain) {
  if (chain.end - chain.off < 8) return Refusal::kExtension;
  const auto& e = *reinterpret_cast<const Ipv6Extension*>(chain.frame + chain.off);
  const uint32_t bytes = 8 + 8u * e.words;
  if (bytes > chain.end - chain.off) return Refusal::kExtension;
  if (chain.next == kNextRouting) {
    // Type 0 even with nothing left (RFC 5095 would ignore it then): no sender means well with it.
    if (e.routing_type == 0 || e.segments_left != 0) return Refusal::kSourceRoute;
  } else {
    //= rfc8200#4.1
    //# the Hop-by-Hop Options header, which is restricted to appear immediately after an IPv6
    // header # only
    if (chain.next == kNextHopByHop && chain.off != chain.first_off) return Refusal::kExtension;
    const Refusal bad = CheckIpv6Options(chain.frame + chain.off + 2, bytes - 2);
    if (bad != Refusal::kNone) return bad;
  }
  chain.next = e.next;
  chain.off += bytes;
  return Refusal::kNone;
}

bool IsFollowed(uint8_t next) {
  return next == kNextHopByHop || next == kNextRouting || next == kNextFragment ||
         next == kNextDestination;
}

Refusal Walk(Chain& chain, IpHead& out) {
  for (uint32_t count = 0; IsFollowed(chain.next); count++) {
    if (count == kIpv6ExtensionsMax) return Refusal::kExtensionCount;
    const Refusal bad =
        chain.next == kNextFragment ? PassFragment(chain, out) : PassExtension(chain);
    if (bad != Refusal::kNone) {
      //= rfc8200#4.5
      //# If the first fragment does not include all headers through an Upper-Layer header, then
      //# that fragment should be discarded
      const bool is_cut = bad == Refusal::kExtension && out.is_fragment != 0;
      return is_cut ? Refusal::kTinyFragment : bad;
    }
    if (out.fragment_off != 0) break;  // what follows is from the middle
  }
  return Refusal::kNone;
}

bool IsMulticast(const uint8_t* ip) { return ip[0] == 0xff; }

// ::/127 (unspecified, loopback).
bool IsUnspecifiedOrLoopback(const uint8_t* ip) {
  return reinterpret_cast<const Be64*>(ip)->get() == 0 &&
         reinterpret_cast<const Be64*>(ip + 8)->get() <= 1;
}

bool IsMartian(const Ipv6Header& h) {
  if (IsMulticast(h.source) || IsUnspecifiedOrLoopback(h.source)) return true;
  if (IsUnspecifiedOrLoopback(h.destination)) return true;
  if (IpAt(h.source).IsV4() || IpAt(h.destination).IsV4()) return true;
  // Groups of scope 0 (reserved) and 1 (of the interface itself): RFC 4291, 2.7.
  return IsMulticast(h.destination) && (h.destination[1] & 15) <= 1;
}

}  // namespace

Refusal ParseIpv6(const uint8_t* frame, uint32_t ip_off, uint32_t end, IpHead& out) {
  out = IpHead{};
  if (end < ip_off || end - ip_off < kIpv6HeaderBytes) return Refusal::kIpShort;
  const auto& h = *reinterpret_cast<const Ipv6Header*>(frame + ip_off);
  const uint32_t word = h.version_class_flow.get();
  if (word >> 28 != 6) return Refusal::kIpVersion;
  const uint32_t payload_bytes = h.payload_bytes.get();
  if (payload_bytes > end - ip_off - kIpv6HeaderBytes) return Refusal::kIpLength;
  if (payload_bytes == 0 && h.next == kNextHopByHop) return Refusal::kJumbogram;
  if (IsMartian(h)) return Refusal::kMartian;

  memcpy(out.source.bytes, h.source, sizeof h.source);
  memcpy(out.destination.bytes, h.destination, sizeof h.destination);
  out.family = Family::kIpv6;
  out.tos = static_cast<uint8_t>(word >> 20);
  out.ttl = h.hop_limit;
  out.is_multicast = IsMulticast(h.destination) ? 1 : 0;
  out.dont_fragment = 1;
  out.ip_off = ip_off;
  out.ip_bytes = kIpv6HeaderBytes + payload_bytes;

  const uint32_t first_off = ip_off + kIpv6HeaderBytes;
  Chain chain{frame, first_off, first_off, first_off + payload_bytes, h.next};
  if (IsFollowed(h.next)) [[unlikely]] {
    const Refusal bad = Walk(chain, out);
    if (bad != Refusal::kNone) return bad;
  }
  out.protocol = chain.next;
  out.l4_off = chain.off;
  out.l4_bytes = chain.end - chain.off;
  if (out.is_fragment == 0) {
    out.data_off = out.l4_off;
    out.data_bytes = out.l4_bytes;
  }
  return Refusal::kNone;
}

uint32_t BuildIpv6(uint8_t* to, const IpOut& ip, uint32_t payload_bytes) {
  const uint32_t header_bytes = IpHeaderBytes(ip);
  auto& h = *reinterpret_cast<Ipv6Header*>(to);
  h.version_class_flow.set(6u << 28 | static_cast<uint32_t>(ip.tos) << 20 |
                           (ip.flow_label & 0xfffff));
  h.payload_bytes.set(static_cast<uint16_t>(header_bytes - kIpv6HeaderBytes + payload_bytes));
  h.next = ip.is_fragment ? kNextFragment : ip.protocol;
  h.hop_limit = ip.ttl;
  memcpy(h.source, ip.source.bytes, sizeof h.source);
  memcpy(h.destination, ip.destination.bytes, sizeof h.destination);
  if (ip.is_fragment) {
    auto& f = *reinterpret_cast<Ipv6Fragment*>(to + kIpv6HeaderBytes);
    f.next = ip.protocol;
    f.reserved = 0;
    f.off_more.set(static_cast<uint16_t>((ip.fragment_off & 0xfff8) | (ip.has_more ? 1 : 0)));
    f.id.set(ip.id);
  }
  return header_bytes;
}

}  // namespace postern::wire
