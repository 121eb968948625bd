// SPDX-License-Identifier: Apache-2.0
// engine_timewait_test.cc - a SYN for names whose last connection is in TIME_WAIT with us
// (RFC 6191).
#include "engine_world.h"

namespace postern::test {
namespace {

// The server has sent so much at once that the clock's number for the next connection lies behind
// it, and then closes first.
struct OldConnection {
  World w;
  uint32_t listener = w.Listen(80);
  tcp::Seq last;

  OldConnection() {
    PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
    w.Settle();
    PlainEnd* server = w.Accepted(80);
    REQUIRE(server != nullptr);
    server->out = Pattern(4'000'000, 1);
    w.b.Wake(*server);
    w.Pass(20);
    REQUIRE(client.in.size() == 4'000'000);
    server->ended = server->closed = true;
    w.b.Wake(*server);
    w.Settle();
    client.ended = client.closed = true;
    w.a.Wake(client);
    w.Settle();
    REQUIRE(client.gone);
    w.Pass(10);
    REQUIRE(w.b.state().conn_count == 1);
    REQUIRE(tcp::StateOf(Server().tcb) == tcp::State::kTimeWait);
    last = Server().tcb.snd_nxt;
  }
  // The only connection of the server's.
  stack::Conn& Server() {
    stack::WireState& s = w.b.state();
    uint32_t idx = 0;
    while (idx < s.conn_hw && s.conns[idx].use != stack::kConnUsed) idx++;
    REQUIRE(idx < s.conn_hw);
    return s.conns[idx];
  }
};

}  // namespace

TEST_CASE("engine: a new connection of the same names begins behind the numbers of the last one") {
  OldConnection old;
  World& w = old.w;
  // Cookies have no room for that, and no reason: a flood has not been connected before.
  w.b.state().settings.tcp_syncookies = GENERATE(1u, 2u);
  const bool full = GENERATE(false, true);
  if (full) w.b.state().listeners[old.listener].backlog = 0;
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  REQUIRE(client.connected);
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  CHECK(w.b.state().conn_count == 1);
  CHECK(w.b.state().counters.cookies_sent == 0);
  const tcp::Seq iss = w.ConnOf(w.b, *server).tcb.iss;
  CHECK(tcp::After(iss, old.last + 0xffff));
  server->out = "hello";
  w.b.Wake(*server);
  w.Settle();
  CHECK(client.in == "hello");
}

}  // namespace postern::test
