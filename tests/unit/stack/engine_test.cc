// SPDX-License-Identifier: Apache-2.0
// engine_test.cc - two engines over a wire in memory: handshakes, data, ends, full tables, deaths.
#include "stack/engine.h"

#include <cerrno>

#include "../kit/catch.h"
#include "engine_world.h"

namespace postern::test {

TEST_CASE("engine: a connection carries data both ways and ends in order") {
  World w;
  REQUIRE(w.Listen(80) != PSTN_NONE);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  REQUIRE(client.connected);
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);

  const std::string up = Pattern(300'000, 1), down = Pattern(200'000, 2);
  client.out = up;
  server->out = down;
  w.a.Wake(client);
  w.b.Wake(*server);
  w.Pass(200);
  CHECK((server->in == up));
  CHECK((client.in == down));
  CHECK(client.out.empty());  // all acknowledged

  client.ended = true;
  w.a.Wake(client);
  w.Pass(10);
  CHECK(server->fin);
  CHECK_FALSE(client.gone);
  server->ended = server->closed = true;
  w.b.Wake(*server);
  w.Pass(10);
  CHECK(client.fin);
  CHECK(server->gone);  // LAST_ACK
  CHECK(client.gone);   // all is delivered; TIME_WAIT needs no program
  CHECK(w.a.state().conn_count == 1);
  w.Pass(61'000);
  CHECK(w.a.state().conn_count == 0);
  CHECK(w.b.state().conn_count == 0);
  CHECK(w.a.area.FreeCount() + w.wire->end[0].queue[0].fill.producer -
            w.wire->end[0].queue[0].fill.consumer ==
        w.a.area.frame_count());
}

TEST_CASE("engine: no listener, a reset; a listener that goes away resets handshakes only") {
  World w;
  PlainEnd& nobody = w.a.Connect(w.a.At(40000), w.b.At(81));
  w.Settle();
  CHECK(nobody.reset);
  CHECK(nobody.error == ECONNREFUSED);
  CHECK(nobody.gone);

  const uint32_t l = w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40001), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  w.b.engine->Unlisten(l);
  PlainEnd& late = w.a.Connect(w.a.At(40002), w.b.At(80));
  server->out = "still here";
  w.b.Wake(*server);
  w.Settle();
  CHECK(late.reset);
  CHECK(client.in == "still here");
  CHECK_FALSE(client.reset);
}

TEST_CASE("engine: a full accept queue holds handshakes back, and takes them later") {
  World w;
  w.Listen(80, 1);
  std::vector<PlainEnd*> clients;
  for (uint16_t i = 0; i < 4; i++)
    clients.push_back(&w.a.Connect(w.a.At(static_cast<uint16_t>(40000 + i)), w.b.At(80)));
  // Two of them have the third segment of a handshake of which nothing is kept (a cookie), and it
  // is dropped: what they write brings it again, as in Linux.
  for (PlainEnd* c : clients) c->out = "hello";
  w.Settle();
  CHECK(w.b.accepted[80].size() == 2);  // backlog + 1, as in Linux
  for (int i = 0; i < 30; i++) {
    w.Pass(1000);
    w.b.accepted[80].clear();
  }
  uint32_t connected = 0;
  for (const PlainEnd* c : clients) connected += c->connected && !c->reset;
  CHECK(connected == 4);
  CHECK(w.b.state().conn_count == 4);
}

TEST_CASE("engine: an abort is a reset at the other end") {
  World w;
  w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  server->aborted = true;
  w.b.Wake(*server);
  w.Settle();
  CHECK(client.reset);
  CHECK(client.error == ECONNRESET);
  CHECK(w.a.state().conn_count == 0);
  CHECK(w.b.state().conn_count == 0);
}

TEST_CASE("engine: a reader that is slow closes the window, and it opens again") {
  World w;
  w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  server->room = 20'000;
  server->slow = true;
  const std::string all = Pattern(200'000, 3);
  client.out = all;
  w.a.Wake(client);
  std::string read;
  for (int i = 0; i < 400 && read.size() < all.size(); i++) {
    w.Pass(50);
    CHECK(server->in.size() <= 20'000);
    const size_t n = server->in.size() < 7000 ? server->in.size() : 7000;
    read += server->in.substr(0, n);
    server->in.erase(0, n);
    w.b.Wake(*server);
  }
  CHECK((read == all));
}

TEST_CASE("engine: a thousand connections at once, none left behind") {
  World w;
  w.Listen(80, 4096);
  std::vector<PlainEnd*> clients;
  for (uint16_t i = 0; i < 1000; i++) {
    clients.push_back(&w.a.Connect(w.a.At(static_cast<uint16_t>(20000 + i)), w.b.At(80)));
    clients.back()->out = Pattern(3000, i);
    if (i % 50 == 0) w.Settle();
  }
  w.Pass(2000);
  CHECK(w.b.accepted[80].size() == 1000);
  for (const uint32_t owner : w.b.accepted[80]) CHECK(w.b.EndOf(owner).in.size() == 3000);
  for (size_t i = 0; i < clients.size(); i++) {  // not more at once than the wire holds
    clients[i]->aborted = true;
    w.a.Wake(*clients[i]);
    if (i % 100 == 99) w.Settle();
  }
  w.Pass(2000);
  CHECK(w.a.state().conn_count == 0);
  CHECK(w.b.state().conn_count == 0);
  CHECK(w.b.state().embryo_count == 0);
}

TEST_CASE("engine: whoever takes over from the dead loses one connection at most") {
  World w;
  w.Listen(80);
  PlainEnd& one = w.a.Connect(w.a.At(40000), w.b.At(80));
  PlainEnd& two = w.a.Connect(w.a.At(40001), w.b.At(80));
  w.Settle();
  PlainEnd* server_one = w.Accepted(80);
  PlainEnd* server_two = w.Accepted(80);
  REQUIRE(server_two != nullptr);
  one.out = two.out = Pattern(50'000, 4);
  w.a.Wake(one);
  w.a.Wake(two);
  w.a.engine->Poll(w.now);
  // Somebody died at connection `two`, and everything that can be computed is garbage.
  stack::WireState& s = w.a.state();
  s.current = two.conn + 1;
  memset(s.hash, 0xa5, sizeof s.hash);
  memset(&s.wheel, 0xa5, sizeof s.wheel);
  s.ready_head = s.tx_free = s.rx_free = s.conn_free = 12345;
  w.a.engine->Recover(w.now);
  CHECK(two.gone);
  CHECK_FALSE(one.gone);
  w.Pass(2000);
  CHECK((server_one->in == Pattern(50'000, 4)));
  CHECK(server_two->reset);
  CHECK(w.a.state().counters.lost_connections == 1);
  one.aborted = true;
  w.a.Wake(one);
  w.Pass(2000);
  CHECK(w.a.state().conn_count == 0);
}

TEST_CASE(
    "engine: the peer of a connection that is lost with the dead hears of it without asking") {
  World w;
  w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  w.Pass(1000);  // nothing is under way, and the server only reads
  SECTION("in the middle of nothing") {}
  SECTION("behind a segment that was counted and never went out") {
    w.a.state().conns[client.conn].tcb.snd_nxt += 1000;
  }
  w.a.state().current = client.conn + 1;
  w.a.engine->Recover(w.now);
  CHECK(client.gone);
  SECTION("and again by the next holder") {
    w.a.state().current = 0;
    w.a.engine->Recover(w.now);
  }
  w.Pass(4000);
  CHECK(server->reset);
  CHECK(w.a.state().conn_count == 0);
  CHECK(w.b.state().conn_count == 0);
}

}  // namespace postern::test
