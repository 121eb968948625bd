// SPDX-License-Identifier: Apache-2.0
// engine_ports_test.cc - ports that connections are made from: which one, and when one may go.
#include <initializer_list>
#include <set>

#include "engine_world.h"
#include "stack/source_ports.h"

namespace postern::test {

using namespace stack;  // NOLINT(google-build-using-namespace): what is tested

namespace {

SourcePort Kept(World& w, uint16_t port) { return {port, 1, w.a.At(port), 0, 0, 5}; }

bool IsUsed(World& w, uint16_t port, TimeWait time_wait) {
  UsedPorts used;
  FindUsedPorts(w.a.state(), time_wait, used);
  return used.Has(port);
}

// From a port of the stack's own; 0: it has none that is free.
uint16_t ConnectTo(World& w, const pstn_addr& to, PlainEnd** end = nullptr,
                   PortWish wish = PortWish::kAny) {
  pstn_addr from = w.a.At(0);
  if (!TakeSourcePort(*w.a.engine, 0, from, to, wish, w.now)) return 0;
  PlainEnd& e = w.a.Connect(from, to);
  REQUIRE(e.conn != PSTN_NONE);
  if (end != nullptr) *end = &e;
  return from.port;
}

}  // namespace

TEST_CASE("source ports: one for each connection to a peer, and the same for another peer") {
  World w;
  w.Listen(80);
  w.Listen(81);
  stack::WireState& s = w.a.state();
  CHECK(ConnectTo(w, w.b.At(80)) == 0);
  for (uint16_t port = 40001; port <= 40003; port++) REQUIRE(AddSourcePort(s, Kept(w, port)));
  for (const uint16_t server : {uint16_t{80}, uint16_t{81}}) {
    std::set<uint16_t> had;
    for (int i = 0; i < 3; i++) had.insert(ConnectTo(w, w.b.At(server)));
    CHECK(had == std::set<uint16_t>{40001, 40002, 40003});
    CHECK(ConnectTo(w, w.b.At(server)) == 0);
  }
  w.Settle();
  CHECK(w.b.accepted[80].size() == 3);
  CHECK(w.b.accepted[81].size() == 3);
}

TEST_CASE("source ports: those of the address, and of the VI, that the way there has") {
  World w;
  stack::WireState& s = w.a.state();
  SourcePort others = Kept(w, 40001);
  others.local.ip[15] ^= 1;
  REQUIRE(AddSourcePort(s, others));
  pstn_addr from = w.a.At(0);
  CHECK_FALSE(TakeSourcePort(*w.a.engine, 0, from, w.b.At(80), PortWish::kAny, w.now));
  REQUIRE(AddSourcePort(s, Kept(w, 40002)));
  CHECK_FALSE(TakeSourcePort(*w.a.engine, 1, from, w.b.At(80), PortWish::kAny, w.now));
  CHECK(TakeSourcePort(*w.a.engine, 0, from, w.b.At(80), PortWish::kAny, w.now));
  CHECK(from.port == 40002);
}

TEST_CASE("source ports: one that has just been used rests, if there may be more") {
  World w;
  w.Listen(80);
  stack::WireState& s = w.a.state();
  REQUIRE(AddSourcePort(s, Kept(w, 40001)));
  REQUIRE(AddSourcePort(s, Kept(w, 40002)));
  w.Pass(1'001);
  std::set<uint16_t> had;
  for (int i = 0; i < 2; i++) had.insert(ConnectTo(w, w.b.At(80), nullptr, PortWish::kRested));
  CHECK(had == std::set<uint16_t>{40001, 40002});
  CHECK(ConnectTo(w, w.b.At(81), nullptr, PortWish::kRested) == 0);
  CHECK(ConnectTo(w, w.b.At(81)) != 0);
  w.Pass(1'001);
  CHECK(ConnectTo(w, w.b.At(82), nullptr, PortWish::kRested) != 0);
  // Of many there is one that has not been used for longest, or nearly: none is waited for.
  for (uint16_t port = 40003; port < 40100; port++) REQUIRE(AddSourcePort(s, Kept(w, port)));
  for (int i = 0; i < 200; i++)
    CHECK(ConnectTo(w, w.b.At(static_cast<uint16_t>(1000 + i)), nullptr, PortWish::kRested) != 0);
}

TEST_CASE("source ports: TIME_WAIT takes a pair of names, and keeps the port") {
  World w;
  w.Listen(80);
  w.Listen(81);
  stack::WireState& s = w.a.state();
  REQUIRE(AddSourcePort(s, Kept(w, 40001)));
  PlainEnd* client = nullptr;
  REQUIRE(ConnectTo(w, w.b.At(80), &client) == 40001);
  w.Settle();
  CHECK(IsUsed(w, 40001, TimeWait::kDoesNot));
  CHECK_FALSE(IsUsed(w, 40002, TimeWait::kCounts));
  client->ended = client->closed = true;
  w.a.Wake(*client);
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  server->ended = server->closed = true;
  w.b.Wake(*server);
  w.Settle();
  CHECK_FALSE(IsUsed(w, 40001, TimeWait::kDoesNot));
  CHECK(IsUsed(w, 40001, TimeWait::kCounts));
  CHECK(ConnectTo(w, w.b.At(80)) == 0);
  CHECK(ConnectTo(w, w.b.At(81)) == 40001);
  w.Pass(61'000);
  CHECK(ConnectTo(w, w.b.At(80)) == 40001);
}

TEST_CASE("source ports: one that was found unused goes only if it has not been used since") {
  World w;
  w.Listen(80);
  stack::WireState& s = w.a.state();
  REQUIRE(AddSourcePort(s, Kept(w, 40001)));
  SourcePort was = {};
  const uint64_t seen = s.sources.at[0].used_ns;
  REQUIRE(ConnectTo(w, w.b.At(80)) == 40001);
  CHECK_FALSE(RemoveSourcePort(s, 0, seen, was));
  REQUIRE(RemoveSourcePort(s, 0, s.sources.at[0].used_ns, was));
  CHECK(was.local.port == 40001);
  CHECK_FALSE(RemoveSourcePort(s, 0, was.used_ns, was));
  CHECK(ConnectTo(w, w.b.At(80)) == 0);
}

TEST_CASE(
    "source ports: there are no more than the table has room for, and a place is used again") {
  World w;
  stack::WireState& s = w.a.state();
  for (uint32_t i = 0; i < kSourcePorts; i++)
    REQUIRE(AddSourcePort(s, Kept(w, static_cast<uint16_t>(1 + i))));
  CHECK_FALSE(AddSourcePort(s, Kept(w, 60000)));
  SourcePort was = {};
  REQUIRE(RemoveSourcePort(s, 7, s.sources.at[7].used_ns, was));
  CHECK(AddSourcePort(s, Kept(w, 60000)));
  CHECK(s.sources.at[7].local.port == 60000);
}

}  // namespace postern::test
