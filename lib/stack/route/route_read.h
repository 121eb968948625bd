// SPDX-License-Identifier: Apache-2.0
// route_read.h - the parts of a look-up: tables, rules, next hops, source addresses. Inside only.
//
// All of it reads one copy, which posternd may begin to overwrite at any moment: what comes out is
// used only if the stamp is still right afterwards (route.cc). Until then it may be nonsense, so
// every index is loaded once and checked, and every loop has an end.
#pragma once
#include <cstdint>

#include "abi/routes_abi.h"
#include "base/atomic.h"
#include "stack/route/route.h"
#include "stack/route/route_key.h"

namespace postern::routing {

// Numbers of the kernel's interface; linux/rtnetlink.h, fib_rules.h and others can't be included
// beside libc's headers everywhere.
enum RouteType : uint8_t {
  kTypeUnicast = 1,
  kTypeLocal = 2,
  kTypeBroadcast = 3,
  kTypeAnycast = 4,
  kTypeMulticast = 5,
  kTypeBlackhole = 6,
  kTypeUnreachable = 7,
  kTypeProhibit = 8,
  kTypeThrow = 9,
};
inline constexpr uint32_t kActTable = 1, kActGoto = 2, kActNop = 3, kActBlackhole = 6,
                          kActUnreachable = 7, kActProhibit = 8;
inline constexpr uint32_t kScopeLink = 253, kScopeHost = 254;
inline constexpr uint32_t kIffUp = 1, kIffLoopback = 8, kIffNoarp = 0x80, kIffLowerUp = 1u << 16;
inline constexpr uint32_t kLoopbackIfindex = 1;
inline constexpr uint8_t kTosBits = 0x1c;  // those that all kernels take (route.h, kTos)

struct Snapshot {
  const pstn_routes& all;
  const pstn_rt_copy& c;
  uint32_t flags;
};

enum class Step : uint8_t {
  kFound,
  kMiss,       // nothing here, or `throw`: the next rule
  kRefused,    // `error`
  kUndecided,  // `reason`
};

struct Found {
  Step step = Step::kMiss;
  RouteReason reason = RouteReason::kNone;
  uint16_t error = 0;
  uint32_t plen = 0;
  uint32_t hop = PSTN_NONE;  // index of the one that matched; several: see ChooseHop()
  const pstn_rt_route* route = nullptr;
};

inline Found Refused(uint16_t error) {
  Found f;
  f.step = Step::kRefused;
  f.error = error;
  return f;
}
inline Found Undecided(RouteReason reason) {
  Found f;
  f.step = Step::kUndecided;
  f.reason = reason;
  return f;
}

// ---- route_read.cc
const pstn_rt_link* FindLink(const pstn_rt_copy& c, uint32_t ifindex);
inline const pstn_rt_route* RouteAt(const pstn_rt_copy& c, uint32_t idx_plus_1) {
  return idx_plus_1 - 1 < PSTN_RT_ROUTES ? &c.routes[idx_plus_1 - 1] : nullptr;
}
// First route of a prefix, or null. `key` is masked.
const pstn_rt_route* FindPrefix(const pstn_rt_copy& c, uint32_t table, uint32_t plen,
                                const RouteKey& key);
// The hops of a route, checked.
struct Hops {
  const pstn_rt_hop* at;
  uint32_t first, count;
};
Hops HopsOf(const pstn_rt_copy& c, const pstn_rt_route& r);
// The errno of a route of this type; 0: none; EAGAIN: throw.
uint16_t ErrorOf(uint8_t type);

// Longest first: calls fn(route chain, plen) until it returns true. `top`: longest to be tried.
template <typename Fn>
void EachPrefix(const pstn_rt_copy& c, uint32_t table, const RouteKey& key, Fn fn) {
  for (int word = 2; word >= 0; word--) {
    uint64_t bits = LoadRelaxed(c.tables[table].plens[word]);
    while (bits != 0) {
      const auto bit = static_cast<uint32_t>(63 - std::countl_zero(bits));
      bits &= ~(1ull << bit);
      const uint32_t plen = static_cast<uint32_t>(word) * 64 + bit;
      const pstn_rt_route* chain = FindPrefix(c, table, plen, Masked(key, plen));
      if (chain != nullptr && fn(*chain, plen)) return;
    }
  }
}

// ---- route_rules.cc
// Walks the family's rules; `table` looks into one table (its index). Stops at what is not kMiss.
using TableFn = Found (*)(const Snapshot& s, uint32_t table, const RouteQuery& q, uint32_t strict);
Found WalkRules(const Snapshot& s, const RouteQuery& q, uint32_t first, uint32_t count,
                TableFn table, uint32_t strict);

// ---- route_ipv4.cc, route_ipv6.cc: fill in the answer; what comes after the routes is route.cc's.
void LookupIpv4(const Snapshot& s, const RouteQuery& q, RouteAnswer& a);
void LookupIpv6(const Snapshot& s, const RouteQuery& q, RouteAnswer& a);
// The answer of an error or of indecision.
void Refuse(RouteAnswer& a, const Found& f);
// What a found route says by itself: table, metric, metrics, MTU.
void TakeRoute(const Snapshot& s, const Found& f, RouteAnswer& a);

// One of the usable hops by hash and weight; PSTN_NONE: there is none. `usable` by index.
uint32_t ChooseHop(const Hops& hops, const uint8_t* usable, uint32_t hash);
inline constexpr uint32_t kHopsMax = 256;  // of one route
uint32_t FlowHash(const RouteQuery& q);

// ---- route_source6.cc (RFC 6724, as the kernel does it)
// kNone, kSource, or, with `source` all zero, nothing fits.
RouteReason SourceIpv6(const Snapshot& s, uint32_t ifindex, const uint8_t dst[16],
                       uint8_t source[16]);

// ---- route_link.cc
LinkAnswer LinkIn(const pstn_rt_copy& c, uint32_t ifindex);

}  // namespace postern::routing
