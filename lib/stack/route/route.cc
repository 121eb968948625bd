// SPDX-License-Identifier: Apache-2.0
// route.cc - one look-up: a snapshot, what the routes say, and what stands in a VI's way.
#include "stack/route/route.h"

#include <cerrno>

#include "stack/route/route_read.h"

namespace postern {
namespace {

using namespace routing;  // NOLINT(google-build-using-namespace): its inner side

constexpr int kCopyRetries = 16;  // posternd has to publish twice during each of them

// Runs fn on a copy that stays as it is meanwhile. False: there is none.
template <typename Fn>
bool ReadCopy(const pstn_routes& t, RouteReason& why, Fn fn) {
  why = RouteReason::kNoTables;
  for (int i = 0; i < kCopyRetries; i++) {
    const uint64_t seq = LoadAcquire(t.seq);  // [W2]
    if (seq == 0) return false;
    const pstn_rt_copy& c = t.copy[seq & 1];
    if (LoadAcquire(c.stamp) == seq) {  // [W2]
      fn(c, seq);
      FullFence();  // [W2] what fn loaded precedes the second look at the stamp
      if (LoadRelaxed(c.stamp) == seq) return true;
    }
    why = RouteReason::kBusy;
    CpuRelax();
  }
  return false;
}

void Undecide(RouteAnswer& a, RouteReason reason) {
  a.verdict = RouteVerdict::kUndecided;
  a.reason = reason;
}

// MTU and whether a VI may carry it: what comes after the routes.
void Complete(const Snapshot& s, const RouteQuery& q, RouteAnswer& a) {
  a.verdict = a.routes;
  if (a.routes == RouteVerdict::kUndecided || a.routes == RouteVerdict::kRefused) return;
  a.link = LinkIn(s.c, a.ifindex);
  const pstn_rt_link* link = FindLink(s.c, a.ifindex);
  const bool v4 = IpAt(q.dst).IsV4();
  const uint32_t mtu = link == nullptr ? 0 : v4 || link->mtu6 == 0 ? link->mtu : link->mtu6;
  if (a.mtu == 0 || a.mtu > mtu) a.mtu = mtu;
  if (a.routes == RouteVerdict::kLocal) return;
  a.neighbour = NeighbourOf(s.all, a.ifindex, a.next_hop);
  const bool asks_nobody = link == nullptr || (link->flags & kIffNoarp) != 0;
  if (!a.link.has_mac || asks_nobody || a.routes == RouteVerdict::kBroadcast)
    a.neighbour.state = NeighbourState::kNotNeeded;
  if (a.routes == RouteVerdict::kBroadcast) memset(a.neighbour.mac, 0xff, 6);
  if (a.link.reason != RouteReason::kNone) return Undecide(a, a.link.reason);
  if ((s.flags & PSTN_RTF_NETFILTER) != 0) return Undecide(a, RouteReason::kNetfilter);
  if ((s.flags & PSTN_RTF_XFRM) != 0) return Undecide(a, RouteReason::kXfrm);
}

struct ReasonText {
  const char *name, *text;
};
constexpr ReasonText kReasons[] = {
    {"none", "Nothing stands in the way."},
    {"no-tables", "posternd has no tables of the routes yet, or has lost what the kernel said."},
    {"busy", "The routes change so fast that they could not be read."},
    {"full", "There are more routes, rules, interfaces or addresses than the tables hold."},
    {"mark", "A routing rule asks for the packet's mark (fwmark)."},
    {"uid", "A routing rule asks for the user."},
    {"flow", "A routing rule asks for protocol or ports."},
    {"tos", "A route or rule asks for TOS bits that kernels treat differently."},
    {"l3mdev", "The interface belongs to a VRF, or a rule asks for one."},
    {"rule", "A routing rule has a condition or an action that is not known here."},
    {"encapsulation", "The route wraps packets (MPLS, SRv6, a lightweight tunnel)."},
    {"attribute", "The route has an attribute that is not known here."},
    {"merged", "The tables local and main contradict each other."},
    {"defaults", "Several default routes have the same metric: the kernel tries their gateways."},
    {"source", "The source address cannot be told for certain."},
    {"router-pref", "The kernel does not know the preferences of IPv6 routers."},
    {"link", "The interface is of a kind that cannot be bypassed, or is not there."},
    {"netfilter", "There are netfilter rules in this network namespace, or they can't be seen."},
    {"xfrm", "There are IPsec policies in this network namespace, or they can't be seen."},
};
static_assert(sizeof kReasons / sizeof kReasons[0] == static_cast<size_t>(RouteReason::kCount));

const ReasonText& TextOf(RouteReason reason) {
  const auto at = static_cast<size_t>(reason);
  return kReasons[at < static_cast<size_t>(RouteReason::kCount) ? at : 0];
}

}  // namespace

uint64_t RouteVersion(const pstn_routes& tables) { return LoadRelaxed(tables.seq); }

RouteAnswer RouteLookup(const pstn_routes& tables, const RouteQuery& query) {
  RouteAnswer a;
  RouteReason why;
  const bool stable = ReadCopy(tables, why, [&](const pstn_rt_copy& c, uint64_t seq) {
    a = RouteAnswer{};
    a.version = seq;
    const Snapshot s = {tables, c, LoadRelaxed(c.flags)};
    if ((s.flags & PSTN_RTF_UNSYNCED) != 0) {
      a.reason = RouteReason::kNoTables;
      return;
    }
    if (IpAt(query.dst).IsV4()) {
      LookupIpv4(s, query, a);
    } else {
      LookupIpv6(s, query, a);
    }
    Complete(s, query, a);
  });
  if (stable) return a;
  a = {};
  a.reason = why;
  return a;
}

RouteAnswer RouteConnect(const pstn_routes& tables, const RouteQuery& query) {
  RouteAnswer a = RouteLookup(tables, query);
  const bool found = a.routes != RouteVerdict::kUndecided && a.routes != RouteVerdict::kRefused;
  if (!found || !IpAt(query.dst).IsV4() || !IpAt(query.src).IsAny()) return a;
  RouteQuery again = query;
  memcpy(again.src, a.source, 16);
  return RouteLookup(tables, again);
}

LinkAnswer LinkOf(const pstn_routes& tables, uint32_t ifindex) {
  LinkAnswer a;
  RouteReason why;
  if (!ReadCopy(tables, why, [&](const pstn_rt_copy& c, uint64_t) { a = LinkIn(c, ifindex); }))
    a = LinkAnswer{};
  return a;
}

const char* RouteReasonName(RouteReason reason) { return TextOf(reason).name; }
const char* RouteReasonText(RouteReason reason) { return TextOf(reason).text; }

}  // namespace postern
