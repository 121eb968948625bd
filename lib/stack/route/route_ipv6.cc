// SPDX-License-Identifier: Apache-2.0
// route_ipv6.cc - IPv6: as for IPv4, but that gateways are judged by whether they answer.
//
// Within a prefix the kernel takes the routes of the best metric and gives each next hop points:
// for being on the interface that was asked for, and for its router preference. As long as the host
// is not a router itself, a gateway whose neighbour entry has FAILED counts only if there is
// nothing else, neither with another metric nor in a shorter prefix. So the answer depends on
// neighbours; posternd gives the tables a new version when one fails or recovers that is a gateway.
//
// The source address is chosen after the route (route_source6.cc). If the route without a source is
// an error, the kernel looks once more with one; where that could matter, we are undecided.
#include <cerrno>

#include "stack/route/route_read.h"

namespace postern::routing {
namespace {

constexpr uint32_t kStrictInterface = 1;  // another interface than the one asked for is no match
constexpr uint32_t kStrictReachable = 2;
constexpr int kNoMatch = -3, kUnreachable = -2;
constexpr uint16_t kNudFailed = 0x20;

bool IsLinkLocal(const uint8_t ip[16]) { return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80; }
bool IsMulticast(const uint8_t ip[16]) { return ip[0] == 0xff; }
bool IsLoopback(const uint8_t ip[16]) { return LoadBe64(ip) == 0 && LoadBe64(ip + 8) == 1; }

// ---- points of a next hop ----------------------------------------------------------------------

bool HasFailed(const Snapshot& s, const pstn_rt_hop& hop);

struct Pick {
  const pstn_rt_route* route = nullptr;
  uint32_t hop = PSTN_NONE;
  int points = -1;
  RouteReason reason = RouteReason::kNone;  // undecided after all
  uint8_t pref = 0;                         // of `route`
};

int Points(const Snapshot& s, const pstn_rt_route& r, const pstn_rt_hop& hop, uint32_t oif,
           uint32_t strict, RouteReason& reason) {
  const bool fits = oif == 0 || hop.ifindex == oif;
  if (!fits && (strict & kStrictInterface) != 0) return kNoMatch;
  // Low is 3, medium 0, high 1 (RFC 4191, 2.1).
  const int pref = (r.pref ^ 2) << 2;
  if ((strict & kStrictReachable) != 0 && hop.via != 0) {
    if ((s.flags & PSTN_RTF_NO_ROUTER_PREF) != 0) reason = RouteReason::kRouterPref;
    if (HasFailed(s, hop)) return kUnreachable;
  }
  return (fits ? 2 : 0) | pref;
}

bool IsBlackholeObject(const pstn_rt_route& r) {
  return r.type == kTypeBlackhole && (r.flags & PSTN_RR_OBJECT) != 0;
}

// True: nothing after it counts.
bool Consider(const Snapshot& s, const pstn_rt_route& r, const RouteQuery& q, uint32_t strict,
              Pick& best) {
  if ((r.flags & PSTN_RR_UNKNOWN) != 0) best.reason = RouteReason::kAttribute;
  if (IsBlackholeObject(r)) {
    best.route = &r;
    return true;
  }
  const Hops hops = HopsOf(s.c, r);
  for (uint32_t i = 0; i < hops.count; i++) {
    const pstn_rt_hop& hop = hops.at[i];
    if ((hop.flags & PSTN_RH_DEAD) != 0) continue;
    const int points = Points(s, r, hop, q.oif, strict, best.reason);
    if (points <= best.points) continue;
    best.route = &r;
    best.hop = hops.first + i;
    best.points = points;
    if ((r.flags & PSTN_RR_OBJECT) != 0) break;  // of an object the first that fits
  }
  return false;
}

// The routes of one prefix: first those of the best metric, then all others together.
Pick Select(const Snapshot& s, const pstn_rt_route& chain, const RouteQuery& q, uint32_t strict) {
  Pick best;
  const pstn_rt_route* r = &chain;
  const uint32_t metric = chain.metric;
  bool others = false;
  for (uint32_t i = 0; r != nullptr && i < PSTN_RT_ROUTES; i++) {
    if (!others && r->metric != metric) {
      if (best.route != nullptr || best.reason != RouteReason::kNone) break;
      others = true;
    }
    if (Consider(s, *r, q, strict, best)) break;
    r = RouteAt(s.c, LoadRelaxed(r->alias_next));
  }
  return best;
}

Found TableIpv6(const Snapshot& s, uint32_t table, const RouteQuery& q, uint32_t strict) {
  if ((LoadRelaxed(s.c.tables[table].flags) & PSTN_RTT_SOURCE) != 0)
    return Undecided(RouteReason::kSource);
  Found f;
  const auto look = [&](uint32_t with) {
    EachPrefix(s.c, table, KeyOf(q.dst), [&](const pstn_rt_route& chain, uint32_t plen) {
      const Pick pick = Select(s, chain, q, with);
      if (pick.reason != RouteReason::kNone) {
        f = Undecided(pick.reason);
        return true;
      }
      if (pick.route == nullptr) return false;
      const uint16_t error = ErrorOf(pick.route->type);
      if (error == EAGAIN) {
        f.plen = plen;
        return true;
      }
      if (error != 0) f = Refused(error);
      f.plen = plen;
      if (error != 0) return true;
      f.step = Step::kFound;
      f.route = pick.route;
      f.hop = pick.hop;
      return true;
    });
  };
  look(strict);
  if (f.step == Step::kMiss && f.plen == 0 && (strict & kStrictReachable) != 0)
    look(strict & ~kStrictReachable);
  return f;
}

// ---- the answer --------------------------------------------------------------------------------

// Several next hops: one of those that are not worse than the one that matched.
uint32_t Spread(const Snapshot& s, const Found& f, const RouteQuery& q, uint32_t strict) {
  const Hops hops = HopsOf(s.c, *f.route);
  if (hops.count <= 1) return f.hop;
  uint8_t usable[kHopsMax];
  uint32_t count = 0;
  RouteReason ignored = RouteReason::kNone;
  for (uint32_t i = 0; i < hops.count; i++) {
    const pstn_rt_hop& hop = hops.at[i];
    const bool good = (hop.flags & PSTN_RH_DEAD) == 0 && (q.oif == 0 || hop.ifindex == q.oif) &&
                      Points(s, *f.route, hop, q.oif, strict, ignored) >= 0;
    usable[i] = good ? 1 : 0;
    count += usable[i];
  }
  return count == 0 ? f.hop : ChooseHop(hops, usable, FlowHash(q));
}

RouteReason TakeSource(const Snapshot& s, const Found& f, uint32_t ifindex, const RouteQuery& q,
                       RouteAnswer& a) {
  memcpy(a.source, q.src, 16);
  if (!IpAt(q.src).IsAny()) return RouteReason::kNone;
  if (!IpAt(f.route->prefsrc).IsAny()) {
    memcpy(a.source, f.route->prefsrc, 16);
    return RouteReason::kNone;
  }
  const Hops hops = HopsOf(s.c, *f.route);
  const bool group = (f.route->flags & PSTN_RR_GROUP) != 0;
  return SourceIpv6(s, group && hops.count > 0 ? hops.at[0].ifindex : ifindex, q.dst, a.source);
}

void TakeFound(const Snapshot& s, const Found& f, const RouteQuery& q, uint32_t strict,
               RouteAnswer& a) {
  TakeRoute(s, f, a);
  a.prefix_len = static_cast<uint8_t>(f.plen);
  const uint32_t which = Spread(s, f, q, strict);
  if (which >= PSTN_RT_HOPS) return Refuse(a, Undecided(RouteReason::kBusy));
  const pstn_rt_hop& hop = s.c.hops[which];
  if ((hop.flags & PSTN_RH_ENCAP) != 0) return Refuse(a, Undecided(RouteReason::kEncapsulation));
  if ((hop.flags & PSTN_RH_UNKNOWN) != 0) return Refuse(a, Undecided(RouteReason::kAttribute));
  const pstn_rt_link* link = FindLink(s.c, hop.ifindex);
  if (link == nullptr) return Refuse(a, Undecided(RouteReason::kLink));
  if ((link->conf & PSTN_LC_L3SLAVE) != 0 || link->kind == PSTN_LINK_VRF)
    return Refuse(a, Undecided(RouteReason::kL3mdev));
  const RouteReason reason = TakeSource(s, f, hop.ifindex, q, a);
  if (reason != RouteReason::kNone) return Refuse(a, Undecided(reason));
  if (IpAt(a.source).IsAny()) return Refuse(a, Refused(EADDRNOTAVAIL));
  a.ifindex = hop.ifindex;
  a.has_gateway = hop.via != 0 ? 1 : 0;
  memcpy(a.next_hop, hop.via != 0 ? hop.gateway : q.dst, 16);
  if (a.hop_limit == 0) a.hop_limit = link->hop_limit;
  a.routes = RouteVerdict::kUnicast;
  if (f.route->type == kTypeLocal || f.route->type == kTypeAnycast) a.routes = RouteVerdict::kLocal;
  if (IsMulticast(q.dst)) a.routes = RouteVerdict::kMulticast;
}

}  // namespace

void LookupIpv6(const Snapshot& s, const RouteQuery& q, RouteAnswer& a) {
  if ((s.flags & PSTN_RTF_FULL6) != 0) return Refuse(a, Undecided(RouteReason::kFull));
  if (IpAt(q.dst).IsAny()) {  // this host
    a.routes = RouteVerdict::kLocal;
    a.reason = RouteReason::kNone;
    a.ifindex = kLoopbackIfindex;
    a.next_hop[15] = 1;
    memcpy(a.source, IpAt(q.src).IsAny() ? a.next_hop : q.src, 16);
    return;
  }
  if ((q.tos & 0xe0u) != 0 && (s.flags & PSTN_RTF_TOS6) != 0)
    return Refuse(a, Undecided(RouteReason::kTos));
  const bool any_src = IpAt(q.src).IsAny();
  uint32_t strict = (s.flags & PSTN_RTF_FORWARDING6) != 0 ? 0 : kStrictReachable;
  if (IsMulticast(q.dst) || IsLinkLocal(q.dst) || IsLoopback(q.dst) || (q.oif != 0 && any_src))
    strict |= kStrictInterface;
  Found f = WalkRules(s, q, LoadRelaxed(s.c.rules6_first), LoadRelaxed(s.c.rules6_count), TableIpv6,
                      strict);
  if (f.step == Step::kMiss) f = Refused(ENETUNREACH);
  if (f.step == Step::kRefused && any_src && (s.flags & PSTN_RTF_SRC_RULES6) != 0)
    f = Undecided(RouteReason::kSource);
  if (f.step != Step::kFound) return Refuse(a, f);
  TakeFound(s, f, q, strict, a);
}

namespace {

bool HasFailed(const Snapshot& s, const pstn_rt_hop& hop) {
  const RouteKey key = KeyOf(hop.gateway);
  const uint32_t mask = PSTN_RT_NEIGHS - 1;
  uint32_t at = NeighHash(hop.ifindex, key) & mask;
  for (uint32_t i = 0; i < PSTN_RT_NEIGHS; i++, at = (at + 1) & mask) {
    const pstn_rt_neigh& n = s.all.neigh[at];
    const uint32_t ifindex = LoadRelaxed(n.ifindex);
    if (ifindex == 0) return false;
    if (ifindex == hop.ifindex && KeyOf(n.ip) == key) return LoadRelaxed(n.state) == kNudFailed;
  }
  return false;
}

}  // namespace

}  // namespace postern::routing
