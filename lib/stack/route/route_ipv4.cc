// SPDX-License-Identifier: Apache-2.0
// route_ipv4.cc - IPv4: the longest prefix, its next hop, and the source address.
//
// What Linux does, in its order: a given source has to be local; a given interface decides alone
// for multicast and limited broadcast, and makes the destination on-link where no route fits; then
// rules and tables; then one of several next hops; last the source address.
//
// Local and main. Until a rule is made for the first time, the kernel keeps both tables in one
// trie, and a longer prefix in main wins against a shorter one in local; from then on local comes
// first. Nothing tells which of the two it is, so where they differ the answer is kMerged.
#include <cerrno>

#include "stack/route/route_read.h"

namespace postern::routing {
namespace {

constexpr uint32_t kIfaSecondary = 1;

bool IsMulticast(uint32_t ip) { return ip >> 28 == 14; }
bool IsLocalMulticast(uint32_t ip) { return ip >> 8 == 0xe00000; }
bool IsLoopback(uint32_t ip) { return ip >> 24 == 127; }
constexpr uint32_t kLimitedBroadcast = 0xffffffff;

void PutV4(uint8_t out[16], uint32_t ip) {
  memset(out, 0, 10);
  out[10] = out[11] = 0xff;
  for (int i = 0; i < 4; i++) out[12 + i] = static_cast<uint8_t>(ip >> (24 - 8 * i));
}

// ---- one table ---------------------------------------------------------------------------------

bool Good(const pstn_rt_hop& hop, uint32_t oif) {
  return (hop.flags & PSTN_RH_DEAD) == 0 && (oif == 0 || oif == hop.ifindex);
}

// Whether the route decides.
bool TryRoute(const Snapshot& s, const pstn_rt_route& r, const RouteQuery& q, Found& f) {
  if (r.tos != 0 && r.tos != (q.tos & kTosBits)) return false;
  if ((r.flags & PSTN_RR_UNKNOWN) != 0) {
    f = Undecided(RouteReason::kAttribute);
    return true;
  }
  const uint16_t error = ErrorOf(r.type);
  if (error != 0) {
    f = error == EAGAIN ? Found{} : Refused(error);
    return true;
  }
  const Hops hops = HopsOf(s.c, r);
  for (uint32_t i = 0; i < hops.count; i++) {
    if (!Good(hops.at[i], q.oif)) continue;
    f.step = Step::kFound;
    f.route = &r;
    f.hop = hops.first + i;
    return true;
  }
  // The kernel then passes over all routes of the same base address, of shorter prefixes as well:
  // nothing to rely on.
  if ((r.flags & PSTN_RR_OBJECT) == 0) return false;
  f = Undecided(RouteReason::kAttribute);
  return true;
}

// Several default routes of one metric: the kernel goes by whose gateway answers.
bool GatewaysAreProbed(const Snapshot& s, const pstn_rt_route& r) {
  const pstn_rt_route* next = RouteAt(s.c, LoadRelaxed(r.alias_next));
  if (next == nullptr || next->metric != r.metric || next->type != kTypeUnicast) return false;
  const Hops a = HopsOf(s.c, r), b = HopsOf(s.c, *next);
  return a.count == 1 && b.count > 0 && a.at[0].via != 0 && b.at[0].via != 0;
}

Found TableIpv4(const Snapshot& s, uint32_t table, const RouteQuery& q, uint32_t /*strict*/) {
  Found f;
  EachPrefix(s.c, table, KeyOf(q.dst), [&](const pstn_rt_route& chain, uint32_t plen) {
    const pstn_rt_route* r = &chain;
    for (uint32_t i = 0; r != nullptr && i < PSTN_RT_ROUTES; i++) {
      f.plen = plen;
      if (TryRoute(s, *r, q, f)) {
        if (f.step == Step::kFound && plen == 96 && q.oif == 0 && r->type == kTypeUnicast &&
            GatewaysAreProbed(s, *r))
          f = Undecided(RouteReason::kDefaults);
        f.plen = plen;
        return true;
      }
      r = RouteAt(s.c, LoadRelaxed(r->alias_next));
    }
    f = {};
    return false;
  });
  return f;
}

// ---- all tables --------------------------------------------------------------------------------

Found LookTable(const Snapshot& s, uint32_t table_plus_1, const RouteQuery& q) {
  return table_plus_1 - 1 < PSTN_RT_TABLES ? TableIpv4(s, table_plus_1 - 1, q, 0) : Found{};
}

// Only the three rules that are there from the start: see the head of this file.
Found PlainRules(const Snapshot& s, const RouteQuery& q) {
  const Found local = LookTable(s, LoadRelaxed(s.c.local4), q);
  const Found main = LookTable(s, LoadRelaxed(s.c.main4), q);
  const uint32_t fallback = LoadRelaxed(s.c.default4);
  const auto decided = [](const Found& f) { return f.step != Step::kMiss || f.plen != 0; };
  if (decided(local) && decided(main) && main.plen > local.plen)
    return Undecided(RouteReason::kMerged);
  const Found& first = local.step != Step::kMiss ? local : main;
  if (local.step == Step::kMiss && local.plen != 0) return Undecided(RouteReason::kMerged);
  if (first.step == Step::kRefused && fallback != 0) return Undecided(RouteReason::kMerged);
  return first.step != Step::kMiss ? first : LookTable(s, fallback, q);
}

Found LookIpv4(const Snapshot& s, const RouteQuery& q) {
  if ((q.tos & 0xe0u) != 0 && (s.flags & PSTN_RTF_TOS4) != 0) return Undecided(RouteReason::kTos);
  Found f = (s.flags & PSTN_RTF_PLAIN_RULES4) != 0
                ? PlainRules(s, q)
                : WalkRules(s, q, LoadRelaxed(s.c.rules4_first), LoadRelaxed(s.c.rules4_count),
                            TableIpv4, 0);
  if (f.step == Step::kMiss) return Refused(ENETUNREACH);
  return f;
}

// ---- addresses ---------------------------------------------------------------------------------

struct Addrs {
  const pstn_rt_addr* at;
  uint32_t count;
};
Addrs AddrsOf(const pstn_rt_copy& c, const pstn_rt_link& link) {
  const uint32_t first = LoadRelaxed(link.addr4_first), count = LoadRelaxed(link.addr4_count);
  if (first > PSTN_RT_ADDRS || count > PSTN_RT_ADDRS - first) return {c.addrs, 0};
  return {c.addrs + first, count};
}

// Of this interface: the first that is in the same subnet as `towards`, else the first at all.
uint32_t OwnAddress(const pstn_rt_copy& c, const pstn_rt_link& link, uint32_t towards,
                    uint32_t scope) {
  const uint32_t host_scope = (link.conf & PSTN_LC_ROUTE_LOCALNET) != 0 ? kScopeLink : kScopeHost;
  const Addrs addrs = AddrsOf(c, link);
  uint8_t to[16];
  PutV4(to, towards);
  uint32_t found = 0;
  for (uint32_t i = 0; i < addrs.count; i++) {
    const pstn_rt_addr& a = addrs.at[i];
    if ((a.flags & kIfaSecondary) != 0) continue;
    if ((a.scope < host_scope ? a.scope : host_scope) > scope) continue;
    if (towards == 0 || SamePrefix(a.peer, to, a.plen)) return V4Of(a.ip);
    if (found == 0) found = V4Of(a.ip);
  }
  return found;
}

// An interface without an address borrows one: the loopback's first, then any other's. 0: none.
// Which of several others depends on the order of their creation, which we don't know.
RouteReason BorrowedAddress(const Snapshot& s, uint32_t scope, uint32_t& out) {
  uint32_t lenders = 0;
  out = 0;
  const uint32_t links = LoadRelaxed(s.c.link_count);
  for (uint32_t l = 0; l < links && l < PSTN_RT_LINKS; l++) {
    const pstn_rt_link& link = s.c.links[l];
    if ((link.conf & PSTN_LC_L3SLAVE) != 0) continue;
    const Addrs addrs = AddrsOf(s.c, link);
    for (uint32_t i = 0; i < addrs.count; i++) {
      const pstn_rt_addr& a = addrs.at[i];
      if ((a.flags & kIfaSecondary) != 0 || a.scope == kScopeLink || a.scope > scope) continue;
      if (link.ifindex == kLoopbackIfindex) {
        out = V4Of(a.ip);
        return RouteReason::kNone;
      }
      if (out == 0) out = V4Of(a.ip);
      lenders++;
      break;
    }
  }
  return lenders > 1 ? RouteReason::kSource : RouteReason::kNone;
}

RouteReason SelectAddress(const Snapshot& s, uint32_t ifindex, uint32_t towards, uint32_t scope,
                          uint8_t out[16]) {
  const pstn_rt_link* link = FindLink(s.c, ifindex);
  uint32_t ip = link != nullptr ? OwnAddress(s.c, *link, towards, scope) : 0;
  RouteReason reason = RouteReason::kNone;
  if (ip == 0) reason = BorrowedAddress(s, scope, ip);
  PutV4(out, ip);
  return reason;
}

bool IsOurs(const Snapshot& s, const uint8_t ip[16], RouteReason& reason) {
  const uint32_t count = LoadRelaxed(s.c.addr_count);
  for (uint32_t i = 0; i < count && i < PSTN_RT_ADDRS; i++) {
    if (memcmp(s.c.addrs[i].ip, ip, 16) == 0) return true;
  }
  RouteQuery q;
  memcpy(q.dst, ip, 16);
  const Found local = LookTable(s, LoadRelaxed(s.c.local4), q);
  if (local.step == Step::kUndecided) reason = local.reason;
  return local.step == Step::kFound && local.route->type == kTypeLocal;
}

// ---- the answer --------------------------------------------------------------------------------

void Direct(const Snapshot& s, const RouteQuery& q, uint32_t oif, RouteAnswer& a) {
  const uint32_t dst = V4Of(q.dst);
  a.reason = RouteReason::kNone;
  a.ifindex = oif;
  memcpy(a.next_hop, q.dst, 16);
  if (IpAt(q.src).IsAny()) {
    const RouteReason reason = SelectAddress(s, oif, 0, kScopeLink, a.source);
    if (reason != RouteReason::kNone) return Refuse(a, Undecided(reason));
  }
  a.routes = dst == kLimitedBroadcast ? RouteVerdict::kBroadcast
             : IsMulticast(dst)       ? RouteVerdict::kMulticast
                                      : RouteVerdict::kUnicast;
}

// One of the next hops. With an interface given it is the one that matched.
RouteReason TakeHop(const Snapshot& s, const Found& f, const RouteQuery& q, RouteAnswer& a) {
  const Hops hops = HopsOf(s.c, *f.route);
  uint32_t which = f.hop;
  if (q.oif == 0 && hops.count > 1) {
    uint8_t usable[kHopsMax];
    for (uint32_t i = 0; i < hops.count; i++) usable[i] = Good(hops.at[i], 0) ? 1 : 0;
    which = ChooseHop(hops, usable, FlowHash(q));
  }
  if (which >= PSTN_RT_HOPS) return RouteReason::kBusy;
  const pstn_rt_hop& hop = s.c.hops[which];
  if ((hop.flags & PSTN_RH_ENCAP) != 0) return RouteReason::kEncapsulation;
  if ((hop.flags & PSTN_RH_UNKNOWN) != 0) return RouteReason::kAttribute;
  const pstn_rt_link* link = FindLink(s.c, hop.ifindex);
  if (link == nullptr) return RouteReason::kLink;
  if ((link->conf & PSTN_LC_L3SLAVE) != 0 || link->kind == PSTN_LINK_VRF)
    return RouteReason::kL3mdev;
  a.ifindex = hop.ifindex;
  a.has_gateway = hop.via != 0 ? 1 : 0;
  memcpy(a.next_hop, hop.via != 0 ? hop.gateway : q.dst, 16);
  if (!IpAt(q.src).IsAny()) return RouteReason::kNone;
  if (!IpAt(f.route->prefsrc).IsAny()) {
    memcpy(a.source, f.route->prefsrc, 16);
    return RouteReason::kNone;
  }
  return SelectAddress(s, hop.ifindex, hop.via == 4 ? V4Of(hop.gateway) : 0, f.route->scope,
                       a.source);
}

void TakeLocal(const Snapshot& s, const Found& f, const RouteQuery& q, RouteAnswer& a) {
  a.routes = RouteVerdict::kLocal;
  a.ifindex = kLoopbackIfindex;
  const pstn_rt_hop* hop = f.hop < PSTN_RT_HOPS ? &s.c.hops[f.hop] : nullptr;
  const pstn_rt_link* link = hop != nullptr ? FindLink(s.c, hop->ifindex) : nullptr;
  if (link != nullptr && (link->conf & PSTN_LC_L3SLAVE) != 0)
    return Refuse(a, Undecided(RouteReason::kL3mdev));
  memcpy(a.next_hop, q.dst, 16);
  if (IpAt(q.src).IsAny())
    memcpy(a.source, IpAt(f.route->prefsrc).IsAny() ? q.dst : f.route->prefsrc, 16);
}

// To several hosts: on-link, whatever the route says; and of a broadcast, or where a multicast goes
// by nothing better than a default route, the route's metrics don't count.
void OfMany(const RouteQuery& q, RouteAnswer& a) {
  const bool by_default = a.prefix_len < 4;
  if (a.routes == RouteVerdict::kMulticast && !by_default && a.has_gateway != 0)
    return Refuse(a, Undecided(RouteReason::kAttribute));
  a.has_gateway = 0;
  memcpy(a.next_hop, q.dst, 16);
  if (a.routes == RouteVerdict::kMulticast && !by_default) return;
  a.metrics = {};
  a.mtu = 0;
  a.hop_limit = a.mtu_locked = 0;
}

void TakeFound(const Snapshot& s, const Found& f, const RouteQuery& q, RouteAnswer& a) {
  TakeRoute(s, f, a);
  a.prefix_len = static_cast<uint8_t>(f.plen - 96);
  if (f.route->type == kTypeLocal) return TakeLocal(s, f, q, a);
  if (f.route->type == kTypeAnycast) return Refuse(a, Undecided(RouteReason::kAttribute));
  const RouteReason reason = TakeHop(s, f, q, a);
  if (reason != RouteReason::kNone) return Refuse(a, Undecided(reason));
  const uint32_t dst = V4Of(q.dst);
  a.routes = RouteVerdict::kUnicast;
  if (dst == kLimitedBroadcast || f.route->type == kTypeBroadcast)
    a.routes = RouteVerdict::kBroadcast;
  if (IsMulticast(dst)) a.routes = RouteVerdict::kMulticast;
  if (a.routes != RouteVerdict::kUnicast) OfMany(q, a);
}

// A source on 127/8 leaves by no other interface.
bool LeavesLoopback(const Snapshot& s, const RouteAnswer& a) {
  const pstn_rt_link* link = FindLink(s.c, a.ifindex);
  return IsLoopback(V4Of(a.source)) && link != nullptr && (link->flags & kIffLoopback) == 0 &&
         (link->conf & PSTN_LC_ROUTE_LOCALNET) == 0;
}

// What is decided by the given source alone. True: it is.
bool CheckSource(const Snapshot& s, const RouteQuery& q, uint32_t& oif, RouteAnswer& a) {
  const uint32_t src = V4Of(q.src), dst = V4Of(q.dst);
  if (IsMulticast(src) || src == kLimitedBroadcast || src >> 24 == 0) {
    Refuse(a, Refused(EINVAL));
    return true;
  }
  RouteReason reason = RouteReason::kNone;
  const bool ours = IsOurs(s, q.src, reason);
  if (reason != RouteReason::kNone || !ours) {
    Refuse(a, reason != RouteReason::kNone ? Undecided(reason) : Refused(ENETUNREACH));
    return true;
  }
  if (oif != 0 || !(IsMulticast(dst) || dst == kLimitedBroadcast)) return false;
  // The source's interface is the way. It may be on several.
  const uint32_t count = LoadRelaxed(s.c.addr_count);
  for (uint32_t i = 0; i < count && i < PSTN_RT_ADDRS; i++) {
    if (memcmp(s.c.addrs[i].ip, q.src, 16) != 0) continue;
    if (oif != 0 && oif != s.c.addrs[i].ifindex) {
      Refuse(a, Undecided(RouteReason::kSource));
      return true;
    }
    oif = s.c.addrs[i].ifindex;
  }
  if (oif == 0) {
    Refuse(a, Undecided(RouteReason::kSource));
  } else {
    Direct(s, q, oif, a);
  }
  return true;
}

// What is decided by the given interface alone.
bool CheckInterface(const Snapshot& s, const RouteQuery& q, RouteAnswer& a) {
  const pstn_rt_link* link = FindLink(s.c, q.oif);
  if (link == nullptr) {
    Refuse(a, Refused(ENODEV));
  } else if ((link->conf & PSTN_LC_L3SLAVE) != 0 || link->kind == PSTN_LINK_VRF) {
    Refuse(a, Undecided(RouteReason::kL3mdev));
  } else if ((link->flags & kIffUp) == 0 || (link->conf & PSTN_LC_INET) == 0) {
    Refuse(a, Refused(ENETUNREACH));
  } else if (IsLocalMulticast(V4Of(q.dst)) || V4Of(q.dst) == kLimitedBroadcast) {
    Direct(s, q, q.oif, a);
  } else {
    return false;
  }
  return true;
}

void Decide(const Snapshot& s, const RouteQuery& query, RouteAnswer& a) {
  RouteQuery q = query;
  memcpy(a.source, q.src, 16);
  const bool any_src = IpAt(q.src).IsAny();
  if (!any_src && CheckSource(s, q, q.oif, a)) return;
  if (q.oif != 0 && CheckInterface(s, q, a)) return;
  if (any_src && q.oif != 0 && IsMulticast(V4Of(q.dst))) {
    const RouteReason reason = SelectAddress(s, q.oif, 0, 0, q.src);
    if (reason != RouteReason::kNone) return Refuse(a, Undecided(reason));
    memcpy(a.source, q.src, 16);
  }
  const Found f = LookIpv4(s, q);
  // An interface was named, and the tables know nothing better: the destination is on its link.
  if (f.step == Step::kRefused && q.oif != 0) return Direct(s, q, q.oif, a);
  if (f.step != Step::kFound) return Refuse(a, f);
  TakeFound(s, f, q, a);
}

}  // namespace

void LookupIpv4(const Snapshot& s, const RouteQuery& q, RouteAnswer& a) {
  a.hop_limit = 0;
  if ((s.flags & PSTN_RTF_FULL4) != 0) return Refuse(a, Undecided(RouteReason::kFull));
  if (V4Of(q.dst) == 0) {  // this host
    a.routes = RouteVerdict::kLocal;
    a.reason = RouteReason::kNone;
    a.ifindex = kLoopbackIfindex;
    PutV4(a.next_hop, 0x7f000001);
    memcpy(a.source, IpAt(q.src).IsAny() ? a.next_hop : q.src, 16);
    return;
  }
  Decide(s, q, a);
  const bool sent = a.routes == RouteVerdict::kUnicast || a.routes == RouteVerdict::kBroadcast ||
                    a.routes == RouteVerdict::kMulticast;
  if (sent && (LeavesLoopback(s, a) || V4Of(q.dst) >> 24 == 0)) Refuse(a, Refused(EINVAL));
  if (a.hop_limit == 0) a.hop_limit = static_cast<uint8_t>(LoadRelaxed(s.c.hop_limit4));
}

}  // namespace postern::routing
