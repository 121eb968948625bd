// SPDX-License-Identifier: Apache-2.0
// route_rules.cc - policy routing: which tables are asked, in which order.
//
// A rule is a conjunction. A condition that the query doesn't tell about makes the rule "perhaps":
// that is an answer (no) if another condition is false, and indecision if all others are true.
#include <cerrno>

#include "stack/route/route_read.h"

namespace postern::routing {
namespace {

struct Match {
  bool yes = true;
  RouteReason perhaps = RouteReason::kNone;

  void Ask(bool condition) { yes = yes && condition; }
  void AskIf(bool known, RouteReason reason, bool condition) {
    if (known) return Ask(condition);
    perhaps = reason;
  }
};

bool InRange(uint16_t v, uint16_t first, uint16_t last) { return v >= first && v <= last; }

bool Interface(uint32_t wanted, uint32_t is) { return wanted == 0 || wanted == is; }

// Conditions that both families have.
void MatchFlow(const pstn_rt_rule& r, const RouteQuery& q, Match& m) {
  m.Ask(Interface(r.iif, kLoopbackIfindex));  // what we send comes from "lo"
  m.Ask(Interface(r.oif, q.oif));
  if ((r.mark_mask | r.mark) != 0)
    m.AskIf((q.known & kRouteKnowsMark) != 0, RouteReason::kMark,
            ((r.mark ^ q.mark) & r.mark_mask) == 0);
  if ((r.flags & PSTN_RU_UID) != 0)
    m.AskIf((q.known & kRouteKnowsUid) != 0, RouteReason::kUid,
            q.uid >= r.uid_first && q.uid <= r.uid_last);
  if (r.proto != 0)
    m.AskIf((q.known & kRouteKnowsProto) != 0, RouteReason::kFlow, r.proto == q.proto);
  if (r.sport_last != 0)
    m.AskIf((q.known & kRouteKnowsSport) != 0, RouteReason::kFlow,
            InRange(q.sport, r.sport_first, r.sport_last));
  if (r.dport_last != 0)
    m.AskIf((q.known & kRouteKnowsDport) != 0, RouteReason::kFlow,
            InRange(q.dport, r.dport_first, r.dport_last));
  if (r.tos != 0) m.Ask(r.tos == (q.tos & kTosBits));
  if ((r.flags & PSTN_RU_UNKNOWN) != 0) m.perhaps = RouteReason::kRule;
  if ((r.flags & PSTN_RU_L3MDEV) != 0) m.perhaps = RouteReason::kL3mdev;
}

Match Matches(const pstn_rt_rule& r, const RouteQuery& q) {
  Match m;
  const bool v4 = r.family == 4;
  if (r.dst_plen > (v4 ? 96u : 0u)) m.Ask(SamePrefix(r.dst, q.dst, r.dst_plen));
  if (r.src_plen > (v4 ? 96u : 0u)) {
    const bool any = IpAt(q.src).IsAny();
    if (!v4 && any && (r.flags & PSTN_RU_FIND_SADDR) != 0) {
      m.perhaps = RouteReason::kSource;
    } else if (v4 && any) {  // the kernel compares with 0.0.0.0
      m.Ask((V4Of(r.src) & static_cast<uint32_t>(~0ull << (128 - r.src_plen))) == 0);
    } else {
      m.Ask(!any && SamePrefix(r.src, q.src, r.src_plen));
    }
  }
  MatchFlow(r, q, m);
  if (!m.yes) m.perhaps = RouteReason::kNone;
  if ((r.flags & PSTN_RU_INVERT) != 0 && m.perhaps == RouteReason::kNone) m.yes = !m.yes;
  return m;
}

// `suppress_prefixlength` and `suppress_ifgroup`: the result doesn't count.
bool Suppressed(const Snapshot& s, const pstn_rt_rule& r, const Found& f) {
  const uint32_t own_plen = r.family == 4 ? f.plen - 96 : f.plen;
  if (r.suppress_plen != PSTN_NONE && own_plen <= r.suppress_plen) return true;
  if (r.suppress_group == PSTN_NONE || f.hop >= PSTN_RT_HOPS) return false;
  const pstn_rt_link* link = FindLink(s.c, s.c.hops[f.hop].ifindex);
  return link != nullptr && link->group == r.suppress_group;
}

Found Act(const Snapshot& s, const pstn_rt_rule& r, const RouteQuery& q, TableFn table,
          uint32_t strict) {
  switch (r.action) {
    case kActTable: {
      const uint32_t idx = LoadRelaxed(r.table) - 1;
      if (idx >= PSTN_RT_TABLES) return {};
      const Found f = table(s, idx, q, strict);
      return f.step == Step::kFound && Suppressed(s, r, f) ? Found{} : f;
    }
    case kActUnreachable:
      return Refused(ENETUNREACH);
    case kActProhibit:
      return Refused(EACCES);
    case kActBlackhole:
      return Refused(EINVAL);
    default:
      return Undecided(RouteReason::kRule);
  }
}

}  // namespace

Found WalkRules(const Snapshot& s, const RouteQuery& q, uint32_t first, uint32_t count,
                TableFn table, uint32_t strict) {
  const uint32_t end = first + count;
  if (end > PSTN_RT_RULES || first > end) return Undecided(RouteReason::kBusy);
  uint32_t steps = 0;
  for (uint32_t i = first; i < end && steps < PSTN_RT_RULES; steps++) {
    const pstn_rt_rule& r = s.c.rules[i];
    const Match m = Matches(r, q);
    i++;
    if (m.perhaps != RouteReason::kNone) return Undecided(m.perhaps);
    if (!m.yes || r.action == kActNop) continue;
    if (r.action == kActGoto) {
      const uint32_t target = LoadRelaxed(r.target);
      if (target != PSTN_NONE && target >= i) i = target;  // only forwards
      continue;
    }
    const Found f = Act(s, r, q, table, strict);
    if (f.step != Step::kMiss) return f;
  }
  return {};
}

}  // namespace postern::routing
