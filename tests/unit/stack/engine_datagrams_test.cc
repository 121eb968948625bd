// SPDX-License-Identifier: Apache-2.0
// engine_datagrams_test.cc - UDP sockets of the engine: over a wire, with ICMP, and after a death.
#include <cerrno>
#include <initializer_list>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;

namespace {

uint32_t Open(PlainHost& host, uint16_t port) {
  const uint32_t family = host.ip.ip[0] != 0 ? AF_INET6 : AF_INET;
  const uint32_t idx = host.engine->datagrams().Open(host.At(port), family, 0, port, 1);
  REQUIRE(idx != PSTN_NONE);
  return idx;
}
int64_t SendTo(World& w, PlainHost& host, uint32_t idx, std::string payload, const pstn_addr& to) {
  iovec iov = {payload.data(), payload.size()};
  udp::SendArgs args;
  args.iov = &iov;
  args.iov_count = 1;
  args.has_dest = to.port != 0;
  args.dest = postern::IpOf(to);
  args.dest_port = to.port;
  const int64_t r = host.engine->datagrams().Send(idx, args);
  host.now = w.now;
  (void)host.engine->PollLocked(w.now);
  return r;
}

struct Got {
  int64_t result;
  std::string payload;
  udp::ReceiveInfo info;
};
Got Receive(PlainHost& host, uint32_t idx, size_t room = 65536) {
  Got got = {};
  got.payload.resize(room);
  iovec iov = {got.payload.data(), room};
  udp::ReceiveArgs args;
  args.iov = &iov;
  args.iov_count = 1;
  got.result = host.engine->datagrams().Receive(idx, args, got.info);
  got.payload.resize(got.result > 0 ? static_cast<size_t>(got.result) : 0);
  return got;
}

// Frames that something waits in.
uint32_t Kept(PlainHost& host) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < host.area.frame_count(); i++)
    count += host.area.UseAt(i) == kFrameKept ? 1u : 0u;
  return count;
}

// What `sender` has sent to `peer`, as a router next to `peer` quotes it.
Bytes ErrorAbout(const pstn_addr& sender, const pstn_addr& peer, uint8_t type, uint8_t code,
                 uint32_t rest = 0) {
  wire_test::FrameSpec quoted = wire_test::UdpSpec(sender.ip[0] != 0, Bytes(8));
  quoted.source = IpOf(sender);
  quoted.destination = IpOf(peer);
  wire_test::Set16(quoted.l4, 0, sender.port);
  wire_test::Set16(quoted.l4, 2, peer.port);
  const Bytes packet = wire_test::MakeFrame(quoted);
  wire_test::FrameSpec error;
  error.is6 = quoted.is6;
  error.protocol = quoted.is6 ? 58 : 1;
  error.source = quoted.destination;
  error.destination = quoted.source;
  error.l4 = wire_test::IcmpBytes(type, code, rest, Bytes(packet.begin() + 14, packet.end()));
  wire_test::FixChecksum(error);
  return wire_test::MakeFrame(error);
}

}  // namespace

TEST_CASE("engine: datagrams of each size that fits go there and back, over IPv4 and IPv6") {
  for (const bool is6 : {false, true}) {
    World w;
    if (is6) w.UseIpv6();
    const uint32_t server = Open(w.b, 53), client = Open(w.a, 40000);
    const size_t most = is6 ? 1452 : 1472;
    for (const size_t size : {size_t{0}, size_t{1}, size_t{17}, size_t{18}, most - 1, most}) {
      CAPTURE(is6, size);
      const std::string payload = Pattern(size, 3);
      REQUIRE(SendTo(w, w.a, client, payload, w.b.At(53)) == static_cast<int64_t>(size));
      w.Settle();
      REQUIRE(w.b.engine->datagrams().IsReadable(server));
      const Got got = Receive(w.b, server);
      CHECK(got.result == static_cast<int64_t>(size));
      CHECK(got.payload == payload);
      CHECK(got.info.source == postern::IpOf(w.a.ip));
      CHECK(got.info.source_port == 40000);
      CHECK(got.info.dest == postern::IpOf(w.b.ip));
      CHECK(got.info.ttl == 64);
      CHECK(SendTo(w, w.b, server, payload, w.a.At(40000)) == static_cast<int64_t>(size));
      w.Settle();
      CHECK(Receive(w.a, client).payload == payload);
    }
    CHECK(SendTo(w, w.a, client, Pattern(most + 1, 3), w.b.At(53)) == stack::kByKernel);
    CHECK(Receive(w.b, server).result == -EAGAIN);
    CHECK(w.b.state().datagrams.counters.in == 6);
    CHECK(w.a.state().datagrams.counters.by_kernel == 1);
    CHECK(SendTo(w, w.a, client, "unread", w.b.At(53)) == 6);
    w.Settle();
    CHECK(Kept(w.b) == 1);
    w.b.engine->datagrams().Close(server);
    w.a.engine->datagrams().Close(client);
    CHECK(Kept(w.a) + Kept(w.b) == 0);
  }
}

TEST_CASE("engine: a datagram in pieces, one with a buffer that is too small, and one to look at") {
  World w;
  const uint32_t server = Open(w.b, 53), client = Open(w.a, 40000);
  char one[] = "abc", two[] = "defgh";
  iovec iov[] = {{one, 3}, {nullptr, 0}, {two, 5}};
  udp::SendArgs args;
  args.iov = iov;
  args.iov_count = 3;
  args.has_dest = true;
  args.dest = postern::IpOf(w.b.ip);
  args.dest_port = 53;
  CHECK(w.a.engine->datagrams().Send(client, args) == 8);
  w.Settle();
  const Got got = Receive(w.b, server, 5);
  CHECK(got.payload == "abcde");
  CHECK(got.info.bytes == 8);
  CHECK(Receive(w.b, server).result == -EAGAIN);
}

TEST_CASE("engine: a connected socket hears its peer alone") {
  World w;
  const uint32_t server = Open(w.b, 53), other = Open(w.b, 54), client = Open(w.a, 40000);
  REQUIRE(w.a.engine->datagrams().Connect(client, w.a.At(40000), w.b.At(53)) == 0);
  CHECK(SendTo(w, w.a, client, "hello", {}) == 5);
  CHECK(SendTo(w, w.b, other, "stranger", w.a.At(40000)) == 8);
  w.Settle();
  CHECK(Receive(w.b, server).payload == "hello");
  CHECK(Receive(w.a, client).result == -EAGAIN);
  CHECK(w.a.state().datagrams.counters.not_ours == 1);
  CHECK(SendTo(w, w.b, server, "there", w.a.At(40000)) == 5);
  w.Settle();
  CHECK(Receive(w.a, client).payload == "there");
  // Connected anew.
  REQUIRE(w.a.engine->datagrams().Connect(client, w.a.At(40000), w.b.At(54)) == 0);
  CHECK(SendTo(w, w.b, server, "again", w.a.At(40000)) == 5);
  CHECK(SendTo(w, w.b, other, "friend", w.a.At(40000)) == 6);
  w.Settle();
  CHECK(Receive(w.a, client).payload == "friend");
  CHECK(Receive(w.a, client).result == -EAGAIN);
}

TEST_CASE("engine: what does not fit into SO_RCVBUF is dropped and counted") {
  World w;
  const uint32_t server = Open(w.b, 53), client = Open(w.a, 40000);
  w.b.engine->datagrams().At(server).e.rcvbuf_bytes = 10 * udp::DatagramCost(100);
  for (int i = 0; i < 15; i++) {
    CHECK(SendTo(w, w.a, client, Pattern(100, static_cast<uint32_t>(i)), w.b.At(53)) == 100);
    w.Settle();
  }
  CHECK(w.b.state().datagrams.counters.full == 5);
  for (uint32_t i = 0; i < 10; i++) CHECK(Receive(w.b, server).payload == Pattern(100, i));
  CHECK(Receive(w.b, server).result == -EAGAIN);
}

TEST_CASE("engine: sockets that nobody reads leave half of the frames to others") {
  World w;
  const uint32_t client = Open(w.a, 40000);
  constexpr uint16_t kSockets = 12;
  for (uint16_t i = 0; i < kSockets; i++) {
    const uint32_t server = Open(w.b, static_cast<uint16_t>(100 + i));
    w.b.engine->datagrams().At(server).e.rcvbuf_bytes = 1u << 30;
  }
  for (uint32_t i = 0; i < 6000; i++) {
    (void)SendTo(w, w.a, client, "x", w.b.At(static_cast<uint16_t>(100 + i % kSockets)));
    w.Settle();
  }
  CHECK(w.b.state().datagrams.counters.full != 0);
  CHECK(Kept(w.b) < w.b.area.frame_count() / 2);
  CHECK(Kept(w.b) > w.b.area.frame_count() / 8);
}

TEST_CASE("engine: an ICMP error is the error of the connected socket that it is about") {
  struct {
    bool is6;
    uint8_t type, code;
    int error;
  } const cases[] = {{false, 3, 3, ECONNREFUSED}, {true, 1, 4, ECONNREFUSED}, {false, 3, 1, 0}};
  for (const auto& each : cases) {
    CAPTURE(each.is6, each.type, each.code);
    World w;
    if (each.is6) w.UseIpv6();
    const uint32_t client = Open(w.a, 40000), free_one = Open(w.a, 40001);
    REQUIRE(w.a.engine->datagrams().Connect(client, w.a.At(40000), w.b.At(53)) == 0);
    w.Put(w.b, ErrorAbout(w.a.At(40000), w.b.At(54), each.type, each.code));  // another peer
    w.Put(w.b, ErrorAbout(w.a.At(40001), w.b.At(53), each.type, each.code));
    w.Settle();
    CHECK_FALSE(w.a.engine->datagrams().HasError(client));
    CHECK_FALSE(w.a.engine->datagrams().HasError(free_one));  // not connected
    w.Put(w.b, ErrorAbout(w.a.At(40000), w.b.At(53), each.type, each.code));
    w.Settle();
    CHECK(Receive(w.a, client).result == (each.error != 0 ? -each.error : -EAGAIN));
    CHECK(Receive(w.a, client).result == -EAGAIN);  // once
    w.Put(w.b, ErrorAbout(w.a.At(40000), w.b.At(53), each.type, each.code));
    w.Settle();
    if (each.error != 0) CHECK(SendTo(w, w.a, client, "x", {}) == -each.error);
    CHECK(SendTo(w, w.a, client, "x", {}) == 1);
  }
}

TEST_CASE("engine: a path that takes less makes the socket the kernel's") {
  World w;
  const uint32_t server = Open(w.b, 53), client = Open(w.a, 40000);
  CHECK(SendTo(w, w.a, client, Pattern(1472, 1), w.b.At(53)) == 1472);
  CHECK(SendTo(w, w.b, server, "waits", w.a.At(40000)) == 5);
  w.Settle();
  w.Put(w.b, ErrorAbout(w.a.At(40001), w.b.At(53), 3, 4, 1200));  // nobody's
  w.Settle();
  CHECK(w.a.state().datagrams.counters.left == 0);
  w.Put(w.b, ErrorAbout(w.a.At(40000), w.b.At(53), 3, 4, 1200));
  w.Settle();
  CHECK(w.a.state().datagrams.counters.left == 1);
  CHECK(SendTo(w, w.a, client, Pattern(10, 1), w.b.At(53)) == stack::kByKernel);
  CHECK(Receive(w.a, client).payload == "waits");
}

TEST_CASE("engine: what waits at UDP sockets outlives whoever held the lock") {
  World w;
  const uint32_t server = Open(w.b, 53), other = Open(w.b, 54), client = Open(w.a, 40000);
  REQUIRE(w.b.engine->datagrams().Connect(other, w.b.At(54), w.a.At(40000)) == 0);
  for (uint32_t i = 0; i < 5; i++) {
    CHECK(SendTo(w, w.a, client, Pattern(500, i), w.b.At(53)) == 500);
    CHECK(SendTo(w, w.a, client, Pattern(500, 100 + i), w.b.At(54)) == 500);
    w.Settle();
  }
  // In the middle of a datagram: its entry is linked, and nothing else is said yet.
  stack::DatagramTables& t = w.b.state().datagrams;
  stack::DatagramSocket& s = w.b.engine->datagrams().At(server);
  s.e.rx_count = 1;
  s.e.charged_bytes = 7;
  s.e.rx_tail = s.e.rx_head;
  // And one socket whose queue leads into the other's.
  t.received[t.at[other].e.rx_tail].next = s.e.rx_head;
  memset(t.ports.by_port, 0, sizeof t.ports.by_port);
  w.b.engine->Recover(w.now);
  CHECK(Kept(w.b) == 10);
  for (uint32_t i = 0; i < 5; i++) {
    CHECK(Receive(w.b, server).payload == Pattern(500, i));
    CHECK(Receive(w.b, other).payload == Pattern(500, 100 + i));
  }
  CHECK(Receive(w.b, server).result == -EAGAIN);
  CHECK(Receive(w.b, other).result == -EAGAIN);
  CHECK(SendTo(w, w.a, client, "new", w.b.At(53)) == 3);
  CHECK(SendTo(w, w.a, client, "new", w.b.At(54)) == 3);
  w.Settle();
  CHECK(Receive(w.b, server).payload == "new");
  CHECK(Receive(w.b, other).payload == "new");
  CHECK(Kept(w.b) == 0);
}

}  // namespace postern::test
