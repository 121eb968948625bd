// tcp_handshake_test.cc - TCP connections begin: active, passive, both at once, from a cookie,
// refused.
// SPDX-License-Identifier: Apache-2.0
#include "tcp/segment/syn_cookie.h"
#include "tcp_world.h"

namespace postern::tcp {

TEST_CASE("tcp handshake: active") {
  TcpWorld w;
  w.OpenActive({.timestamps = true});
  const auto syn = w.Expect({.seq = 0, .flags = kSyn, .bytes = 0, .window = 65 * kMss});
  CHECK(syn.segment.options.mss == kMss);
  CHECK(syn.segment.options.sack_permitted);
  CHECK(syn.segment.options.has_window_scale);
  CHECK(syn.segment.options.window_scale == 5);  // a room of 1 MiB
  CHECK(syn.segment.options.has_timestamps);
  w.ExpectState(State::kSynSent);
  w.Advance(20 * kMs);
  w.Send({.seq = 0, .ack = 1, .flags = kSynAckFlags, .window = 1000});
  w.Expect({.seq = 1, .ack = 1, .flags = kAck, .bytes = 0});
  w.ExpectState(State::kEstablished);
  CHECK(w.Happened(Event::kConnected));
  CHECK(w.t.snd_wnd == 1000);  // not scaled: RFC 7323, 2.2
  CHECK(Srtt(w.t.rtt) == 20 * kMs);
  CHECK(w.t.mss_bytes == kMss - 12);
  w.Send({.window = 1000});
  CHECK(w.t.snd_wnd == 128'000);
}

TEST_CASE("tcp handshake: SYNs are repeated with doubled pauses, then it is given up") {
  TcpWorld w;
  w.OpenActive();
  w.Expect({.seq = 0, .flags = kSyn});
  uint64_t pause = kSecond;
  for (int i = 0; i < 6; i++, pause *= 2) {
    w.Fire(pause, pause);
    w.Expect({.seq = 0, .flags = kSyn});
  }
  w.Fire(pause, pause);
  w.ExpectNothing();
  w.ExpectClosed();
  CHECK(w.ErrorOf(Event::kReset) == ETIMEDOUT);
}

TEST_CASE("tcp handshake: refused") {
  TcpWorld w;
  w.OpenActive();
  w.Send({.seq = 0, .ack = 2, .flags = kRst | kAck});  // not about our SYN
  w.ExpectState(State::kSynSent);
  w.Send({.seq = 0, .ack = 1, .flags = kRst | kAck});
  CHECK(w.ErrorOf(Event::kReset) == ECONNREFUSED);
  w.ExpectClosed();
}

TEST_CASE("tcp handshake: an acknowledgement of something else is answered by a RST") {
  TcpWorld w;
  w.OpenActive();
  w.wire.clear();
  w.Send({.seq = 0, .ack = 77, .flags = kSynAckFlags});
  w.Expect({.seq = 77, .flags = kRst});
  w.ExpectState(State::kSynSent);
  // The RST ends what has answered, and the SYN comes again soon; once.
  w.Fire(8 * kMs, 8 * kMs);
  w.Expect({.seq = 0, .flags = kSyn});
  w.Send({.seq = 0, .ack = 77, .flags = kSynAckFlags});
  w.Expect({.seq = 77, .flags = kRst});
  w.Fire(1900 * kMs, 2 * kSecond);
}

TEST_CASE("tcp handshake: passive") {
  TcpWorld w;
  w.OpenPassiveBy({.timestamps = true});
  const auto reply = w.Expect({.seq = 0, .ack = 1, .flags = kSynAckFlags});
  CHECK(reply.segment.options.has_timestamps);
  CHECK(reply.segment.options.sack_permitted);
  CHECK(reply.segment.options.has_window_scale);
  w.ExpectState(State::kSynReceived);
  CHECK(!w.Happened(Event::kConnected));
  w.Send({.seq = 1, .ack = 1});
  w.ExpectState(State::kEstablished);
  CHECK(w.Happened(Event::kConnected));
  w.ExpectNothing();
}

TEST_CASE("tcp handshake: passive, options that the peer does not have are not used") {
  TcpWorld w;
  w.OpenPassiveBy({.sack = false, .scale = std::nullopt});
  const auto reply = w.Expect({.seq = 0, .ack = 1, .flags = kSynAckFlags});
  CHECK(!reply.segment.options.has_timestamps);
  CHECK(!reply.segment.options.sack_permitted);
  CHECK(!reply.segment.options.has_window_scale);
  w.Send({.seq = 1, .ack = 1, .window = 5000});
  CHECK(w.t.snd_wnd == 5000);
}

TEST_CASE("tcp handshake: a lost SYN-ACK is sent again, for the SYN and by the clock") {
  TcpWorld w;
  w.OpenPassiveBy();
  w.wire.clear();
  w.Send({.seq = 0, .ack = 0, .flags = kSyn});
  w.Expect({.seq = 0, .ack = 1, .flags = kSynAckFlags});
  w.Fire(kSecond, kSecond);
  w.Expect({.seq = 0, .ack = 1, .flags = kSynAckFlags});
  w.Advance(200 * kSecond);
  w.ExpectClosed();
}

TEST_CASE("tcp handshake: passive, the third segment brings data") {
  TcpWorld w;
  w.OpenPassiveBy();
  w.Send({.seq = 1, .ack = 1, .data = "GET /"});
  w.ExpectState(State::kEstablished);
  CHECK(w.received == "GET /");
}

TEST_CASE("tcp handshake: passive, a wrong acknowledgement gets a RST") {
  TcpWorld w;
  w.OpenPassiveBy();
  w.wire.clear();
  w.Send({.seq = 1, .ack = 9});
  w.Expect({.seq = 9, .flags = kRst});
  w.ExpectState(State::kSynReceived);
}

TEST_CASE("tcp handshake: deferred until data come") {
  TcpWorld w;
  w.t.settings.defer_accept_s = 3;
  w.OpenPassiveBy();
  w.wire.clear();
  w.Send({.seq = 1, .ack = 1});
  w.ExpectState(State::kSynReceived);
  SECTION("data") {
    w.Advance(2 * kSecond);
    w.Send({.seq = 1, .ack = 1, .data = "x"});
    w.ExpectState(State::kEstablished);
    CHECK(w.received == "x");
    CHECK(Srtt(w.t.rtt) < kSecond);  // what the client took to write is no round trip
  }
  SECTION("none in time: the next ACK is good") {
    w.Fire(3 * kSecond, 3 * kSecond);
    w.Expect({.seq = 0, .ack = 1, .flags = kSynAckFlags});
    w.Send({.seq = 1, .ack = 1});
    w.ExpectState(State::kEstablished);
  }
}

TEST_CASE("tcp handshake: both open at once") {
  TcpWorld w;
  w.OpenActive();
  w.Expect({.seq = 0, .flags = kSyn});
  w.Send({.seq = 0, .ack = 0, .flags = kSyn});
  w.ExpectState(State::kSynReceived);
  w.Expect({.seq = 0, .ack = 1, .flags = kSynAckFlags});
  SECTION("the peer's SYN-ACK ends it") {
    w.Send({.seq = 0, .ack = 1, .flags = kSynAckFlags});
    w.ExpectState(State::kEstablished);
    w.Expect({.seq = 1, .ack = 1, .flags = kAck});
  }
  SECTION("its ACK does") {
    w.Send({.seq = 1, .ack = 1});
    w.ExpectState(State::kEstablished);
  }
}

TEST_CASE("tcp handshake: out of a cookie") {
  TcpWorld w;
  CookieState cookie;
  cookie.iss = Seq(kIss);
  cookie.irs = Seq(kIrs);
  cookie.mss = 536;
  cookie.sack = true;
  SegmentIn ack;
  ack.seq = Seq(kIrs) + 1;
  ack.ack = Seq(kIss) + 1;
  ack.flags = kAck;
  ack.window = 1000;
  ack.data = reinterpret_cast<const uint8_t*>("hi");
  ack.bytes = 2;
  OpenFromCookie(w.t, {.mss_max = kMss, .mss_receive = kMss, .iss = Seq(1), .ecn = false}, cookie,
                 ack, w);
  w.ExpectState(State::kEstablished);
  CHECK(w.received == "hi");
  CHECK(w.t.mss_bytes == 536);
  w.wire.clear();
  w.Write("yo");
  w.Expect({.seq = 1, .ack = 3, .data = "yo"});
}

TEST_CASE("tcp handshake: no room on the wire for the SYN") {
  TcpWorld w;
  w.wire_room = 0;
  w.OpenActive();
  w.ExpectNothing();
  w.wire_room = ~0u;
  w.Kick();
  w.Expect({.seq = 0, .flags = kSyn});
}

TEST_CASE("tcp handshake: MSS") {
  TcpWorld w;
  SECTION("the smaller of both") {
    w.Establish({.mss = 600});
    CHECK(w.t.mss_bytes == 600);
  }
  SECTION("536 if the peer says none") {
    w.Establish({.mss = 0});
    CHECK(w.t.mss_bytes == 48);  // mss_max is 0 here as well: the floor
  }
  SECTION("TCP_MAXSEG") {
    w.t.settings.maxseg = 400;
    w.OpenActive();
    CHECK(w.Expect({.flags = kSyn}).segment.options.mss == 400);
    w.Send({.seq = 0, .ack = 1, .flags = kSynAckFlags});
    CHECK(w.t.mss_bytes == 400);
  }
}

}  // namespace postern::tcp
