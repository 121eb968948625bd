// routes_parse_route.cc - routes and nexthop objects.
// SPDX-License-Identifier: Apache-2.0
#include <linux/nexthop.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/ip_address.h"

#include "routes_parse.h"

namespace postern::daemon {
namespace {

constexpr int32_t kTickMs = 10, kTicksMax = 8640000;  // USER_HZ; a day

uint32_t HopFlags(uint32_t rtnh_flags) {
  return ((rtnh_flags & RTNH_F_DEAD) != 0 ? PSTN_RH_DEAD : 0u) |
         ((rtnh_flags & RTNH_F_LINKDOWN) != 0 ? PSTN_RH_LINKDOWN : 0u) |
         ((rtnh_flags & RTNH_F_UNRESOLVED) != 0 ? PSTN_RH_UNKNOWN : 0u);
}

void TakeGateway(const nlattr* attr, pstn_rt_hop& hop) {
  if (!TakeIp(attr, hop.gateway)) {
    hop.flags |= PSTN_RH_UNKNOWN;
    return;
  }
  hop.via = mnl_attr_get_payload_len(attr) == 4 ? 4 : 6;
}

// A gateway of the other family (RFC 5549): family, then the address.
void TakeVia(const nlattr* attr, pstn_rt_hop& hop) {
  const uint16_t bytes = mnl_attr_get_payload_len(attr);
  uint16_t family = 0;
  if (bytes < sizeof(family)) return;
  const auto* at = static_cast<const uint8_t*>(mnl_attr_get_payload(attr));
  memcpy(&family, at, sizeof(family));
  if (family == AF_INET6 && bytes == sizeof(family) + 16) {
    memcpy(hop.gateway, at + sizeof(family), 16);
    hop.via = 6;
  } else {
    hop.flags |= PSTN_RH_UNKNOWN;
  }
}

// What a next hop and a route with only one both have. False: not one of these.
bool TakeHopAttr(const nlattr* attr, pstn_rt_hop& hop) {
  switch (mnl_attr_get_type(attr)) {
    case RTA_GATEWAY:
      TakeGateway(attr, hop);
      return true;
    case RTA_VIA:
      TakeVia(attr, hop);
      return true;
    case RTA_ENCAP_TYPE:
    case RTA_ENCAP:
      hop.flags |= PSTN_RH_ENCAP;
      return true;
    case RTA_FLOW:
    case RTA_PAD:
      return true;
    default:
      return false;
  }
}

void TakeMultipath(const nlattr* list, RouteEntry& out) {
  const auto* at = static_cast<const uint8_t*>(mnl_attr_get_payload(list));
  size_t left = mnl_attr_get_payload_len(list);
  while (left >= sizeof(rtnexthop)) {
    rtnexthop head{};
    memcpy(&head, at, sizeof(head));
    const size_t bytes = head.rtnh_len;
    if (bytes < sizeof(head) || bytes > left || out.hops.size() >= kHopsMax) {
      out.route.flags |= PSTN_RR_UNKNOWN;
      return;
    }
    pstn_rt_hop hop{};
    hop.ifindex = head.rtnh_ifindex > 0 ? static_cast<uint32_t>(head.rtnh_ifindex) : 0;
    hop.flags = HopFlags(head.rtnh_flags);
    hop.weight = head.rtnh_hops + 1u;
    EachAttr(at + sizeof(head), bytes - sizeof(head), [&](const nlattr* attr) {
      if (!TakeHopAttr(attr, hop)) hop.flags |= PSTN_RH_UNKNOWN;
    });
    out.hops.push_back(hop);
    const size_t step = (bytes + 3) / 4 * 4;
    if (step >= left) return;
    at += step;
    left -= step;
  }
}

void TakeMetrics(const nlattr* list, RouteEntry& out) {
  constexpr size_t kValues = sizeof(out.metrics.value) / sizeof(out.metrics.value[0]);
  out.has_metrics = true;
  EachNested(list, [&](const nlattr* attr) {
    const uint16_t type = mnl_attr_get_type(attr);
    if (type == RTAX_CC_ALGO) {
      const std::string name = TextOf(attr);
      if (name.size() < sizeof(out.metrics.congestion))
        memcpy(out.metrics.congestion, name.data(), name.size());
    } else if (type < kValues) {
      out.metrics.value[type] = U32(attr);
    }
  });
}

// False: it is over already.
bool TakeExpiry(const nlattr* attr, RouteEntry& out) {
  rta_cacheinfo info{};
  if (mnl_attr_get_payload_len(attr) < sizeof(info)) return true;
  memcpy(&info, mnl_attr_get_payload(attr), sizeof(info));
  if (info.rta_expires < 0) return false;
  if (info.rta_expires > 0)
    out.expires_ms = static_cast<uint32_t>((std::min(info.rta_expires, kTicksMax) + 1) * kTickMs);
  return true;
}

// False: the route doesn't count any more.
bool TakeRouteAttr(const nlattr* attr, RouteEntry& out, pstn_rt_hop& only) {
  pstn_rt_route& r = out.route;
  switch (mnl_attr_get_type(attr)) {
    case RTA_DST:
      if (!TakeIp(attr, r.dst)) r.flags |= PSTN_RR_UNKNOWN;
      break;
    case RTA_SRC:
      out.by_source = true;
      break;
    case RTA_OIF:
      only.ifindex = U32(attr);
      break;
    case RTA_PRIORITY:
      r.metric = U32(attr);
      break;
    case RTA_PREFSRC:
      if (!TakeIp(attr, r.prefsrc)) r.flags |= PSTN_RR_UNKNOWN;
      break;
    case RTA_METRICS:
      TakeMetrics(attr, out);
      break;
    case RTA_MULTIPATH:
      TakeMultipath(attr, out);
      break;
    case RTA_TABLE:
      out.table_id = U32(attr);
      break;
    case RTA_PREF:
      r.pref = U8(attr) & 3u;
      break;
    case RTA_NH_ID:
      out.nh_id = U32(attr);
      break;
    case RTA_CACHEINFO:
      return TakeExpiry(attr, out);
    case RTA_EXPIRES:
      break;
    default:
      if (!TakeHopAttr(attr, only)) r.flags |= PSTN_RR_UNKNOWN;
      break;
  }
  return true;
}

}  // namespace

bool ParseRoute(const nlmsghdr* message, RouteEntry& out) {
  const auto* header = HeaderOf<rtmsg>(message);
  if (header == nullptr || (header->rtm_flags & RTM_F_CLONED) != 0) return false;
  const uint8_t family = FamilyOf(header->rtm_family);
  if (family == 0 || header->rtm_dst_len > (family == 4 ? 32 : 128)) return false;
  out = {};
  out.family = family;
  out.table_id = header->rtm_table;
  out.by_source = header->rtm_src_len != 0;
  pstn_rt_route& r = out.route;
  if (family == 4) memcpy(r.dst, IpAddress::V4(0, 0, 0, 0).bytes, sizeof(r.dst));
  r.plen = Bits(family, header->rtm_dst_len);
  r.type = header->rtm_type;
  r.tos = header->rtm_tos;
  r.scope = header->rtm_scope;
  pstn_rt_hop only{};
  only.weight = 1;
  only.flags = HopFlags(header->rtm_flags);
  bool counts = true;
  EachAttrOf(message, sizeof(rtmsg), [&](const nlattr* attr) {
    if (!TakeRouteAttr(attr, out, only)) counts = false;
  });
  if (out.hops.empty() && (only.ifindex != 0 || only.flags != 0)) out.hops.push_back(only);
  return counts;
}

namespace {

// As newer kernels fill it; older ones leave the upper byte of the weight 0.
struct GroupMember {
  uint32_t id;
  uint8_t weight, weight_high;
  uint16_t reserved;
};
static_assert(sizeof(GroupMember) == sizeof(nexthop_grp));

void TakeGroup(const nlattr* list, NexthopEntry& out) {
  out.is_group = true;
  const auto* at = static_cast<const uint8_t*>(mnl_attr_get_payload(list));
  const size_t count = mnl_attr_get_payload_len(list) / sizeof(GroupMember);
  for (size_t i = 0; i < count && i < kHopsMax; i++) {
    GroupMember member{};
    memcpy(&member, at + i * sizeof(member), sizeof(member));
    const uint32_t weight = (static_cast<uint32_t>(member.weight_high) << 8 | member.weight) + 1;
    out.group.push_back({member.id, weight});
  }
}

}  // namespace

bool ParseNexthop(const nlmsghdr* message, NexthopEntry& out) {
  const auto* header = HeaderOf<nhmsg>(message);
  if (header == nullptr) return false;
  out = {};
  out.hop.weight = 1;
  out.hop.flags = HopFlags(header->nh_flags);
  bool of_routes = true;
  EachAttrOf(message, sizeof(nhmsg), [&](const nlattr* attr) {
    switch (mnl_attr_get_type(attr)) {
      case NHA_ID:
        out.id = U32(attr);
        break;
      case NHA_BLACKHOLE:
        out.blackhole = true;
        break;
      case NHA_OIF:
        out.hop.ifindex = U32(attr);
        break;
      case NHA_GATEWAY:
        TakeGateway(attr, out.hop);
        break;
      case NHA_ENCAP_TYPE:
      case NHA_ENCAP:
        out.hop.flags |= PSTN_RH_ENCAP;
        break;
      case NHA_GROUP:
        TakeGroup(attr, out);
        break;
      case NHA_FDB:
        of_routes = false;  // a bridge's
        break;
      default:
        break;  // statistics and the like
    }
  });
  return of_routes && out.id != 0;
}

}  // namespace postern::daemon
