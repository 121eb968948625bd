// routes_neighbours.cc - the neighbours of the shared tables, which change one by one.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "base/atomic.h"
#include "routes_tables.h"
#include "stack/route/route_key.h"

namespace postern::daemon {

RouteTables::NeighChange::NeighChange(RouteTables& tables) : tables_(tables) {
  StoreRelaxed(tables_.map_->neigh_seq, LoadRelaxed(tables_.map_->neigh_seq) + 1);
  std::atomic_thread_fence(std::memory_order_release);  // [W3] as [W2]; neighbour.cc
}

RouteTables::NeighChange::~NeighChange() {
  // [W3]: entries before the even number
  StoreRelease(tables_.map_->neigh_seq, LoadRelaxed(tables_.map_->neigh_seq) + 1);
}

void RouteTables::NeighChange::Clear() {
  pstn_routes& t = *tables_.map_;
  if (t.neigh_count == 0) return;  // to read it would make all its pages
  for (pstn_rt_neigh& n : t.neigh) {
    if (n.ifindex != 0) n = {};
  }
  t.neigh_count = t.neigh_full = 0;
}

void RouteTables::NeighChange::Take(const NeighEntry& entry) {
  const uint32_t at = tables_.PlaceOf(entry.neigh);
  pstn_rt_neigh& place = tables_.map_->neigh[at];
  if (entry.gone) {
    if (place.ifindex != 0) tables_.EraseNeigh(at);
    return;
  }
  if (place.ifindex == 0) {
    if (tables_.map_->neigh_count >= PSTN_RT_NEIGHS / 2) {
      tables_.map_->neigh_full = 1;
      return;
    }
    tables_.map_->neigh_count++;
  }
  place = entry.neigh;
}

bool RouteTables::Find(uint32_t ifindex, const uint8_t ip[16], NeighEntry& out) const {
  pstn_rt_neigh wanted{};
  wanted.ifindex = ifindex;
  memcpy(wanted.ip, ip, sizeof(wanted.ip));
  out = {};
  out.neigh = map_->neigh[PlaceOf(wanted)];
  return out.neigh.ifindex != 0;
}

// Where it is, or where it would be put.
uint32_t RouteTables::PlaceOf(const pstn_rt_neigh& n) const {
  constexpr uint32_t kMask = PSTN_RT_NEIGHS - 1;
  uint32_t at = NeighHash(n.ifindex, KeyOf(n.ip)) & kMask;
  while (map_->neigh[at].ifindex != 0 &&
         (map_->neigh[at].ifindex != n.ifindex || memcmp(map_->neigh[at].ip, n.ip, 16) != 0))
    at = (at + 1) & kMask;
  return at;
}

// Those behind the gap move up if they would otherwise not be found any more.
void RouteTables::EraseNeigh(uint32_t at) {
  constexpr uint32_t kMask = PSTN_RT_NEIGHS - 1;
  map_->neigh[at] = {};
  map_->neigh_count--;
  for (uint32_t i = (at + 1) & kMask; map_->neigh[i].ifindex != 0; i = (i + 1) & kMask) {
    const pstn_rt_neigh moved = map_->neigh[i];
    map_->neigh[i] = {};
    map_->neigh[PlaceOf(moved)] = moved;
  }
}

}  // namespace postern::daemon
