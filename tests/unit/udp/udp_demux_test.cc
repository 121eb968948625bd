// SPDX-License-Identifier: Apache-2.0
// udp_demux_test.cc - whose a datagram is: connected, bound, wildcard, groups, multicast,
// broadcast.
#include <map>
#include <set>

#include "../kit/catch.h"
#include "udp_world.h"

namespace postern::udp {
namespace {

uint32_t Winner(World& w, const DatagramIn& in) { return Lookup(w.ports, in, w); }

TEST_CASE("udp demux: connected before bound before wildcard, however they were made") {
  const bool reversed = GENERATE(false, true);
  World w;
  uint32_t any = kNone, bound = kNone, connected = kNone;
  for (int step = 0; step < 3; step++) {
    switch (reversed ? 2 - step : step) {
      case 0:
        any = w.Bound({}, 53);
        break;
      case 1:
        bound = w.Bound(kHere, 53);
        break;
      default:
        connected = w.Bound(kHere, 53);
        REQUIRE(Connect(w.ports, connected, kThere, 9, w) == 0);
    }
  }
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == connected);
  CHECK(Winner(w, World::From(kThere, 10, kHere, 53)) == bound);
  CHECK(Winner(w, World::From(kElsewhere, 9, kHere, 53)) == bound);
  CHECK(Winner(w, World::From(kThere, 9, kElsewhere, 53)) == any);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 54)) == kNone);
  Disconnect(w.ports, connected, w);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) != kNone);
  Close(w.ports, connected, w);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == bound);
  Close(w.ports, bound, w);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == any);
  Close(w.ports, any, w);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == kNone);
}

TEST_CASE("udp demux: a connected endpoint hears only its peer") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  REQUIRE(Connect(w.ports, e, kThere, 9, w) == 0);
  CHECK(w.Arrive(World::From(kThere, 9, kHere, 53)) == Verdict::kDelivered);
  CHECK(w.Arrive(World::From(kThere, 8, kHere, 53)) == Verdict::kNoPort);
  CHECK(w.Arrive(World::From(kElsewhere, 9, kHere, 53)) == Verdict::kNoPort);
  CHECK(w.Arrive(World::From(kThere, 9, kElsewhere, 53)) == Verdict::kNoPort);
}

TEST_CASE("udp demux: devices") {
  World w;
  const uint32_t any = w.Bound({}, 53), device = w.Bound({}, 53);
  w.endpoints[device].ifindex = 7;
  DatagramIn in = World::From(kThere, 9, kHere, 53);
  CHECK(Winner(w, in) == device);
  in.ifindex = 8;
  CHECK(Winner(w, in) == any);
  const uint32_t exact = w.Bound(kHere, 53);  // an address counts for more than a device
  in.ifindex = 7;
  CHECK(Winner(w, in) == exact);
}

TEST_CASE("udp demux: who was bound last, among equals (SO_REUSEADDR)") {
  World w;
  w.Bound({}, 53);
  const uint32_t last = w.Bound({}, 53);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == last);
}

TEST_CASE("udp demux: IPv6 endpoints hear IPv4 unless they are for IPv6 only") {
  World w;
  const uint32_t six = w.Bound({}, 53, AF_INET6);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == six);
  CHECK(Winner(w, World::From(kThere6, 9, kHere6, 53)) == six);
  const uint32_t four = w.Bound({}, 53, AF_INET);
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == four);
  CHECK(Winner(w, World::From(kThere6, 9, kHere6, 53)) == six);
  Close(w.ports, four, w);
  w.endpoints[six].flags |= kV6Only;
  CHECK(Winner(w, World::From(kThere, 9, kHere, 53)) == kNone);
}

TEST_CASE("udp demux: a reuse-port group shares flows evenly, and each flow stays where it is") {
  World w;
  std::map<uint32_t, int> share;
  for (int i = 0; i < 4; i++) share[w.Group(53)] = 0;
  for (uint16_t port = 1; port <= 4000; port++) {
    const DatagramIn in = World::From(kThere, port, kHere, 53);
    const uint32_t winner = Winner(w, in);
    REQUIRE(share.count(winner) == 1);
    share[winner]++;
    REQUIRE(Winner(w, in) == winner);
  }
  for (const auto& [idx, count] : share) {
    CHECK(count > 850);
    CHECK(count < 1150);
  }
}

TEST_CASE("udp demux: who is not of the group, or of another user, gets nothing of it") {
  World w;
  std::set<uint32_t> group = {w.Group(53), w.Group(53)};
  const uint32_t stranger = w.Open();
  w.endpoints[stranger].flags |= kReusePort;
  w.endpoints[stranger].uid = 2000;
  Bind(w.ports, stranger, {}, 53, w);
  const uint32_t own = *group.begin();
  REQUIRE(Connect(w.ports, own, kElsewhere, 5, w) == 0);  // connected: not of the group any more
  std::set<uint32_t> seen;
  for (uint16_t port = 1; port <= 500; port++)
    seen.insert(Winner(w, World::From(kThere, port, kHere, 53)));
  // (The kernel refuses to bind two users to one port; here it must be no mixture.)
  CHECK(seen == std::set<uint32_t>{stranger});
  Close(w.ports, stranger, w);
  CHECK(Winner(w, World::From(kThere, 1, kHere, 53)) == *group.rbegin());
}

TEST_CASE("udp demux: thousands of connected endpoints with one port are found by their names") {
  World w(3000);
  std::vector<uint32_t> all;
  for (uint16_t port = 1; port <= 2500; port++) {
    all.push_back(w.Bound(kHere, 443));
    REQUIRE(Connect(w.ports, all.back(), kThere, port, w) == 0);
  }
  for (uint16_t port = 1; port <= 2500; port++)
    REQUIRE(Winner(w, World::From(kThere, port, kHere, 443)) == all[port - 1u]);
  uint32_t longest = 0;
  for (uint32_t head : w.ports.by_tuple) {
    uint32_t length = 0;
    for (; head != kNone; head = w.endpoints[head].tuple_next) length++;
    longest = std::max(longest, length);
  }
  CHECK(longest < 40);  // 10 on average
}

DatagramIn ToGroup(uint32_t ifindex = 7, const IpAddress& source = kThere) {
  DatagramIn in = World::From(source, 9, kGroup, 5353);
  in.cast = Cast::kMulticast;
  in.ifindex = ifindex;
  return in;
}

TEST_CASE("udp multicast: every endpoint that wants it gets it") {
  World w;
  const uint32_t member = w.Bound({}, 5353), on_group = w.Bound(kGroup, 5353);
  const uint32_t all = w.Bound({}, 5353), strict = w.Bound({}, 5353);
  const uint32_t other_port = w.Bound({}, 5354), unicast = w.Bound(kHere, 5353);
  REQUIRE(Join(member, kGroup, 7, w) == 0);
  w.endpoints[strict].flags &= ~kMulticastAll;
  CHECK(w.Arrive(ToGroup(), "hello") == Verdict::kDelivered);
  CHECK(w.All(member) == "hello|");
  CHECK(w.All(on_group) == "hello|");
  CHECK(w.All(all) == "hello|");  // IP_MULTICAST_ALL
  CHECK(w.All(strict).empty());
  CHECK(w.All(other_port).empty());
  CHECK(w.All(unicast).empty());
  CHECK(w.Balanced());
}

TEST_CASE("udp multicast: memberships are of an interface") {
  World w;
  const uint32_t e = w.Bound({}, 5353);
  w.endpoints[e].flags &= ~kMulticastAll;
  REQUIRE(Join(e, kGroup, 7, w) == 0);
  CHECK(w.Arrive(ToGroup(8)) == Verdict::kNoPort);
  CHECK(w.Arrive(ToGroup(7)) == Verdict::kDelivered);
  CHECK(Join(e, kGroup, 7, w) == -EADDRINUSE);
  CHECK(Leave(e, kGroup, 8, w) == -EADDRNOTAVAIL);
  CHECK(Leave(e, kGroup, 7, w) == 0);
  CHECK(w.groups == 0);
  CHECK(w.Arrive(ToGroup(7)) == Verdict::kNoPort);
  CHECK(Join(e, kHere, 7, w) == -EINVAL);
}

TEST_CASE("udp multicast: sources") {
  World w;
  const uint32_t e = w.Bound({}, 5353);
  const auto change = [&](const IpAddress& source, SourceOp op) {
    return ChangeSource(e, kGroup, source, 7, op, w);
  };
  const auto hears = [&](const IpAddress& source) {
    return w.Arrive(ToGroup(7, source)) == Verdict::kDelivered;
  };
  SECTION("only from these") {
    CHECK(change(kThere, SourceOp::kAdd) == 0);
    CHECK(change(kThere, SourceOp::kAdd) == -EADDRNOTAVAIL);
    CHECK(change(kThere, SourceOp::kBlock) == -EINVAL);
    CHECK(hears(kThere));
    CHECK_FALSE(hears(kElsewhere));
    CHECK(change(kElsewhere, SourceOp::kAdd) == 0);
    CHECK(hears(kElsewhere));
    CHECK(change(kThere, SourceOp::kRemove) == 0);
    CHECK_FALSE(hears(kThere));
    CHECK(change(kElsewhere, SourceOp::kRemove) == 0);  // the last one: left
    CHECK(w.groups == 0);
    CHECK(change(kElsewhere, SourceOp::kRemove) == -EINVAL);
  }
  SECTION("from all but these") {
    CHECK(change(kThere, SourceOp::kBlock) == -EINVAL);  // not joined
    REQUIRE(Join(e, kGroup, 7, w) == 0);
    CHECK(change(kThere, SourceOp::kBlock) == 0);
    CHECK_FALSE(hears(kThere));
    CHECK(hears(kElsewhere));
    CHECK(change(kElsewhere, SourceOp::kUnblock) == -EADDRNOTAVAIL);
    CHECK(change(kThere, SourceOp::kUnblock) == 0);
    CHECK(hears(kThere));
  }
  SECTION("limits") {
    for (uint8_t i = 0; i < kSourcesMax; i++)
      CHECK(change(IpAddress::V4(10, 1, 0, i), SourceOp::kAdd) == 0);
    CHECK(change(kThere, SourceOp::kAdd) == -ENOBUFS);
    for (uint8_t i = 1; i < kMembersMax; i++)
      CHECK(Join(e, IpAddress::V4(239, 9, 9, i), 7, w) == 0);
    CHECK(Join(e, IpAddress::V4(239, 9, 9, 99), 7, w) == -ENOBUFS);
  }
  Close(w.ports, e, w);
  CHECK(w.groups == 0);
  CHECK(w.members.used == 0);
}

TEST_CASE("udp broadcast: to everyone on the port, whatever they have joined") {
  World w;
  const uint32_t a = w.Bound({}, 67), b = w.Bound({}, 67), here = w.Bound(kHere, 67);
  const uint32_t exact = w.Bound(kBroadcast, 67), peer = w.Bound({}, 67);
  w.endpoints[a].flags &= ~kMulticastAll;
  REQUIRE(Connect(w.ports, peer, kElsewhere, 68, w) == 0);
  DatagramIn in = World::From(kThere, 68, kBroadcast, 67);
  in.cast = Cast::kBroadcast;
  CHECK(w.Arrive(in, "who?") == Verdict::kDelivered);
  CHECK(w.All(a) == "who?|");
  CHECK(w.All(b) == "who?|");
  CHECK(w.All(exact) == "who?|");
  CHECK(w.All(here).empty());
  CHECK(w.All(peer).empty());
}

}  // namespace
}  // namespace postern::udp
