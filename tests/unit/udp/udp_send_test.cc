// SPDX-License-Identifier: Apache-2.0
// udp_send_test.cc - what goes out: names, limits, IP_MTU_DISCOVER, UDP_SEGMENT, control messages.
#include "../kit/catch.h"
#include "udp_world.h"

namespace postern::udp {
namespace {

TEST_CASE("udp send: needs to know whereto, and takes a port by itself") {
  World w;
  const uint32_t e = w.Open();
  CHECK(w.Put(e, "x") == -EDESTADDRREQ);
  CHECK(w.Put(e, "x", World::To(kThere, 0)) == -EINVAL);
  CHECK(w.Put(e, "hello", World::To(kThere, 9)) == 5);
  REQUIRE(w.wire.size() == 1);
  const DatagramOut& out = w.wire[0].out;
  CHECK(w.wire[0].payload == "hello");
  CHECK(out.source == kHere);
  CHECK(out.dest == kThere);
  CHECK(out.source_port == 40000);
  CHECK(out.dest_port == 9);
  CHECK(out.ttl == 64);
  CHECK(out.dont_fragment);
  CHECK_FALSE(out.no_checksum);
  CHECK(w.Arrive(World::From(kThere, 9, kHere, 40000)) == Verdict::kDelivered);
  CHECK(w.Put(e, "", World::To(kThere, 9)) == 0);
  CHECK(w.wire.size() == 2);  // an empty datagram is one
  const uint32_t other = w.Open();
  w.next_port = 0;
  CHECK(w.Put(other, "x", World::To(kThere, 9)) == -EAGAIN);
}

TEST_CASE("udp send: connected, and yet to somebody else") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  REQUIRE(Connect(w.ports, e, kThere, 9, w) == 0);
  CHECK(w.endpoints[e].local == kHere);
  CHECK(w.Put(e, "a") == 1);
  CHECK(w.Put(e, "b", World::To(kElsewhere, 10)) == 1);
  CHECK(w.wire[0].out.dest == kThere);
  CHECK(w.wire[1].out.dest == kElsewhere);
  CHECK(w.wire[1].out.dest_port == 10);
  Disconnect(w.ports, e, w);
  CHECK(w.endpoints[e].local.IsAny());
  CHECK(w.endpoints[e].local_port == 53);
  CHECK(w.Put(e, "c") == -EDESTADDRREQ);
}

TEST_CASE("udp connect: again, off, and with a port that is given back") {
  World w;
  const uint32_t e = w.Open();
  REQUIRE(Connect(w.ports, e, kThere, 9, w) == 0);
  REQUIRE(Connect(w.ports, e, kElsewhere, 9, w) == 0);
  CHECK(w.ports.connected_count == 1);
  CHECK(w.Arrive(World::From(kThere, 9, kHere, 40000)) == Verdict::kNoPort);
  CHECK(w.Arrive(World::From(kElsewhere, 9, kHere, 40000)) == Verdict::kDelivered);
  Disconnect(w.ports, e, w);
  CHECK(w.endpoints[e].local_port == 0);
  CHECK(w.ports.connected_count == 0);
  CHECK(w.Arrive(World::From(kElsewhere, 9, kHere, 40000)) == Verdict::kNoPort);
  w.route_error = EHOSTUNREACH;
  CHECK(Connect(w.ports, e, kThere, 9, w) == -EHOSTUNREACH);
  CHECK(w.Put(e, "x", World::To(kThere, 9)) == -EHOSTUNREACH);
  CHECK((w.endpoints[e].flags & kConnected) == 0);
}

TEST_CASE("udp send: families") {
  World w;
  const uint32_t four = w.Open(), six = w.Open(AF_INET6);
  CHECK(w.Put(four, "x", World::To(kThere6, 9)) == -EAFNOSUPPORT);
  CHECK(w.Put(six, "x", World::To(kThere, 9)) == 1);
  CHECK(w.Put(six, "x", World::To(kThere6, 9)) == 1);
  w.endpoints[six].flags |= kV6Only;
  CHECK(w.Put(six, "x", World::To(kThere, 9)) == -ENETUNREACH);
  CHECK(w.Put(four, "x", World::To({}, 9)) == 1);  // any is the loopback
  CHECK(w.wire.back().out.dest == IpAddress::V4(127, 0, 0, 1));
  CHECK(Bind(w.ports, w.Open(), kHere6, 5, w) == -EINVAL);
}

TEST_CASE("udp send: broadcast has to be allowed") {
  World w;
  const uint32_t e = w.Open();
  w.route.cast = Cast::kBroadcast;
  CHECK(w.Put(e, "x", World::To(kBroadcast, 9)) == -EACCES);
  CHECK(Connect(w.ports, e, kBroadcast, 9, w) == -EACCES);
  w.endpoints[e].flags |= kBroadcastAllowed;
  CHECK(w.Put(e, "x", World::To(kBroadcast, 9)) == 1);
}

TEST_CASE("udp send: multicast has a hop limit, an interface and a loop of its own") {
  World w;
  const uint32_t e = w.Bound({}, 5353);
  w.endpoints[e].ttl = 33;
  w.endpoints[e].multicast_ifindex = 5;
  w.route.cast = Cast::kMulticast;
  w.route.joined = true;
  CHECK(w.Put(e, "x", World::To(kGroup, 5353)) == 1);
  CHECK(w.wire.back().out.ttl == 1);
  CHECK(w.wire.back().out.ifindex == 5);
  CHECK(w.wire.back().out.loop);
  w.endpoints[e].flags &= ~kMulticastLoop;
  w.Put(e, "x", World::To(kGroup, 5353));
  CHECK_FALSE(w.wire.back().out.loop);
  w.endpoints[e].flags |= kMulticastLoop;
  w.route.joined = false;  // nobody here listens
  w.Put(e, "x", World::To(kGroup, 5353));
  CHECK_FALSE(w.wire.back().out.loop);
  const uint32_t group = w.Bound(kGroup, 5353);
  w.Put(group, "x", World::To(kThere, 9));
  CHECK(w.wire.back().out.source == kHere);  // not from the group
  CHECK(w.wire.back().out.ttl == 64);
}

TEST_CASE("udp send: control messages say from where and how") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  SendArgs args = World::To(kThere, 9);
  args.source = kElsewhere;
  args.ifindex = 4;
  args.ttl = 3;
  args.tos = 0x10;
  CHECK(w.Put(e, "x", args) == 1);
  CHECK(w.wire[0].out.source == kElsewhere);
  CHECK(w.wire[0].out.ifindex == 4);
  CHECK(w.wire[0].out.ttl == 3);
  CHECK(w.wire[0].out.tos == 0x10);
  w.endpoints[e].ifindex = 7;
  CHECK(w.Put(e, "x", args) == -EINVAL);
  args.ifindex = 0;
  args.ttl = 256;
  CHECK(w.Put(e, "x", args) == -EINVAL);
}

TEST_CASE("udp send: IP_MTU_DISCOVER") {
  struct Row {
    uint8_t mode;
    uint32_t limit;  // the longest payload
    bool df_short, df_long;
  };
  // Interface 1500, path 1400: 1472 and 1372 of payload.
  const Row row =
      GENERATE(Row{kPmtuDont, 65507, false, false}, Row{kPmtuWant, 65507, true, false},
               Row{kPmtuDo, 1372, true, true}, Row{kPmtuProbe, 1472, true, true},
               Row{kPmtuInterface, 1472, false, false}, Row{kPmtuOmit, 65507, false, false});
  World w;
  w.route.path_mtu_bytes = 1400;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].mtu_discover = row.mode;
  CHECK(w.Put(e, std::string(1372, 's'), World::To(kThere, 9)) == 1372);
  CHECK(w.wire.back().out.dont_fragment == row.df_short);
  CHECK(w.Put(e, std::string(row.limit, 'l'), World::To(kThere, 9)) == row.limit);
  CHECK(w.wire.back().out.dont_fragment == row.df_long);
  const size_t sent = w.wire.size();
  CHECK(w.Put(e, std::string(row.limit + 1, 'l'), World::To(kThere, 9)) == -EMSGSIZE);
  CHECK(w.wire.size() == sent);
}

TEST_CASE("udp send: IPv6 has other headers and another limit") {
  World w;
  const uint32_t e = w.Open(AF_INET6);
  CHECK(w.Put(e, std::string(65527, 'l'), World::To(kThere6, 9)) == 65527);
  CHECK(w.Put(e, std::string(65528, 'l'), World::To(kThere6, 9)) == -EMSGSIZE);
  w.endpoints[e].mtu_discover = kPmtuDo;
  CHECK(w.Put(e, std::string(1452, 'l'), World::To(kThere6, 9)) == 1452);
  CHECK(w.Put(e, std::string(1453, 'l'), World::To(kThere6, 9)) == -EMSGSIZE);
}

TEST_CASE("udp send: IP_RECVERR says what would have fitted") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].mtu_discover = kPmtuDo;
  w.endpoints[e].flags |= kRecvErr;
  CHECK(w.Put(e, std::string(5000, 'l'), World::To(kThere, 9)) == -EMSGSIZE);
  ErrorInfo info;
  CHECK(ReceiveError(e, {}, info, w) == 0);
  CHECK(info.error == EMSGSIZE);
  CHECK(info.origin == 1);
  CHECK(info.info == 1500);
  CHECK(info.dest == kThere);
  CHECK(w.endpoints[e].error == 0);  // the caller knows already
  CHECK(w.Put(e, "x", World::To(kThere, 9)) == 1);
}

TEST_CASE("udp send: UDP_SEGMENT makes a train of one buffer") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  std::string payload;
  for (int i = 0; i < 1050; i++) payload += static_cast<char>('a' + i % 26);
  SendArgs args = World::To(kThere, 9);
  SECTION("by control message or option") {
    const bool option = GENERATE(false, true);
    if (option) {
      w.endpoints[e].gso_bytes = 100;
    } else {
      args.gso_bytes = 100;
    }
    CHECK(w.Put(e, payload, args) == 1050);
    REQUIRE(w.wire.size() == 11);
    std::string all;
    for (const Sent& sent : w.wire) {
      CHECK(sent.payload.size() == (&sent == &w.wire.back() ? 50u : 100u));
      all += sent.payload;
    }
    CHECK(all == payload);
    args.gso_bytes = 0;  // off for this one
    w.wire.clear();
    CHECK(w.Put(e, payload, args) == 1050);
    CHECK(w.wire.size() == 1);
  }
  SECTION("limits") {
    args.gso_bytes = 8;  // 132 of them
    CHECK(w.Put(e, payload, args) == -EINVAL);
    args.gso_bytes = 1473;
    CHECK(w.Put(e, payload, args) == 1050);  // shorter than one: an ordinary datagram
    CHECK(w.Put(e, std::string(3000, 'x'), args) == -EMSGSIZE);
    args.gso_bytes = 1472;
    CHECK(w.Put(e, std::string(3000, 'x'), args) == 3000);
    CHECK(w.Put(e, std::string(65507, 'x'), args) == 65507);
    CHECK(w.Put(e, std::string(65508, 'x'), args) == -EMSGSIZE);
    w.endpoints[e].flags |= kNoChecksumOut;
    CHECK(w.Put(e, payload, args) == -EINVAL);
    args.gso_bytes = 65536;
    CHECK(w.Put(e, payload, args) == -EINVAL);
  }
  SECTION("a wire without room") {
    args.gso_bytes = 100;
    w.wire_room = 0;
    CHECK(w.Put(e, payload, args) == -EAGAIN);
    w.wire_room = 4;  // as a full queue: the rest is lost
    CHECK(w.Put(e, payload, args) == 1050);
    CHECK(w.wire.size() == 4);
  }
}

TEST_CASE("udp send: pieces are put together across vectors") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  std::string a = "abc", b, c = "defgh";
  const iovec iov[] = {{a.data(), 3}, {b.data(), 0}, {c.data(), 5}};
  SendArgs args = World::To(kThere, 9);
  args.iov = iov;
  args.iov_count = 3;
  args.gso_bytes = 2;
  CHECK(Send(w.ports, e, args, w) == 8);
  REQUIRE(w.wire.size() == 4);
  CHECK(w.wire[1].payload == "cd");
  const iovec huge[] = {{a.data(), SIZE_MAX}, {a.data(), SIZE_MAX}};
  args.iov = huge;
  args.iov_count = 2;
  CHECK(Send(w.ports, e, args, w) == -EMSGSIZE);
}

TEST_CASE("udp send: no checksum where the program wants none") {
  World w;
  const uint32_t e = w.Bound({}, 53);
  w.endpoints[e].flags |= kNoChecksumOut;
  w.Put(e, "x", World::To(kThere, 9));
  CHECK(w.wire[0].out.no_checksum);
}

}  // namespace
}  // namespace postern::udp
