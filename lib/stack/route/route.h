// SPDX-License-Identifier: Apache-2.0
// route.h - where a packet goes: Linux's routes, rules, addresses, links and neighbours, looked up.
//
// posternd copies what the kernel has of its network namespace into shared tables
// (abi/routes_abi.h) that everybody maps read-only; here they are read, without a system call and
// without waiting. The answer is the one that the kernel would give, or kUndecided with a reason:
// then the socket belongs to the kernel. It is never a guess. docs/routes.md says what is exact and
// what is undecided.
//
// Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d, as everywhere (pstn_addr). Interfaces are the
// kernel's indices. Pure functions of the tables and their arguments; any thread at any time.
//
//   RouteQuery q;  memcpy(q.dst, to.ip, 16);
//   RouteAnswer a = RouteLookup(*tables, q);
//   ...                                        // each packet:
//   if (RouteVersion(*tables) != a.version) a = RouteLookup(*tables, q);     // one load
//   NeighbourAnswer n = NeighbourOf(*tables, a.ifindex, a.next_hop);  // if its version changed
//
// Cost: docs/routes.md.
#pragma once
#include <cstdint>

struct pstn_routes;

namespace postern {

enum class RouteVerdict : uint8_t {
  kUndecided = 0,  // `reason`: let the kernel do it
  kUnicast,        // by `ifindex` to `next_hop`
  kLocal,          // an address of this host
  kBroadcast,      // by `ifindex`, to its broadcast address; TCP: ENETUNREACH
  kMulticast,      // by `ifindex`; TCP: ENETUNREACH
  kRefused,        // no way: `error`, as connect() and sendto() report it
};

// Why kUndecided. Names and prose: RouteReasonName(), RouteReasonText().
enum class RouteReason : uint8_t {
  kNone = 0,
  kNoTables,  // none yet, or posternd is reading them anew after it has lost messages
  kBusy,      // tables changed at each of our looks
  kFull,      // more routes, rules, ... than the tables hold
  kMark,      // a rule asks for the mark (fwmark) and the query doesn't tell it
  kUid,       // ... for the user
  kFlow,      // ... for protocol or ports
  kTos,       // a rule or route asks for TOS bits that kernels differ about (RFC 2474's upper 3)
  kL3mdev,    // VRF: a rule asks for it, or the interface belongs to one
  kRule,      // a rule has a condition or action that we don't know
  kEncapsulation,  // the route wraps packets (lwtunnel, MPLS, SRv6)
  kAttribute,      // the route or next hop has an attribute that we don't know
  kMerged,         // local and main disagree, and the kernel's answer depends on its history
  kDefaults,       // several default routes of one metric: the kernel probes their gateways
  kSource,         // the source address can't be told for certain
  kRouterPref,     // IPv6: router preferences differ, or the kernel is built without them
  kLink,           // the interface is not known or of a kind that no VI can be put on
  kNetfilter,      // the namespace has netfilter rules, or it can't be seen whether it has
  kXfrm,           // the namespace has IPsec policies, or it can't be seen whether it has
  kCount,
};

// What the query tells for sure. A rule that asks for anything else leads to kUndecided.
inline constexpr uint8_t kRouteKnowsMark = 1, kRouteKnowsUid = 2, kRouteKnowsProto = 4,
                         kRouteKnowsSport = 8, kRouteKnowsDport = 16;

struct RouteQuery {
  uint8_t dst[16] = {};
  uint8_t src[16] = {};  // all zero, or ::ffff:0.0.0.0: any
  uint32_t oif = 0;      // SO_BINDTODEVICE, scope id, IP_PKTINFO; 0: any
  uint32_t mark = 0, uid = 0;
  uint16_t sport = 0, dport = 0;
  uint8_t proto = 0;  // IPPROTO_TCP
  uint8_t tos = 0;    // as in the IP header; ECN's bits are ignored
  uint8_t known = 0;  // kRouteKnows*: which of mark, uid, proto, sport, dport are told
  uint32_t hash = 0;  // chooses among several next hops; 0: made from addresses and ports
};

// The route's metrics as `ip route` has them; 0: not set. Times in ms.
struct RouteMetrics {
  uint32_t window = 0, rtt_ms = 0, rttvar_ms = 0, ssthresh = 0, cwnd = 0, advmss = 0,
           reordering = 0, initcwnd = 0, initrwnd = 0, rto_min_ms = 0, features = 0, quickack = 0,
           fastopen_no_cookie = 0;
  uint32_t lock = 0;         // bit per RTAX_*: `lock`ed by the administrator
  char congestion[16] = {};  // TCP_CONGESTION by default on this route; empty: not set
};
inline constexpr uint32_t kRouteFeatureEcn = 1;  // RTAX_FEATURE_ECN

// How an interface is reached by a VI.
struct LinkAnswer {
  RouteReason reason = RouteReason::kLink;  // kNone: a VI on `vi_ifindex` can carry it
  uint8_t up = 0;                           // administratively, and its carrier is there
  uint8_t mac[6] = {};                      // its own address
  uint8_t has_mac = 0;                      // 0: no Ethernet header (a tun)
  uint8_t tags = 0;                         // VLAN tags on vi_ifindex, outermost first
  uint16_t tpid[2] = {}, vid[2] = {};
  uint32_t mtu = 0;         // of IPv4; IPv6 may have less
  uint32_t vi_ifindex = 0;  // itself; of a VLAN the device below, of a bond its active slave
  uint32_t kind = 0;        // PSTN_LINK_*
};

enum class NeighbourState : uint8_t {
  kUnknown = 0,  // not asked for yet: CtlResolve(), and keep the packet meanwhile
  kAsking,       // the kernel asks
  kGood,         // `mac`; may be used without asking
  kStale,        // `mac`; may be used, and CtlResolve() has the kernel confirm it (RFC 4861, 7.3.2)
  kFailed,       // no host answers: EHOSTUNREACH
  kNotNeeded,    // `mac` is computed (multicast, broadcast), or the link has no addresses
};

struct NeighbourAnswer {
  NeighbourState state = NeighbourState::kUnknown;
  uint8_t mac[6] = {};
};

struct RouteAnswer {
  RouteVerdict verdict = RouteVerdict::kUndecided;
  RouteReason reason = RouteReason::kNoTables;
  // What the routes alone say: the same as `verdict`, unless `reason` is about what comes after
  // them (kLink, kNetfilter, kXfrm). All below is valid then, too.
  RouteVerdict routes = RouteVerdict::kUndecided;
  uint8_t prefix_len = 0;   // of the route, IPv4: 0..32
  uint8_t has_gateway = 0;  // 0: next_hop is the destination itself, on-link
  uint8_t hop_limit = 0;    // TTL
  uint8_t mtu_locked = 0;   // no PMTU discovery below `mtu`
  uint16_t error = 0;       // kRefused: errno
  uint32_t table = 0, metric = 0;
  uint32_t ifindex = 0;
  uint32_t mtu = 0;  // of the route if it has one, else the link's; never above the link's
  uint8_t next_hop[16] =
      {};                   // gateway or destination; IPv6 next to an IPv4 destination is possible
  uint8_t source[16] = {};  // the query's, or the one to be used
  RouteMetrics metrics;
  LinkAnswer link;            // of `ifindex`
  NeighbourAnswer neighbour;  // of `next_hop`, as it was
  uint64_t version = 0;       // of the tables that the answer is from
};

// ---- the tables
// Changes whenever an answer of RouteLookup() or LinkOf() may have; never 0. Relaxed: what was read
// before a change that is seen here has to be looked up again, nothing else follows.
uint64_t RouteVersion(const pstn_routes& tables);
// The same for NeighbourOf().
uint64_t NeighbourVersion(const pstn_routes& tables);

RouteAnswer RouteLookup(const pstn_routes& tables, const RouteQuery& query);
// As connect() goes about it: for IPv4 the source address that was found is part of the question
// the second time, since rules may ask for it. Without a source given, use this one.
RouteAnswer RouteConnect(const pstn_routes& tables, const RouteQuery& query);
NeighbourAnswer NeighbourOf(const pstn_routes& tables, uint32_t ifindex, const uint8_t ip[16]);
LinkAnswer LinkOf(const pstn_routes& tables, uint32_t ifindex);

const char* RouteReasonName(RouteReason reason);  // "netfilter": stable, scripts look for it
const char* RouteReasonText(RouteReason reason);  // a sentence

}  // namespace postern
