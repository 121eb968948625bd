// routes_parse.h - rtnetlink's messages as entries of a RouteModel.
// SPDX-License-Identifier: Apache-2.0
//
// Each takes one message whose length has been checked (mnl_nlmsg_ok) and believes nothing else of
// it. False: it is no such message, is broken, or doesn't concern us. What we don't know of a route
// or rule is marked in it (PSTN_RR_UNKNOWN and so on), so that look-ups that meet it are undecided.
#pragma once
#include <libmnl/libmnl.h>

#include "routes_model.h"

namespace postern::daemon {

bool ParseLink(const nlmsghdr* message, LinkEntry& out);
bool ParseAddr(const nlmsghdr* message, AddrEntry& out);
bool ParseLabel(const nlmsghdr* message, pstn_rt_label& out);
bool ParseNeigh(const nlmsghdr* message, NeighEntry& out);
// routes_parse_route.cc
bool ParseRoute(const nlmsghdr* message, RouteEntry& out);
bool ParseNexthop(const nlmsghdr* message, NexthopEntry& out);
// routes_parse_rule.cc
bool ParseRule(const nlmsghdr* message, RuleEntry& out);

// A message of any of these types goes where it belongs. False: as above.
bool TakeMessage(const nlmsghdr* message, RouteModel& model);

// ---- shared by the parsers
// Calls fn for each attribute that lies wholly inside. (libmnl's loops are C.)
template <typename Fn>
void EachAttr(const void* data, size_t bytes, Fn fn) {
  const auto* at = static_cast<const uint8_t*>(data);
  while (bytes >= sizeof(nlattr)) {
    const auto* attr = reinterpret_cast<const nlattr*>(at);
    const size_t size = attr->nla_len;
    if (size < sizeof(nlattr) || size > bytes) return;
    fn(attr);
    const size_t step = (size + 3) / 4 * 4;
    if (step >= bytes) return;
    at += step;
    bytes -= step;
  }
}
template <typename Fn>
void EachNested(const nlattr* attr, Fn fn) {
  EachAttr(mnl_attr_get_payload(attr), mnl_attr_get_payload_len(attr), fn);
}
// Of a message behind its header of `header_bytes`, which HeaderOf() has seen to be there.
template <typename Fn>
void EachAttrOf(const nlmsghdr* message, size_t header_bytes, Fn fn) {
  const size_t at = (header_bytes + 3) / 4 * 4, bytes = mnl_nlmsg_get_payload_len(message);
  if (bytes <= at) return;
  EachAttr(static_cast<const uint8_t*>(mnl_nlmsg_get_payload(message)) + at, bytes - at, fn);
}

template <typename T>
const T* HeaderOf(const nlmsghdr* message) {
  if (mnl_nlmsg_get_payload_len(message) < sizeof(T)) return nullptr;
  return static_cast<const T*>(mnl_nlmsg_get_payload(message));
}
// 0 if it is too short.
uint32_t U32(const nlattr* attr);
uint16_t U16(const nlattr* attr);
uint8_t U8(const nlattr* attr);
std::string TextOf(const nlattr* attr);
// 4 or 16 bytes as an address of 16. False: another length.
bool TakeIp(const nlattr* attr, uint8_t out[16]);
inline uint32_t Bits(uint8_t family, uint32_t plen) { return family == 4 ? 96 + plen : plen; }
// 4 or 6 of AF_INET or AF_INET6; 0 of others.
uint8_t FamilyOf(unsigned char af);

}  // namespace postern::daemon
