// SPDX-License-Identifier: Apache-2.0
// engine_icmp_test.cc - ICMP errors that reach the engine: what they end, what they say of a path,
// and which of them are believed.
#include <cerrno>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;

namespace {

// An error from b's side about the segment that began at `seq`, as a router would send it.
struct IcmpCase {
  uint8_t type, code;
  uint32_t rest = 0;
};
Bytes ErrorAbout(const stack::Conn& c, tcp::Seq seq, const IcmpCase& what) {
  wire_test::FrameSpec quoted = SegmentOf(c, tcp::kAck, seq - c.tcb.snd_nxt);
  quoted.l4.resize(8);
  const Bytes packet = wire_test::MakeFrame(quoted);
  wire_test::FrameSpec error;
  error.is6 = quoted.is6;
  error.protocol = quoted.is6 ? 58 : 1;
  error.source = IpOf(c.peer);
  error.source.back() = 77;  // a router, not the peer
  error.destination = IpOf(c.local);
  error.l4 = wire_test::IcmpBytes(what.type, what.code, what.rest,
                                  Bytes(packet.begin() + 14, packet.end()));
  wire_test::FixChecksum(error);
  return wire_test::MakeFrame(error);
}

// A client that has sent its SYN, which nobody has answered.
PlainEnd& Opening(World& w) {
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.wire->cut = 1;  // the SYN is lost
  w.a.engine->Poll(w.now);
  w.wire->cut = 0;
  return client;
}

struct Opened {
  PlainEnd* client;
  PlainEnd* server;
};
Opened Established(World& w) {
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  return {&client, server};
}
// The client sends, and nothing of it has been acknowledged.
void SendUnanswered(World& w, PlainEnd& client, size_t bytes) {
  client.out = Pattern(bytes, 5);
  w.a.Wake(client);
  w.a.now = w.now;
  w.a.engine->Poll(w.now);
}

}  // namespace

TEST_CASE("engine: an ICMP error ends a connect() with what Linux gives") {
  struct {
    bool is6;
    IcmpCase icmp;
    int error;
  } const cases[] = {
      {false, {3, 3}, ECONNREFUSED},  {false, {3, 1}, EHOSTUNREACH},  {false, {3, 0}, ENETUNREACH},
      {false, {3, 13}, EHOSTUNREACH}, {false, {11, 0}, EHOSTUNREACH}, {false, {12, 0}, EPROTO},
      {true, {1, 4}, ECONNREFUSED},   {true, {1, 0}, ENETUNREACH},    {true, {1, 1}, EACCES},
      {true, {3, 0}, EHOSTUNREACH},
  };
  for (const auto& each : cases) {
    CAPTURE(each.is6, each.icmp.type, each.icmp.code);
    World w;
    if (each.is6) w.UseIpv6();
    PlainEnd& client = Opening(w);
    REQUIRE_FALSE(client.gone);
    const stack::Conn& c = w.ConnOf(w.a, client);
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_una, each.icmp));
    w.Settle();
    CHECK(client.reset);
    CHECK(client.error == each.error);
    CHECK(client.gone);
    CHECK(w.a.state().conn_count == 0);
  }
}

TEST_CASE("engine: an ICMP error ends no connection; it explains a later time-out") {
  World w;
  auto [client, server] = Established(w);
  SendUnanswered(w, *client, 3000);
  stack::Conn& c = w.ConnOf(w.a, *client);
  w.Put(w.b, ErrorAbout(c, c.tcb.snd_una, {3, 1}));
  w.a.engine->Poll(w.now);
  CHECK_FALSE(client->reset);
  CHECK(c.tcb.soft_error == EHOSTUNREACH);
  w.wire->cut = 1;
  for (int i = 0; i < 1200 && !client->gone; i++) w.Pass(1000);
  CHECK(client->reset);
  CHECK(client->error == EHOSTUNREACH);
}

TEST_CASE("engine: an ICMP error about what is not under way is not believed") {
  World w;
  auto [client, server] = Established(w);
  const stack::Conn& c = w.ConnOf(w.a, *client);
  const uint32_t mss = c.tcb.mss_bytes;
  const IcmpCase cases[] = {{3, 3}, {3, 4, 600}};
  for (const IcmpCase& each : cases) {
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_una, each));  // nothing is
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_una - 1, each));
    w.Settle();
  }
  SendUnanswered(w, *client, 3000);
  for (const IcmpCase& each : cases) {
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_una - 1, each));
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_nxt, each));
  }
  stack::Conn other = c;  // a connection that there is not
  other.local.port++;
  w.Put(w.b, ErrorAbout(other, c.tcb.snd_una, {3, 3}));
  Bytes cut = ErrorAbout(c, c.tcb.snd_una, {3, 3});
  cut[40] ^= 1;  // its checksum
  w.Put(w.b, cut);
  w.a.engine->Poll(w.now);
  CHECK(c.tcb.soft_error == 0);
  CHECK(c.tcb.mss_bytes == mss);
  CHECK(w.a.state().counters.icmp_ignored == 9);
  w.Pass(100);
  CHECK((server->in == Pattern(3000, 5)));
}

TEST_CASE("engine: a packet that was too big is cut and sent again; other connections learn it") {
  struct {
    bool is6;
    IcmpCase icmp;
    uint32_t mtu;
  } const cases[] = {{false, {3, 4, 1000}, 1000}, {true, {2, 0, 1300}, 1300}};
  for (const auto& each : cases) {
    CAPTURE(each.is6);
    World w;
    if (each.is6) w.UseIpv6();
    auto [client, server] = Established(w);
    const uint32_t heads = (each.is6 ? 60 : 40) + 12;
    stack::Conn& c = w.ConnOf(w.a, *client);
    CHECK(c.tcb.mss_bytes == 1500 - heads);
    w.wire->cut = 1;  // what was too big is lost
    SendUnanswered(w, *client, 9000);
    w.wire->cut = 0;
    const uint32_t cwnd = c.tcb.cc.cwnd_bytes / c.tcb.cc.mss_bytes;
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_una, each.icmp));
    w.Settle();  // no time passes: it is sent again at once
    CHECK(c.tcb.mss_bytes == each.mtu - heads);
    CHECK((server->in == Pattern(9000, 5)));
    CHECK(c.tcb.cc.cwnd_bytes / c.tcb.cc.mss_bytes >= cwnd);  // it was no congestion
    PlainEnd& next = w.a.Connect(w.a.At(40001), w.b.At(80));
    w.Settle();
    CHECK(next.connected);
    CHECK(w.ConnOf(w.a, next).tcb.mss_bytes == each.mtu - heads);
  }
}

TEST_CASE("engine: what a path takes only becomes less, not too little, and is forgotten in time") {
  World w;
  const Opened ends = Established(w);
  PlainEnd* const client = ends.client;
  PlainEnd* const server = ends.server;
  stack::Conn& c = w.ConnOf(w.a, *client);
  const auto say = [&](uint32_t mtu) {
    SendUnanswered(w, *client, 100);
    w.Put(w.b, ErrorAbout(c, c.tcb.snd_una, {3, 4, mtu}));
    w.Pass(1000);
    server->in.clear();
  };
  say(9000);
  CHECK(c.tcb.mss_bytes == 1448);
  say(1200);
  CHECK(c.tcb.mss_bytes == 1148);
  say(1400);
  CHECK(c.tcb.mss_bytes == 1148);
  CHECK((c.flags & stack::kMayFragment) == 0);
  say(68);
  CHECK(c.tcb.mss_bytes == 500);  // Linux's min_pmtu; DF is off instead
  CHECK((c.flags & stack::kMayFragment) != 0);
  w.Pass(599'000);
  CHECK(c.tcb.mss_bytes == 500);
  w.Pass(10'000);
  client->out = Pattern(9000, 6);
  w.a.Wake(*client);
  w.Pass(1000);
  CHECK(c.tcb.mss_bytes == 1448);
  CHECK((c.flags & stack::kMayFragment) == 0);
  CHECK((server->in == Pattern(9000, 6)));
  CHECK(w.a.state().mtu_expiry_ns == 0);
}

TEST_CASE("engine: what was learned of paths does not outlive a death in the middle of it") {
  World w;
  auto [client, server] = Established(w);
  stack::Conn& c = w.ConnOf(w.a, *client);
  SendUnanswered(w, *client, 100);
  w.Put(w.b, ErrorAbout(c, c.tcb.snd_una, {3, 4, 600}));
  w.Pass(100);
  CHECK(c.tcb.mss_bytes == 548);
  for (stack::LearnedMtu& l : w.a.state().learned) memset(&l, 0xa5, sizeof l);
  w.a.engine->Recover(w.now);
  CHECK_FALSE(client->gone);
  client->out = Pattern(9000, 7);
  w.a.Wake(*client);
  w.Pass(1000);
  CHECK((server->in.substr(100) == Pattern(9000, 7)));
  CHECK(c.tcb.mss_bytes == 1448);
}

}  // namespace postern::test
