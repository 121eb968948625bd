// ipv4.cc - parsing and building IPv4 headers.
// SPDX-License-Identifier: Apache-2.0
#include "wire/ip/ipv4.h"

namespace postern::wire {
namespace {

// RFC 791, 3.1; the numbers with their "copied" bit.
constexpr uint8_t kIpOptionEnd = 0, kIpOptionNop = 1, kIpOptionLooseRoute = 131,
                  kIpOptionStrictRoute = 137;

Refusal CheckIpv4Options(const uint8_t* at, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes && at[i] != kIpOptionEnd;) {
    if (at[i] == kIpOptionNop) {
      i++;
      continue;
    }
    if (bytes - i < 2 || at[i + 1] < 2 || at[i + 1] > bytes - i) return Refusal::kIpOptions;
    if (at[i] == kIpOptionLooseRoute || at[i] == kIpOptionStrictRoute) return Refusal::kSourceRoute;
    i += at[i + 1];
  }
  return Refusal::kNone;
}

// Without a call for the twenty bytes that nearly all of them have.
bool IsHeaderGood(const uint8_t* at, uint32_t bytes) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < kIpv4HeaderBytes; i += 4) {
    uint32_t word;
    memcpy(&word, at + i, sizeof word);
    sum += word;
  }
  uint32_t folded = AddSums(static_cast<uint32_t>(sum), static_cast<uint32_t>(sum >> 32));
  if (bytes != kIpv4HeaderBytes)
    folded = Sum(at + kIpv4HeaderBytes, bytes - kIpv4HeaderBytes, folded);
  return IsChecksumGood(folded);
}

bool IsAll(const uint8_t* ip, uint8_t byte) {
  return ip[0] == byte && ip[1] == byte && ip[2] == byte && ip[3] == byte;
}
bool IsGroup(const uint8_t* ip) { return (ip[0] & 0xf0) == 0xe0; }

//= rfc1122#3.2.1.3
//# A host MUST silently discard an incoming datagram containing an IP source address that is
// invalid
bool IsMartian(const Ipv4Header& h) {
  return h.source[0] == 127 || h.destination[0] == 127 || IsAll(h.source, 0) ||
         IsAll(h.destination, 0) || IsAll(h.source, 0xff) || IsGroup(h.source);
}

// The limits that hold for each fragment by itself.
Refusal ParseFragment(uint16_t field, uint32_t header_bytes, IpHead& out) {
  out.is_fragment = 1;
  out.has_more = (field & kIpv4More) != 0 ? 1 : 0;
  out.fragment_off = static_cast<uint32_t>(field & kIpv4OffMask) * 8;
  const bool is_cut = out.has_more != 0 && out.data_bytes % 8 != 0;
  const bool is_beyond = out.fragment_off + out.data_bytes > kIpBytesMax - header_bytes;
  return out.data_bytes == 0 || is_cut || is_beyond ? Refusal::kFragment : Refusal::kNone;
}

}  // namespace

Refusal ParseIpv4(const uint8_t* frame, uint32_t ip_off, uint32_t end, uint32_t rx, IpHead& out) {
  out = IpHead{};
  if (end < ip_off || end - ip_off < kIpv4HeaderBytes) return Refusal::kIpShort;
  const uint8_t* at = frame + ip_off;
  const auto& h = *reinterpret_cast<const Ipv4Header*>(at);
  if (h.version_words >> 4 != 4) return Refusal::kIpVersion;
  const uint32_t header_bytes = (h.version_words & 15u) * 4, total_bytes = h.total_bytes.get();
  if (header_bytes < kIpv4HeaderBytes || header_bytes > total_bytes || total_bytes > end - ip_off)
    return Refusal::kIpLength;
  if ((rx & kRxIpVerified) == 0 && !IsHeaderGood(at, header_bytes)) return Refusal::kIpChecksum;
  if (IsMartian(h)) return Refusal::kMartian;

  out.source = Ipv4At(h.source);
  out.destination = Ipv4At(h.destination);
  out.family = Family::kIpv4;
  out.protocol = h.protocol;
  out.tos = h.tos;
  out.ttl = h.ttl;
  out.is_multicast = IsGroup(h.destination) || IsAll(h.destination, 0xff) ? 1 : 0;
  const uint16_t fragment = h.fragment.get();
  out.dont_fragment = (fragment & kIpv4DontFragment) != 0 ? 1 : 0;
  out.fragment_id = h.id.get();
  out.ip_off = ip_off;
  out.ip_bytes = total_bytes;
  out.l4_off = out.data_off = ip_off + header_bytes;
  out.l4_bytes = out.data_bytes = total_bytes - header_bytes;
  if (header_bytes != kIpv4HeaderBytes) [[unlikely]] {
    const Refusal bad = CheckIpv4Options(at + kIpv4HeaderBytes, header_bytes - kIpv4HeaderBytes);
    if (bad != Refusal::kNone) return bad;
  }
  if ((fragment & (kIpv4More | kIpv4OffMask)) != 0) [[unlikely]]
    return ParseFragment(fragment, header_bytes, out);
  return Refusal::kNone;
}

uint32_t BuildIpv4(uint8_t* to, const IpOut& ip, uint32_t payload_bytes) {
  auto& h = *reinterpret_cast<Ipv4Header*>(to);
  h.version_words = 4 << 4 | kIpv4HeaderBytes / 4;
  h.tos = ip.tos;
  h.total_bytes.set(static_cast<uint16_t>(kIpv4HeaderBytes + payload_bytes));
  h.id.set(static_cast<uint16_t>(ip.id));
  h.fragment.set(static_cast<uint16_t>((ip.dont_fragment ? kIpv4DontFragment : 0) |
                                       (ip.has_more ? kIpv4More : 0) | ip.fragment_off / 8));
  h.ttl = ip.ttl;
  h.protocol = ip.protocol;
  h.checksum.set(0);
  memcpy(h.source, ip.source.v4(), sizeof h.source);
  memcpy(h.destination, ip.destination.v4(), sizeof h.destination);
  h.checksum.set(ChecksumOf(Sum(to, kIpv4HeaderBytes, 0)));
  return kIpv4HeaderBytes;
}

}  // namespace postern::wire
