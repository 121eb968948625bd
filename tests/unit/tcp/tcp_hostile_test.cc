// tcp_hostile_test.cc - segments that can't be meant: blind attacks, old duplicates, floods.
// SPDX-License-Identifier: Apache-2.0
#include "tcp_world.h"

namespace postern::tcp {

TEST_CASE("tcp hostile: a RST has to hit the next number") {
  TcpWorld w;
  w.Establish();
  w.Send({.data = "abc"});
  w.Advance(kSecond);
  w.wire.clear();
  SECTION("in the window: a challenge (RFC 5961, 3.2)") {
    w.Send({.seq = 100, .flags = kRst});
    w.Expect({.seq = 1, .ack = 4, .flags = kAck, .bytes = 0});
    w.ExpectState(State::kEstablished);
    w.Send({.seq = 101, .flags = kRst});
    w.ExpectNothing();  // one in 500 ms
    w.Advance(kSecond);
    w.Send({.seq = 101, .flags = kRst});
    w.Expect({.ack = 4});
  }
  SECTION("outside: nothing") {
    w.Send({.seq = 0x40000000, .flags = kRst});
    w.ExpectNothing();
    w.ExpectState(State::kEstablished);
  }
  SECTION("exactly") {
    w.Send({.seq = 4, .flags = kRst});
    CHECK(w.ErrorOf(Event::kReset) == ECONNRESET);
    w.ExpectClosed();
    w.ExpectNothing();
  }
}

TEST_CASE("tcp hostile: a SYN is challenged, wherever it is (RFC 5961, 4.2)") {
  TcpWorld w;
  w.Establish();
  const uint32_t seq = GENERATE(0u, 1u, 500u, 0x40000000u);
  w.Send({.seq = seq, .flags = kSyn});
  w.Expect({.seq = 1, .ack = 1, .flags = kAck});
  w.ExpectState(State::kEstablished);
}

TEST_CASE("tcp hostile: an ACK out of bounds drops the segment (RFC 5961, 5.2)") {
  TcpWorld w;
  w.Establish();
  SECTION("of what was not sent") { w.Send({.ack = 5, .data = "evil"}); }
  SECTION("far too old") { w.Send({.ack = 0u - 0x10000000u, .data = "evil"}); }
  w.Expect({.seq = 1, .ack = 1, .flags = kAck, .bytes = 0});
  CHECK(w.received.empty());
}

TEST_CASE(
    "tcp hostile: an ACK of what was never sent is too old, however small the window's past") {
  TcpWorld w;
  w.Establish();
  w.Write("abc");
  w.Send({.ack = 4});
  w.wire.clear();
  w.Send({.ack = 0u - 100u, .data = "evil"});
  w.Expect({.seq = 4, .ack = 1, .flags = kAck, .bytes = 0});
  w.Send({.seq = 1, .ack = 1, .data = "late"});
  CHECK(w.received == "late");
}

TEST_CASE("tcp hostile: a segment without ACK, SYN and RST is nothing") {
  TcpWorld w;
  w.Establish();
  w.Send({.flags = GENERATE(uint8_t{0}, kFin, kPsh, uint8_t{kFin | kPsh | kUrg}), .data = "evil"});
  w.Send({.seq = 0x100000, .flags = 0, .data = "far"});
  w.ExpectNothing();
  CHECK(w.received.empty());
  w.ExpectState(State::kEstablished);
}

TEST_CASE("tcp hostile: the timestamp of a forged segment is not kept") {
  TcpWorld w;
  w.Establish({.timestamps = true});
  const uint32_t far = w.PeerClock() + 1'000'000'000;
  SECTION("no ACK bit") { w.Send({.seq = 1, .flags = kPsh, .data = "evil", .ts = far}); }
  SECTION("of what was not sent") { w.Send({.seq = 1, .ack = 5, .data = "evil", .ts = far}); }
  SECTION("far too old") { w.Send({.seq = 1, .ack = 0u - 0x10000000u, .data = "e", .ts = far}); }
  SECTION("in TIME_WAIT, where it would keep new connections out") {
    w.End();
    w.Send({.flags = kFin | kAck});
    w.ExpectState(State::kTimeWait);
    w.Send({.ack = GENERATE(0u, 1u, 3u, 0x10000000u), .ts = far});
  }
  CHECK(w.t.ts_recent == w.PeerClock());
  CHECK(w.received.empty());
}

TEST_CASE("tcp hostile: a handshake is challenged as a connection is") {
  TcpWorld w;
  w.OpenPassiveBy();
  w.wire.clear();
  SECTION("a SYN of other numbers") { w.Send({.seq = 500, .ack = 0, .flags = kSyn}); }
  SECTION("a RST that does not hit") { w.Send({.seq = 500, .flags = kRst}); }
  SECTION("beyond the window") { w.Send({.seq = 0x100000, .data = "far"}); }
  w.Expect({.seq = 1, .ack = 1, .flags = kAck, .bytes = 0});
  w.ExpectNothing();
  w.ExpectState(State::kSynReceived);
  w.Send({.seq = 1});
  w.ExpectState(State::kEstablished);
}

TEST_CASE("tcp hostile: data outside the window are answered, not taken") {
  TcpWorld w;
  w.Establish();
  w.Send({.seq = 0x100000, .data = "far"});
  w.Expect({.ack = 1, .bytes = 0});
  CHECK(w.received.empty());
  CHECK(w.kept.empty());
}

TEST_CASE("tcp hostile: PAWS") {
  TcpWorld w;
  w.Establish({.timestamps = true});
  w.Send({.data = "abc"});
  const uint32_t now = w.PeerClock();
  w.Advance(kSecond);
  w.wire.clear();
  w.Send({.seq = 4, .data = "old", .ts = now - 1000});
  CHECK(w.received == "abc");
  w.Expect({.ack = 4, .bytes = 0});
  w.Send({.seq = 4, .data = "new"});
  CHECK(w.received == "abcnew");
  SECTION("a RST is not subject to it") {
    w.Send({.seq = 7, .flags = kRst, .ts = now - 1000});
    w.ExpectClosed();
  }
  SECTION("after 24 days nothing is known any more") {
    w.Advance(25ull * 86400 * kSecond);
    w.Send({.seq = 7, .data = "!", .ts = now - 1000});
    CHECK(w.received == "abcnew!");
  }
}

TEST_CASE("tcp hostile: a segment that a retransmission has overtaken is late, not old") {
  TcpWorld w;
  w.Establish({.timestamps = true});  // 10 ms of round trip
  w.Advance(kSecond);
  const uint32_t sent = w.PeerClock();
  w.Send({.seq = 3, .data = "cd"});
  w.Advance(8 * kMs);
  w.Send({.seq = 1, .data = "ab"});  // again: it fills the hole
  CHECK(w.received == "abcd");
  SECTION("it is taken") {
    w.Send({.seq = 7, .data = "gh", .ts = sent});
    w.Send({.seq = 5, .data = "ef", .ts = sent});
    CHECK(w.received == "abcdefgh");
    CHECK(w.t.ts_recent == w.PeerClock());
  }
  SECTION("not what has come already, nor without data") {
    w.wire.clear();
    w.Send({.seq = 1, .data = "ab", .ts = sent});
    w.Expect({.ack = 5, .bytes = 0});
    w.Send({.seq = 5, .flags = kFin | kAck, .ts = sent});
    w.ExpectState(State::kEstablished);
  }
  SECTION("nor what is late by more than a round trip") {
    w.Send({.seq = 5, .data = "ef", .ts = w.PeerClock() - 11});
    CHECK(w.received == "abcd");
    w.Send({.seq = 5, .data = "ef", .ts = w.PeerClock() - 10});
    CHECK(w.received == "abcdef");
  }
  SECTION("nor what was stamped 2^30 bytes ago or more") {
    for (int i = 0; i < 2; i++) {
      w.t.ts_floor_seq = w.t.rcv_nxt - (1u << 30);  // as if so much had come
      w.Advance(5 * kMs);
      w.Send({.data = "x"});
    }
    w.Send({.data = "y", .ts = w.PeerClock() - 6});
    CHECK(w.received == "abcdxx");
    w.Send({.seq = 7, .data = "y", .ts = w.PeerClock() - 5});
    CHECK(w.received == "abcdxxy");
  }
}

TEST_CASE("tcp hostile: what is kept out of order is bounded") {
  TcpWorld w;
  w.room_max = 60'000;
  w.Establish();
  for (uint32_t i = 0; i < 5000; i++) w.Send({.seq = 3 + 2 * i, .data = "x"});
  CHECK(w.t.rx_count == kRxSegsMax);
  CHECK(w.kept.size() == kRxSegsMax);
  // What is missing gets through all the same.
  w.wire.clear();
  for (uint32_t i = 0; i < 100; i++) w.Send({.seq = 1 + i, .data = "y"});
  CHECK(w.received.size() >= 100);
}

// Two streams of them in turns, each far from the other, and both before what came first.
TEST_CASE("tcp hostile: what comes early finds its place in a short walk") {
  TcpWorld w;
  w.room_max = 60'000;
  w.Establish();
  const auto early = [&w](uint32_t nth) { w.Send({.seq = 3 + 2 * nth, .data = "x"}); };
  early(kRxSegsMax);
  constexpr uint32_t kHalf = kRxSegsMax / 2 - 1;
  w.steps_looks = 0;
  for (uint32_t i = 0; i < kHalf; i++) {
    early(i);
    early(kHalf + i);
  }
  CHECK(w.t.rx_count == 2 * kHalf + 1);
  CHECK(w.steps_looks / (2 * kHalf) < 500);
}

TEST_CASE("tcp hostile: SACKs of nonsense change nothing") {
  TcpWorld w;
  w.Establish();
  w.Write(5000);
  w.wire.clear();
  w.Send({.ack = 1, .sack = Blocks{{9001, 10'001}}});            // not sent
  w.Send({.ack = 1, .sack = Blocks{{3001, 2001}}});              // backwards
  w.Send({.ack = 1, .sack = Blocks{{1001, 0x70000000}}});        // all and more
  w.Send({.ack = 1, .sack = Blocks{{0u - 5000u, 0u - 4000u}}});  // long ago
  w.Send({.ack = 1, .sack = Blocks{{1500, 1600}}});              // a part of one
  CHECK(w.t.sacked_bytes == 0);
  CHECK(w.t.lost_bytes == 0);
}

TEST_CASE("tcp hostile: ICMP errors count only for what is under way (RFC 5927)") {
  TcpWorld w;
  w.Establish();
  SoftError(w.t, Seq(kIss) + 1, EHOSTUNREACH, false, w);
  CHECK(!w.Happened(Event::kSoftError));
  w.Write("x");
  SoftError(w.t, Seq(kIss) + 1, EHOSTUNREACH, true, w);
  CHECK(w.ErrorOf(Event::kSoftError) == EHOSTUNREACH);
  w.ExpectState(State::kEstablished);
  w.Advance(2000 * kSecond);
  CHECK(w.ErrorOf(Event::kReset) == EHOSTUNREACH);  // the better reason
}

TEST_CASE("tcp hostile: an ICMP error ends a connection that is being opened") {
  TcpWorld w;
  w.OpenActive();
  SoftError(w.t, Seq(kIss), ECONNREFUSED, true, w);
  CHECK(w.ErrorOf(Event::kReset) == ECONNREFUSED);
  w.ExpectClosed();
}

TEST_CASE("tcp hostile: ACKs for parts of a segment gain nothing") {
  TcpWorld w;
  w.Establish();
  w.Write(20'000);
  w.wire.clear();
  const uint32_t cwnd = w.t.cc.cwnd_bytes;
  for (uint32_t i = 1; i <= 100; i++) w.Send({.ack = 1 + i});
  CHECK(w.t.cc.cwnd_bytes <= cwnd + 100);  // by bytes: RFC 3465
}

}  // namespace postern::tcp
