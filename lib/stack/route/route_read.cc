// SPDX-License-Identifier: Apache-2.0
// route_read.cc - prefixes, links and hops in a copy of the tables.
#include "stack/route/route_read.h"

#include <cerrno>

namespace postern::routing {

const pstn_rt_link* FindLink(const pstn_rt_copy& c, uint32_t ifindex) {
  uint32_t low = 0, high = LoadRelaxed(c.link_count);
  if (high > PSTN_RT_LINKS) return nullptr;
  while (low < high) {
    const uint32_t mid = (low + high) / 2;
    const uint32_t there = LoadRelaxed(c.links[mid].ifindex);
    if (there == ifindex) return &c.links[mid];
    if (there < ifindex) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return nullptr;
}

const pstn_rt_route* FindPrefix(const pstn_rt_copy& c, uint32_t table, uint32_t plen,
                                const RouteKey& key) {
  const uint32_t bucket = RouteHash(table, plen, key) & LoadRelaxed(c.bucket_mask);
  if (bucket >= PSTN_RT_BUCKETS) return nullptr;
  const pstn_rt_route* r = RouteAt(c, LoadRelaxed(c.buckets[bucket]));
  for (uint32_t steps = 0; r != nullptr && steps < PSTN_RT_ROUTES; steps++) {
    if (r->table == table && r->plen == plen && KeyOf(r->dst) == key) return r;
    r = RouteAt(c, LoadRelaxed(r->hash_next));
  }
  return nullptr;
}

Hops HopsOf(const pstn_rt_copy& c, const pstn_rt_route& r) {
  const uint32_t first = LoadRelaxed(r.hop_first), count = LoadRelaxed(r.hop_count);
  if (first > PSTN_RT_HOPS || count > kHopsMax || first + count > PSTN_RT_HOPS)
    return {c.hops, 0, 0};
  return {c.hops + first, first, count};
}

uint16_t ErrorOf(uint8_t type) {
  switch (type) {
    case kTypeUnicast:
    case kTypeLocal:
    case kTypeBroadcast:
    case kTypeAnycast:
    case kTypeMulticast:
      return 0;
    case kTypeUnreachable:
      return EHOSTUNREACH;
    case kTypeProhibit:
      return EACCES;
    case kTypeThrow:
      return EAGAIN;
    default:
      return EINVAL;  // blackhole, nat, xresolve
  }
}

void Refuse(RouteAnswer& a, const Found& f) {
  if (f.step == Step::kUndecided) {
    a.routes = RouteVerdict::kUndecided;
    a.reason = f.reason;
    return;
  }
  a.routes = RouteVerdict::kRefused;
  a.reason = RouteReason::kNone;
  a.error = f.step == Step::kRefused ? f.error : static_cast<uint16_t>(ENETUNREACH);
}

namespace {

// The places of RTAX_*.
enum {
  kLock = 1,
  kMtu,
  kWindow,
  kRtt,
  kRttvar,
  kSsthresh,
  kCwnd,
  kAdvmss,
  kReordering,
  kHoplimit,
  kInitcwnd,
  kFeatures,
  kRtoMin,
  kInitrwnd,
  kQuickack,
  kCcAlgo,
  kNoCookie
};

void TakeMetrics(const pstn_rt_metrics& m, RouteAnswer& a) {
  RouteMetrics& to = a.metrics;
  to.lock = m.value[kLock];
  to.window = m.value[kWindow];
  to.rtt_ms = m.value[kRtt] / 8;  // the kernel keeps eighths
  to.rttvar_ms = m.value[kRttvar] / 4;
  to.ssthresh = m.value[kSsthresh];
  to.cwnd = m.value[kCwnd];
  to.advmss = m.value[kAdvmss];
  to.reordering = m.value[kReordering];
  to.initcwnd = m.value[kInitcwnd];
  to.features = m.value[kFeatures];
  to.rto_min_ms = m.value[kRtoMin];
  to.initrwnd = m.value[kInitrwnd];
  to.quickack = m.value[kQuickack];
  to.fastopen_no_cookie = m.value[kNoCookie];
  memcpy(to.congestion, m.congestion, sizeof to.congestion);
  to.congestion[sizeof to.congestion - 1] = 0;
  a.mtu = m.value[kMtu];
  a.mtu_locked = (to.lock >> kMtu & 1u) != 0 ? 1 : 0;
  a.hop_limit = m.value[kHoplimit] <= 255 ? static_cast<uint8_t>(m.value[kHoplimit]) : 0;
}

}  // namespace

void TakeRoute(const Snapshot& s, const Found& f, RouteAnswer& a) {
  const pstn_rt_route& r = *f.route;
  const uint32_t table = LoadRelaxed(r.table), metrics = LoadRelaxed(r.metrics);
  a.table = table < PSTN_RT_TABLES ? s.c.tables[table].id : 0;
  a.metric = r.metric;
  a.reason = RouteReason::kNone;
  if (metrics - 1 < PSTN_RT_METRICS) TakeMetrics(s.c.metrics[metrics - 1], a);
}

uint32_t FlowHash(const RouteQuery& q) {
  if (q.hash != 0) return q.hash;
  const RouteKey dst = KeyOf(q.dst), src = KeyOf(q.src);
  uint64_t h = MixBits(dst.hi ^ MixBits(dst.lo ^ MixBits(src.hi ^ MixBits(src.lo))));
  h ^= static_cast<uint64_t>(q.proto) << 32 | static_cast<uint64_t>(q.sport) << 16 | q.dport;
  return static_cast<uint32_t>(MixBits(h));
}

uint32_t ChooseHop(const Hops& hops, const uint8_t* usable, uint32_t hash) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < hops.count; i++) {
    if (usable[i] != 0) sum += hops.at[i].weight;
  }
  if (sum == 0) return PSTN_NONE;
  uint64_t left = hash * sum >> 32;  // 0 .. sum - 1
  for (uint32_t i = 0; i < hops.count; i++) {
    if (usable[i] == 0) continue;
    if (left < hops.at[i].weight) return hops.first + i;
    left -= hops.at[i].weight;
  }
  return PSTN_NONE;
}

}  // namespace postern::routing
