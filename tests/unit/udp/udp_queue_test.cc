// SPDX-License-Identifier: Apache-2.0
// udp_queue_test.cc - what waits at an endpoint: order, bounds, UDP_GRO, checksums, errors, ICMP.
#include "../kit/catch.h"
#include "udp_world.h"

namespace postern::udp {
namespace {

const DatagramIn kIn = World::From(kThere, 9, kHere, 53);

TEST_CASE("udp queue: datagrams come out as they went in, with all that is known of them") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  DatagramIn in = kIn;
  in.tos = 0xb8;
  in.arrived_ns = 12345;
  w.Arrive(in, "one");
  w.Arrive(in, "");
  w.Arrive(in, "three");
  CHECK(NextBytes(e, w) == 3);
  ReceiveInfo info;
  CHECK(w.Get(e, info, 100, true).second == "one");  // MSG_PEEK
  CHECK(w.Get(e, info).second == "one");
  CHECK(info.source == kThere);
  CHECK(info.dest == kHere);
  CHECK(info.source_port == 9);
  CHECK(info.ifindex == 7);
  CHECK(info.tos == 0xb8);
  CHECK(info.ttl == 61);
  CHECK(info.arrived_ns == 12345);
  CHECK(info.bytes == 3);
  CHECK(w.Get(e, info).first == 0);  // an empty datagram is one
  CHECK(w.Get(e, info, 2).second == "th");
  CHECK(info.bytes == 5);  // MSG_TRUNC
  CHECK(w.Get(e, info).first == -EAGAIN);
  CHECK(w.woken.size() == 3);
  CHECK(w.Balanced());
  CHECK(w.endpoints[e].charged_bytes == 0);
}

TEST_CASE("udp queue: is bounded by SO_RCVBUF, and drops are counted and told") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].rcvbuf_bytes = 10 * DatagramCost(100);
  const std::string payload(100, 'p');
  for (int i = 0; i < 10; i++) CHECK(w.Arrive(kIn, payload) == Verdict::kDelivered);
  for (int i = 0; i < 5; i++) CHECK(w.Arrive(kIn, payload) == Verdict::kDropped);
  CHECK(w.endpoints[e].drops == 5);
  ReceiveInfo info;
  w.Get(e, info);
  CHECK(info.drops == 0);  // as it was when this one came
  CHECK(w.Arrive(kIn, payload) == Verdict::kDelivered);
  for (int i = 0; i < 9; i++) w.Get(e, info);
  CHECK(w.Get(e, info).first == 100);
  CHECK(info.drops == 5);
  CHECK(w.Balanced());
}

TEST_CASE("udp queue: one datagram is taken however small the buffer") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].rcvbuf_bytes = 2304;
  CHECK(w.Arrive(kIn, std::string(60000, 'x')) == Verdict::kDelivered);
  CHECK(w.Arrive(kIn) == Verdict::kDropped);
  CHECK(w.All(e).size() == 60001);
}

TEST_CASE("udp queue: no memory is a drop, and nothing leaks") {
  World w(4, 3);
  const uint32_t e = w.Bound({}, 53);
  for (int i = 0; i < 3; i++) CHECK(w.Arrive(kIn) == Verdict::kDelivered);
  CHECK(w.Arrive(kIn) == Verdict::kDropped);
  w.All(e);
  w.keep_none = true;
  CHECK(w.Arrive(kIn) == Verdict::kDropped);
  CHECK(w.received.used == 0);
  CHECK(w.endpoints[e].drops == 2);
  CHECK(w.Balanced());
}

TEST_CASE("udp queue: the cost is about what Linux charges") {
  // SO_RCVBUF 400,000 held so many datagrams over the loopback device of Linux 6.
  const auto [bytes, held] = GENERATE(table<uint32_t, uint32_t>({{1, 480},
                                                                 {64, 480},
                                                                 {100, 480},
                                                                 {500, 312},
                                                                 {1000, 173},
                                                                 {1472, 173},
                                                                 {3000, 91},
                                                                 {5000, 47},
                                                                 {9000, 24},
                                                                 {20000, 19},
                                                                 {60000, 6}}));
  CHECK(400000.0 / DatagramCost(bytes) == Approx(held).epsilon(0.1));
  for (uint32_t n = 0; n < 65507; n += 37) {
    CHECK(DatagramCost(n) >= n + 512);
    CHECK(DatagramCost(n) <= 2 * n + 1280);
    CHECK(DatagramCost(n + 1) >= DatagramCost(n));
  }
}

TEST_CASE("udp queue: UDP_GRO joins a train of one flow, and no more than the buffer takes") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].flags |= kGro;
  const std::string full(100, 'f'), half(50, 'h');
  ReceiveInfo info;
  SECTION("the last one may be shorter") {
    for (int i = 0; i < 3; i++) w.Arrive(kIn, full);
    w.Arrive(kIn, half);
    w.Arrive(kIn, half);
    CHECK(w.Get(e, info, 70000, true).second == full + full + full + half);
    CHECK(w.Get(e, info).second == full + full + full + half);
    CHECK(info.gro_bytes == 100);
    CHECK(info.bytes == 350);
    CHECK(w.Get(e, info).second == half);
    CHECK(info.gro_bytes == 0);
  }
  SECTION("longer ones, other flows and empty ones end it") {
    w.Arrive(kIn, half);
    w.Arrive(kIn, full);
    w.Arrive(World::From(kThere, 10, kHere, 53), full);
    w.Arrive(World::From(kElsewhere, 10, kHere, 53), full);
    w.Arrive(World::From(kElsewhere, 10, kHere, 53), "");
    CHECK(w.All(e) == half + "|" + full + "|" + full + "|" + full + "||");
  }
  SECTION("the buffer, and 64 of them") {
    for (int i = 0; i < 70; i++) w.Arrive(kIn, full);
    CHECK(w.Get(e, info, 250).second == full + full);
    CHECK(w.Get(e, info, 99).first == 99);
    CHECK(info.bytes == 100);
    CHECK(w.Get(e, info).first == 6400);
    CHECK(w.Get(e, info).first == 300);
  }
  CHECK(w.Balanced());
}

TEST_CASE("udp checksum: zero is none in IPv4, and not allowed in IPv6 unless asked for") {
  World w;
  const uint32_t e = w.Bound({}, 53, AF_INET6);
  DatagramIn four = kIn, six = World::From(kThere6, 9, kHere6, 53);
  four.checksum = six.checksum = Checksum::kZero;
  CHECK(w.Arrive(four) == Verdict::kDelivered);
  CHECK(w.Arrive(six) == Verdict::kInvalid);
  w.endpoints[e].flags |= kNoChecksum6In;
  CHECK(w.Arrive(six) == Verdict::kDelivered);
  four.checksum = six.checksum = Checksum::kBad;
  CHECK(w.Arrive(four) == Verdict::kInvalid);
  CHECK(w.Arrive(six) == Verdict::kInvalid);
  Close(w.ports, e, w);
  six.checksum = Checksum::kZero;
  CHECK(w.Arrive(six) == Verdict::kInvalid);  // no ICMP for what is not valid
}

IcmpIn PortUnreachable() {
  IcmpIn icmp;
  icmp.type = icmp.code = 3;
  icmp.from = kElsewhere;
  icmp.source = kHere;
  icmp.dest = kThere;
  icmp.source_port = 53;
  icmp.dest_port = 9;
  icmp.ifindex = 7;
  return icmp;
}

TEST_CASE("udp icmp: hard errors to who is connected, once") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  ReceiveInfo info;
  Icmp(w.ports, PortUnreachable(), w);  // not connected: not told
  CHECK(w.Get(e, info).first == -EAGAIN);
  REQUIRE(Connect(w.ports, e, kThere, 9, w) == 0);
  w.Arrive(kIn, "before");
  Icmp(w.ports, PortUnreachable(), w);
  CHECK(w.woken.back() == std::pair{e, Event::kError});
  CHECK(w.Get(e, info).first == -ECONNREFUSED);
  CHECK(w.All(e) == "before|");
  Icmp(w.ports, PortUnreachable(), w);
  CHECK(w.Put(e, "x") == -ECONNREFUSED);
  CHECK(w.Put(e, "x") == 1);
  Icmp(w.ports, PortUnreachable(), w);
  CHECK(TakeError(w.endpoints[e]) == ECONNREFUSED);
  CHECK(TakeError(w.endpoints[e]) == 0);
  IcmpIn soft = PortUnreachable();
  soft.code = 1;  // host unreachable
  Icmp(w.ports, soft, w);
  CHECK(w.endpoints[e].error == 0);
}

TEST_CASE("udp icmp: what doesn't match is not believed") {
  World w;
  const uint32_t e = w.Bound(kHere, 53);
  REQUIRE(Connect(w.ports, e, kThere, 9, w) == 0);
  w.endpoints[e].flags |= kRecvErr;
  for (int field = 0; field < 4; field++) {
    IcmpIn icmp = PortUnreachable();
    if (field == 0) icmp.source = kElsewhere;
    if (field == 1) icmp.dest = kElsewhere;
    if (field == 2) icmp.source_port++;
    if (field == 3) icmp.dest_port++;
    Icmp(w.ports, icmp, w);
  }
  CHECK(w.endpoints[e].error == 0);
  CHECK(w.failed.used == 0);
}

TEST_CASE("udp icmp: IP_RECVERR keeps them all, with what was sent") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].flags |= kRecvErr;
  IcmpIn icmp = PortUnreachable();
  icmp.packet = w.Packet("IPUDPquoted");
  icmp.off = 5;
  icmp.bytes = 6;
  Icmp(w.ports, icmp, w);
  icmp.code = 1;
  icmp.bytes = 0;
  Icmp(w.ports, icmp, w);
  w.Drop(icmp.packet);
  CHECK(w.endpoints[e].error == EHOSTUNREACH);
  std::string buffer(100, 0);
  const iovec iov = {buffer.data(), buffer.size()};
  ErrorInfo info;
  CHECK(ReceiveError(e, {&iov, 1, false}, info, w) == 6);
  CHECK(buffer.substr(0, 6) == "quoted");
  CHECK(info.error == ECONNREFUSED);
  CHECK(info.origin == 2);
  CHECK(info.type == 3);
  CHECK(info.code == 3);
  CHECK(info.dest == kThere);
  CHECK(info.dest_port == 9);
  CHECK(info.from == kElsewhere);
  CHECK(w.endpoints[e].error == EHOSTUNREACH);  // the next one's
  CHECK(ReceiveError(e, {&iov, 1, false}, info, w) == 0);
  CHECK(info.error == EHOSTUNREACH);
  CHECK(w.endpoints[e].error == 0);
  CHECK(ReceiveError(e, {&iov, 1, false}, info, w) == -EAGAIN);
  CHECK(w.Balanced());
  CHECK(w.endpoints[e].charged_bytes == 0);
}

TEST_CASE("udp icmp: a path's MTU") {
  const auto [mode, believed, told] =
      GENERATE(table<uint8_t, bool, int>({{kPmtuDont, true, 0},
                                          {kPmtuWant, true, EMSGSIZE},
                                          {kPmtuDo, true, EMSGSIZE},
                                          {kPmtuProbe, true, EMSGSIZE},
                                          {kPmtuInterface, false, 0},
                                          {kPmtuOmit, false, 0}}));
  World w;
  const uint32_t e = w.Bound({}, 53);
  REQUIRE(Connect(w.ports, e, kThere, 9, w) == 0);
  w.endpoints[e].mtu_discover = mode;
  IcmpIn icmp = PortUnreachable();
  icmp.code = 4;
  icmp.info = 1400;
  Icmp(w.ports, icmp, w);
  CHECK(w.mtu_bytes == (believed ? 1400 : 0));
  CHECK(w.endpoints[e].error == told);
  w.mtu_bytes = 0;
  w.endpoints[e].error = 0;
  icmp.info = 67;  // less than any link has
  Icmp(w.ports, icmp, w);
  CHECK(w.mtu_bytes == 0);
  CHECK(w.endpoints[e].error == 0);
}

TEST_CASE("udp icmp: IPv6") {
  const auto [type, code, error] = GENERATE(table<uint8_t, uint8_t, int>({{1, 4, ECONNREFUSED},
                                                                          {1, 1, EACCES},
                                                                          {1, 0, 0},
                                                                          {1, 99, EPROTO},
                                                                          {2, 0, EMSGSIZE},
                                                                          {3, 0, 0},
                                                                          {4, 0, EPROTO},
                                                                          {128, 0, 0}}));
  World w;
  const uint32_t e = w.Bound({}, 53, AF_INET6);
  REQUIRE(Connect(w.ports, e, kThere6, 9, w) == 0);
  IcmpIn icmp = PortUnreachable();
  icmp.v6 = true;
  icmp.type = type;
  icmp.code = code;
  icmp.source = kHere6;
  icmp.dest = kThere6;
  icmp.info = 1280;
  Icmp(w.ports, icmp, w);
  CHECK(w.endpoints[e].error == error);
}

TEST_CASE("udp queue: errors are bounded, too") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].flags |= kRecvErr;
  w.endpoints[e].rcvbuf_bytes = 5 * DatagramCost(0);
  for (int i = 0; i < 50; i++) Icmp(w.ports, PortUnreachable(), w);
  CHECK(w.failed.used == 5);
}

TEST_CASE("udp queue: shutdown, close and what they leave") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].flags |= kRecvErr;
  w.Arrive(kIn, "rest");
  ReceiveInfo info;
  w.endpoints[e].flags |= kShutRead;
  CHECK(w.Get(e, info).second == "rest");
  CHECK(w.Get(e, info).first == 0);
  w.endpoints[e].flags |= kShutWrite;
  CHECK(w.Put(e, "x", World::To(kThere, 9)) == -EPIPE);
  w.Arrive(kIn, "unread");
  Icmp(w.ports, PortUnreachable(), w);
  Join(e, kGroup, 7, w);
  Close(w.ports, e, w);
  CHECK(w.received.used == 0);
  CHECK(w.failed.used == 0);
  CHECK(w.members.used == 0);
  CHECK(w.Balanced());
}

TEST_CASE("udp queue: mended after a death in the middle of it") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  for (int i = 0; i < 5; i++) w.Arrive(kIn, std::string(1, static_cast<char>('a' + i)));
  Endpoint& endpoint = w.endpoints[e];
  const Endpoint whole = endpoint;
  endpoint.rx_tail = endpoint.rx_head;  // linked, and then nothing more
  endpoint.rx_count = 77;
  endpoint.charged_bytes = 3;
  Mend(e, 1000, w);
  CHECK(memcmp(&endpoint, &whole, sizeof whole) == 0);
  w.Arrive(kIn, "f");
  w.ReceivedAt(endpoint.rx_tail).next = endpoint.rx_head;  // a ring
  Mend(e, 100, w);
  CHECK(endpoint.rx_count == 0);
  CHECK(endpoint.rx_head == kNone);
  CHECK(w.Arrive(kIn, "g") == Verdict::kDelivered);
}

}  // namespace
}  // namespace postern::udp
