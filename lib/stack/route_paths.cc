// SPDX-License-Identifier: Apache-2.0
// route_paths.cc - a route and a neighbour become the header that packets to a peer get.
#include "stack/route_paths.h"

#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/atomic.h"
#include "stack/route/route.h"

namespace postern::stack {

// Both versions grow with each change: their sum is the same only if both are.
static uint64_t VersionOf(const pstn_routes& tables) {
  return RouteVersion(tables) + NeighbourVersion(tables);
}

bool RoutePaths::IsFresh(const Path& path) {
  return tables_ != nullptr && path.version == VersionOf(*tables_);
}

PathStatus RoutePaths::Find(const pstn_addr& local, const pstn_addr& peer, Path& path, int& error) {
  uint8_t source[16];
  return LookUp(local, peer, IPPROTO_TCP, path, error, source);
}

PathStatus RoutePaths::FindDatagram(pstn_addr& local, const pstn_addr& peer, Path& path,
                                    int& error) {
  uint8_t source[16];
  const PathStatus status = LookUp(local, peer, IPPROTO_UDP, path, error, source);
  if (status == PathStatus::kOk) memcpy(local.ip, source, sizeof local.ip);
  return status;
}

PathStatus RoutePaths::LookUp(const pstn_addr& local, const pstn_addr& peer, uint8_t protocol,
                              Path& path, int& error, uint8_t (&source)[16]) {
  if (tables_ == nullptr) return PathStatus::kWait;
  const uint64_t version = VersionOf(*tables_);
  RouteQuery q;
  memcpy(q.dst, peer.ip, sizeof q.dst);
  memcpy(q.src, local.ip, sizeof q.src);
  q.oif = peer.scope;
  q.proto = protocol;
  q.sport = local.port;
  q.dport = peer.port;
  q.known = kRouteKnowsProto | kRouteKnowsSport | kRouteKnowsDport;
  const RouteAnswer a = RouteLookup(*tables_, q);
  if (a.verdict == RouteVerdict::kRefused) {
    error = a.error;
    return PathStatus::kDead;
  }
  if (a.verdict != RouteVerdict::kUnicast || a.link.reason != RouteReason::kNone) {
    // Undecided, or local by now: the connection was made when it was not. As a route that is gone.
    error = ENETUNREACH;
    return a.reason == RouteReason::kBusy ? PathStatus::kWait : PathStatus::kDead;
  }
  memcpy(source, a.source, sizeof source);
  path.vi = kAreaVis;
  for (uint32_t i = 0; i < kAreaVis; i++) {
    const pstn_vi& vi = *area_.ViAt(i);
    if (LoadRelaxed(vi.state) != kViUnused && vi.ifindex == a.link.vi_ifindex) path.vi = i;
  }
  if (path.vi == kAreaVis) {
    error = ENETUNREACH;
    return PathStatus::kDead;
  }
  path.mtu = a.mtu;  // as good as known, while the neighbour is asked for
  const NeighbourAnswer n = NeighbourOf(*tables_, a.ifindex, a.next_hop);
  switch (n.state) {
    case NeighbourState::kFailed:
      ask_(of_, a.ifindex, a.next_hop);  // it may come back
      error = EHOSTUNREACH;
      return PathStatus::kDead;
    case NeighbourState::kUnknown:
    case NeighbourState::kAsking:
      ask_(of_, a.ifindex, a.next_hop);
      return PathStatus::kWait;
    case NeighbourState::kStale:
      ask_(of_, a.ifindex, a.next_hop);
      break;
    default:
      break;
  }
  memcpy(path.link.destination, n.mac, sizeof n.mac);
  memcpy(path.link.source, a.link.mac, sizeof a.link.mac);
  path.link.vlan = a.link.tags >= 1 ? a.link.vid[a.link.tags - 1u] : wire::kNoVlan;
  path.link.outer_vlan = a.link.tags == 2 ? a.link.vid[0] : wire::kNoVlan;
  path.ttl = a.hop_limit != 0 ? a.hop_limit : 64;
  path.version = version;
  return PathStatus::kOk;
}

}  // namespace postern::stack
