// ip.cc - what both versions of IP share: building, fragments to be sent, names of refusals.
// SPDX-License-Identifier: Apache-2.0
#include "wire/ip/ip.h"

#include "wire/ip/ipv4.h"
#include "wire/ip/ipv6.h"

namespace postern::wire {
namespace {

struct Row {
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#define PSTN_REFUSAL(name, short_name, text) {short_name, text},
#include "wire/ip/refusals.def"
#undef PSTN_REFUSAL
};
static_assert(sizeof kRows / sizeof kRows[0] == static_cast<size_t>(Refusal::kEnd));

}  // namespace

const char* RefusalName(Refusal refusal) {
  return refusal < Refusal::kEnd ? kRows[static_cast<size_t>(refusal)].name : "unknown";
}
const char* RefusalText(Refusal refusal) {
  return refusal < Refusal::kEnd ? kRows[static_cast<size_t>(refusal)].text : "Not known here.";
}

uint32_t BuildIp(uint8_t* to, const IpOut& ip, uint32_t payload_bytes) {
  return ip.family == Family::kIpv4 ? BuildIpv4(to, ip, payload_bytes)
                                    : BuildIpv6(to, ip, payload_bytes);
}

uint32_t NextFragment(IpOut& ip, uint32_t l4_bytes, uint32_t mtu, uint32_t off) {
  if (off >= l4_bytes) return 0;
  ip.is_fragment = false;
  const uint32_t whole_bytes = IpHeaderBytes(ip) + l4_bytes;
  ip.fragment_off = 0;
  ip.has_more = false;
  // The length field of IPv6 does not count its own header.
  if (whole_bytes - (ip.family == Family::kIpv6 ? kIpv6HeaderBytes : 0) > kIpBytesMax) return 0;
  if (off == 0 && whole_bytes <= mtu) return l4_bytes;
  if (ip.family == Family::kIpv4 && ip.dont_fragment) return 0;

  ip.is_fragment = true;
  const uint32_t header_bytes = IpHeaderBytes(ip);
  if (mtu < header_bytes + 8) return 0;
  const uint32_t room = mtu - header_bytes, left = l4_bytes - off;
  ip.fragment_off = off;
  ip.has_more = left > room;
  return ip.has_more ? room & ~7u : left;
}

}  // namespace postern::wire
