// SPDX-License-Identifier: Apache-2.0
// route_source6.cc - the source address for an IPv6 destination (RFC 6724, section 5).
//
// The rules in the kernel's order, which has its own places for 5.5, 7 and 8. Of two addresses that
// are equal by all of them the kernel takes the one that it meets first: inside an interface that
// order is ours too; between two interfaces it is not known, and the answer is kSource.
#include "stack/route/route_read.h"

namespace postern::routing {
namespace {

constexpr uint32_t kTemporary = 1, kOptimistic = 4, kHomeAddress = 0x10, kDeprecated = 0x20,
                   kTentative = 0x40;  // IFA_F_*
constexpr uint32_t kScopeLinkLocal = 2, kScopeSite = 5, kScopeGlobal = 14;

struct Kind {
  uint32_t scope;
  bool always_preferred;  // deprecated or not: loopback, mapped, compatible, reserved
  bool multicast;
};

Kind KindOf(const uint8_t ip[16]) {
  if (ip[0] == 0xff) return {ip[1] & 15u, false, true};
  if (ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80) return {kScopeLinkLocal, false, false};
  if (ip[0] == 0xfe && (ip[1] & 0xc0) == 0xc0) return {kScopeSite, false, false};
  const RouteKey k = KeyOf(ip);
  if (k.hi != 0) return {kScopeGlobal, (ip[0] >> 5) == 0, false};
  //= rfc6724#3.4
  //# the loopback address (::1) is treated as having link-local scope
  if (k.lo == 1) return {kScopeLinkLocal, true, false};
  return {kScopeGlobal, true, false};
}

struct Target {
  const uint8_t* ip;
  uint32_t ifindex;
  uint32_t scope, label;
};

bool IsOrchid(const uint8_t ip[16]) {  // 2001:10::/28
  return ip[0] == 0x20 && ip[1] == 0x01 && ip[2] == 0 && (ip[3] & 0xf0) == 0x10;
}

uint32_t LabelOf(const pstn_rt_copy& c, const uint8_t ip[16], uint32_t ifindex) {
  const uint32_t count = LoadRelaxed(c.label_count);
  for (uint32_t i = 0; i < count && i < PSTN_RT_LABELS; i++) {
    const pstn_rt_label& l = c.labels[i];
    if ((l.ifindex == 0 || l.ifindex == ifindex) && SamePrefix(l.prefix, ip, l.plen))
      return l.label;
  }
  return PSTN_NONE;
}

uint32_t CommonBits(const uint8_t a[16], const uint8_t b[16]) {
  const RouteKey x = KeyOf(a), y = KeyOf(b);
  if (x.hi != y.hi) return static_cast<uint32_t>(std::countl_zero(x.hi ^ y.hi));
  return 64 + static_cast<uint32_t>(std::countl_zero(x.lo ^ y.lo));
}

// How well a candidate does by each rule, the first that differs decides; more is better.
struct Score {
  int by[10];
};

int ByScope(const Target& to, const Kind& kind) {
  const int scope = static_cast<int>(kind.scope);
  return kind.scope >= to.scope ? -scope : scope - 128;
}

Score ScoreOf(const pstn_rt_copy& c, const Target& to, const pstn_rt_addr& a,
              const pstn_rt_link& link) {
  const Kind kind = KindOf(a.ip);
  const bool optimistic_ok = (link.conf & PSTN_LC_OPTIMISTIC) != 0;
  const uint32_t avoid = kDeprecated | (optimistic_ok ? 0 : kOptimistic);
  const uint32_t bits = CommonBits(a.ip, to.ip);
  const bool temporary = (a.flags & kTemporary) != 0;
  return {{
      memcmp(a.ip, to.ip, 16) == 0 ? 1 : 0,                     // 1
      ByScope(to, kind),                                        // 2
      kind.always_preferred || (a.flags & avoid) == 0 ? 1 : 0,  // 3
      (a.flags & kHomeAddress) != 0 ? 1 : 0,                    // 4
      to.ifindex == 0 || to.ifindex == link.ifindex ? 1 : 0,    // 5
      LabelOf(c, a.ip, link.ifindex) == to.label ? 1 : 0,       // 6
      temporary == (link.use_tempaddr >= 2) ? 1 : 0,            // 7
      IsOrchid(a.ip) == IsOrchid(to.ip) ? 1 : 0,                // RFC 4843
      static_cast<int>(bits < a.plen ? bits : a.plen),          // 8
      (a.flags & kOptimistic) != 0 ? 0 : 1,
  }};
}

int Compare(const Score& a, const Score& b) {
  for (size_t i = 0; i < sizeof a.by / sizeof a.by[0]; i++) {
    if (a.by[i] != b.by[i]) return a.by[i] < b.by[i] ? -1 : 1;
  }
  return 0;
}

struct Best {
  const pstn_rt_addr* addr = nullptr;
  uint32_t ifindex = 0;
  bool tie = false;  // with one of another interface
  Score score{};
};

void TryLink(const pstn_rt_copy& c, const Target& to, const pstn_rt_link& link, Best& best) {
  const uint32_t first = LoadRelaxed(link.addr6_first), count = LoadRelaxed(link.addr6_count);
  if (first > PSTN_RT_ADDRS || count > PSTN_RT_ADDRS - first) return;
  for (uint32_t i = first; i < first + count; i++) {
    const pstn_rt_addr& a = c.addrs[i];
    if ((a.flags & (kTentative | kOptimistic)) == kTentative) continue;
    const Score score = ScoreOf(c, to, a, link);
    const int better = best.addr == nullptr ? 1 : Compare(score, best.score);
    if (better == 0 && link.ifindex != best.ifindex) best.tie = true;
    if (better <= 0) continue;
    best = {&a, link.ifindex, false, score};
  }
}

}  // namespace

RouteReason SourceIpv6(const Snapshot& s, uint32_t ifindex, const uint8_t dst[16],
                       uint8_t source[16]) {
  memset(source, 0, 16);
  const pstn_rt_link* out = FindLink(s.c, ifindex);
  if (out == nullptr) return RouteReason::kLink;
  const Kind kind = KindOf(dst);
  const Target to = {dst, ifindex, kind.scope, LabelOf(s.c, dst, ifindex)};
  Best best;
  //= rfc6724#4
  //# For multicast and link-local destination addresses, the set of candidate source addresses
  //# MUST only include addresses assigned to interfaces belonging to the same link
  if (kind.multicast || kind.scope <= kScopeLinkLocal || (out->conf & PSTN_LC_OIF_ADDRS) != 0) {
    TryLink(s.c, to, *out, best);
  } else {
    const uint32_t count = LoadRelaxed(s.c.link_count);
    for (uint32_t i = 0; i < count && i < PSTN_RT_LINKS; i++) {
      if ((s.c.links[i].conf & PSTN_LC_L3SLAVE) == 0) TryLink(s.c, to, s.c.links[i], best);
    }
  }
  if (best.addr == nullptr) return RouteReason::kNone;
  memcpy(source, best.addr->ip, 16);
  return best.tie ? RouteReason::kSource : RouteReason::kNone;
}

}  // namespace postern::routing
