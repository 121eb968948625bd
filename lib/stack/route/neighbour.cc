// SPDX-License-Identifier: Apache-2.0
// neighbour.cc - link-layer addresses: computed for multicast and broadcast, else as the kernel has
// found them.
#include "stack/route/route_read.h"

namespace postern {
namespace {

using namespace routing;  // NOLINT(google-build-using-namespace): its inner side

constexpr int kEntryRetries = 1000;

// NUD_* of linux/neighbour.h
constexpr uint16_t kIncomplete = 0x01, kReachable = 0x02, kStaleState = 0x04, kDelay = 0x08,
                   kProbe = 0x10, kFailedState = 0x20, kNoarp = 0x40, kPermanent = 0x80;

NeighbourAnswer AnswerOf(const pstn_rt_neigh& n) {
  NeighbourAnswer a;
  const uint16_t state = LoadRelaxed(n.state);
  const bool has_mac = (n.flags & PSTN_NB_MAC) != 0;
  memcpy(a.mac, n.mac, sizeof a.mac);
  if (state == kFailedState) {
    a.state = NeighbourState::kFailed;
  } else if (state == kIncomplete) {
    a.state = NeighbourState::kAsking;
  } else if (!has_mac) {
    a.state = NeighbourState::kUnknown;
  } else if ((state & (kReachable | kNoarp | kPermanent)) != 0) {
    a.state = NeighbourState::kGood;
  } else if ((state & (kStaleState | kDelay | kProbe)) != 0) {
    // The kernel is at it already in DELAY and PROBE, and asking once more changes nothing.
    a.state = (state & kStaleState) != 0 ? NeighbourState::kStale : NeighbourState::kGood;
  }
  return a;
}

NeighbourAnswer FindNeighbour(const pstn_routes& t, uint32_t ifindex, const RouteKey& key) {
  const uint32_t mask = PSTN_RT_NEIGHS - 1;
  uint32_t at = NeighHash(ifindex, key) & mask;
  for (uint32_t i = 0; i < PSTN_RT_NEIGHS; i++, at = (at + 1) & mask) {
    const pstn_rt_neigh& n = t.neigh[at];
    const uint32_t there = LoadRelaxed(n.ifindex);
    if (there == 0) break;
    if (there == ifindex && KeyOf(n.ip) == key) return AnswerOf(n);
  }
  return {};
}

// RFC 1112, 6.4 and RFC 2464, 7; the limited broadcast.
bool Computed(const uint8_t ip[16], NeighbourAnswer& a) {
  a.state = NeighbourState::kNotNeeded;
  if (IpAt(ip).IsV4()) {
    const uint32_t v4 = V4Of(ip);
    if (v4 == 0xffffffff) {
      memset(a.mac, 0xff, 6);
      return true;
    }
    const uint8_t mac[6] = {0x01, 0x00, 0x5e, static_cast<uint8_t>(ip[13] & 0x7fu), ip[14], ip[15]};
    memcpy(a.mac, mac, 6);
    return v4 >> 28 == 14;
  }
  const uint8_t mac[6] = {0x33, 0x33, ip[12], ip[13], ip[14], ip[15]};
  memcpy(a.mac, mac, 6);
  return ip[0] == 0xff;
}

}  // namespace

uint64_t NeighbourVersion(const pstn_routes& tables) { return LoadRelaxed(tables.neigh_seq); }

NeighbourAnswer NeighbourOf(const pstn_routes& tables, uint32_t ifindex, const uint8_t ip[16]) {
  NeighbourAnswer a;
  if (Computed(ip, a)) return a;
  const RouteKey key = KeyOf(ip);
  for (int i = 0; i < kEntryRetries; i++) {
    const uint64_t before = LoadAcquire(tables.neigh_seq);  // [W3]
    if ((before & 1u) != 0) {
      CpuRelax();
      continue;
    }
    a = FindNeighbour(tables, ifindex, key);
    FullFence();  // [W3] what was loaded precedes the second look
    if (LoadRelaxed(tables.neigh_seq) == before) return a;
  }
  return {};  // unknown: to ask once more is harmless
}

}  // namespace postern
