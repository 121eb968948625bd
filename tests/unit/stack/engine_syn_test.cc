// SPDX-License-Identifier: Apache-2.0
// engine_syn_test.cc - listeners under a flood of SYNs: what is kept, who still gets through, and
// what a forged cookie is worth.
#include <initializer_list>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;

namespace {

Bytes SegmentFrom(uint32_t who, const PlainHost& to, uint8_t flags, uint32_t seq, uint32_t ack,
                  const Bytes& options = {}) {
  wire_test::FrameSpec f;
  f.source = {172, static_cast<uint8_t>(who >> 16), static_cast<uint8_t>(who >> 8),
              static_cast<uint8_t>(who)};
  f.destination = Bytes(to.ip.ip + 12, to.ip.ip + 16);
  wire_test::Put16(f.l4, 1024 + who % 60000);
  wire_test::Put16(f.l4, 80);
  wire_test::Put32(f.l4, seq);
  wire_test::Put32(f.l4, ack);
  f.l4.push_back(static_cast<uint8_t>((20 + options.size()) / 4 << 4));
  f.l4.push_back(flags);
  wire_test::Put16(f.l4, 1000);
  wire_test::Put32(f.l4, 0);
  wire_test::Put(f.l4, options);
  wire_test::FixChecksum(f);
  return wire_test::MakeFrame(f);
}

// SYNs from so many hosts that do not exist; nothing is answered to the SYN-ACKs.
void Flood(World& w, uint32_t count, uint32_t first = 0) {
  for (uint32_t i = 0; i < count; i++) {
    w.Put(w.a, SegmentFrom(first + i, w.b, tcp::kSyn, i, 0, {2, 4, 5, 0xb4}));
    if (i % 64 != 63 && i + 1 != count) continue;
    w.b.now = w.now;
    w.b.engine->Poll(w.now);
    w.Swallow(w.a);
    (void)w.a.engine->Poll(w.now);  // frames for the driver
  }
}

}  // namespace

TEST_CASE("engine: a SYN is answered as soon as its sender's link address is known") {
  World w;
  w.Listen(80);
  w.b.asking = true;
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  CHECK_FALSE(client.connected);
  w.b.asking = false;
  w.Settle();  // no time passes: it is the same SYN
  CHECK(client.connected);
  CHECK(w.b.state().counters.syns_in == 1);
}

TEST_CASE("engine: ... of a flood few wait for that") {
  World w;
  w.Listen(80, 1024);
  w.b.asking = true;
  Flood(w, 1000);
  CHECK(w.b.state().embryo_count == 16);
  CHECK(w.b.state().conn_count == 16);
}

TEST_CASE("engine: a flood of SYNs takes bounded memory, and a client still gets through") {
  World w;
  const uint32_t l = w.Listen(80, 16);
  Flood(w, 100'000);
  stack::WireState& s = w.b.state();
  CHECK(s.embryo_count == 16);
  CHECK(s.listeners[l].embryos == 16);
  CHECK(s.conn_count == 16);
  CHECK(s.conn_hw <= 17);
  CHECK(s.counters.cookies_sent == 100'000 - 16);
  CHECK(s.listeners[l].cookies == 100'000 - 16);

  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  REQUIRE(client.connected);
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  CHECK(s.counters.cookies_taken == 1);
  CHECK(s.embryo_count == 16);
  const std::string up = Pattern(300'000, 1), down = Pattern(200'000, 2);
  client.out = up;
  server->out = down;
  w.a.Wake(client);
  w.b.Wake(*server);
  for (int i = 0; i < 20; i++) {  // the flood goes on
    Flood(w, 64, 200'000 + 64 * static_cast<uint32_t>(i));
    w.Pass(10);
  }
  w.Pass(2000);
  CHECK((server->in == up));
  CHECK((client.in == down));
  // A client with timestamps has lost nothing by it.
  const tcp::Tcb& at_client = w.ConnOf(w.a, client).tcb;
  const tcp::Tcb& at_server = w.ConnOf(w.b, *server).tcb;
  constexpr uint64_t kAll = tcp::kTimestamps | tcp::kSackOk | tcp::kWindowScale;
  CHECK((at_client.flags & kAll) == kAll);
  CHECK((at_server.flags & kAll) == kAll);
  CHECK(at_server.snd_wscale == at_client.rcv_wscale);
  CHECK(at_client.snd_wscale == at_server.rcv_wscale);
  CHECK(at_server.mss_bytes == at_client.mss_bytes);

  w.Pass(100'000);  // embryos have their time
  CHECK(s.embryo_count == 0);
  CHECK(s.conn_count == 1);
}

TEST_CASE("engine: without cookies a flood keeps clients out, and memory is bounded as well") {
  World w;
  w.b.state().settings.tcp_syncookies = 0;
  (void)w.Listen(80, 16);
  Flood(w, 1000);
  CHECK(w.b.state().embryo_count == 16);
  CHECK(w.b.state().counters.cookies_sent == 0);
  CHECK(w.b.state().counters.syns_dropped == 1000 - 16);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  CHECK_FALSE(client.connected);
  w.Pass(127'000);  // the embryos are gone, and the SYN comes again
  CHECK(client.connected);
}

TEST_CASE("engine: without cookies the last quarter of tcp_max_syn_backlog stays free") {
  World w;
  w.b.state().settings.tcp_syncookies = 0;
  w.b.state().settings.tcp.tcp_max_syn_backlog = 8;
  (void)w.Listen(80, 1024);
  Flood(w, 100);
  CHECK(w.b.state().embryo_count == 7);
}

TEST_CASE("engine: tcp_abort_on_overflow resets a client that finds the accept queue full") {
  for (const uint32_t abort : {0u, 1u}) {
    World w;
    w.b.state().settings.tcp.tcp_abort_on_overflow = abort;
    const uint32_t l = w.Listen(80, 16);
    PlainEnd& first = w.a.Connect(w.a.At(40000), w.b.At(80));
    PlainEnd& second = w.a.Connect(w.a.At(40001), w.b.At(80));
    w.a.engine->Poll(w.now);
    w.b.engine->Poll(w.now);  // both have had their SYNs answered
    w.b.state().listeners[l].backlog = 0;
    w.Settle();
    CHECK_FALSE(first.reset);
    CHECK(second.reset == (abort != 0));
    CHECK(w.b.state().conn_count == (abort != 0 ? 1 : 2));
  }
}

TEST_CASE("engine: tcp_syncookies = 2 keeps nothing of any SYN") {
  World w;
  w.b.state().settings.tcp_syncookies = 2;
  (void)w.Listen(80, 16);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.a.engine->Poll(w.now);
  w.b.engine->Poll(w.now);
  CHECK(w.b.state().conn_count == 0);
  w.Settle();
  CHECK(client.connected);
  CHECK(w.b.state().conn_count == 1);
}

TEST_CASE("engine: forged cookies make no connection, and are refused unlooked at in peace") {
  World w;
  const uint32_t l = w.Listen(80, 16);
  const auto forge = [&](uint32_t from) {
    for (uint32_t i = 0; i < 1000; i++) {
      w.Put(w.a, SegmentFrom(from + i, w.b, tcp::kAck, 1, i * 2654435761u));
      if (i % 64 == 63) w.b.engine->Poll(w.now), w.Swallow(w.a), w.a.engine->Poll(w.now);
    }
    w.b.engine->Poll(w.now);
    w.Swallow(w.a);
  };
  stack::WireState& s = w.b.state();
  forge(0);
  CHECK(s.counters.cookies_refused == 0);  // none was ever made
  CHECK(s.counters.resets_out == 1000);
  Flood(w, 17);
  forge(10'000);
  CHECK(s.counters.cookies_refused == 1000);
  CHECK(s.counters.resets_out == 2000);
  CHECK(s.counters.cookies_taken == 0);
  CHECK(w.b.accepted[80].empty());
  CHECK(s.conn_count == 16);
  w.now += 121'000 * kMs;
  forge(20'000);
  CHECK(s.counters.cookies_refused == 1000);
  CHECK(s.listeners[l].cookies == 1);
}

TEST_CASE("engine: a cookie that comes back is good until the last moment") {
  World w;
  (void)w.Listen(80, 0);  // no handshake is kept at all, as with Linux
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.a.engine->Poll(w.now);
  w.b.engine->Poll(w.now);
  CHECK(w.b.state().conn_count == 0);
  w.a.engine->Poll(w.now);  // its ACK is on its way
  w.now += 59'000 * kMs;
  w.Settle();
  CHECK(client.connected);
  CHECK(w.b.state().conn_count == 1);
  CHECK(w.b.state().counters.cookies_taken == 1);
}

}  // namespace postern::test
