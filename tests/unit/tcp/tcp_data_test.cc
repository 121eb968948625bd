// tcp_data_test.cc - data both ways where nothing is lost: segments, windows, Nagle,
// acknowledgements.
// SPDX-License-Identifier: Apache-2.0
#include "tcp_world.h"

namespace postern::tcp {

TEST_CASE("tcp data: a request and its answer") {
  TcpWorld w;
  w.Establish();
  w.Send({.seq = 1, .ack = 1, .data = "request"});
  CHECK(w.received == "request");
  w.ExpectNothing();  // the answer may carry the acknowledgement
  w.Write("answer");
  const auto out = w.Expect({.seq = 1, .ack = 8, .flags = kAck, .data = "answer"});
  CHECK((out.segment.flags & kPsh) != 0);
  w.Send({.ack = 7});
  CHECK(w.Happened(Event::kAllAcked));
  CHECK(w.t.tx_head == kNone);
  w.ExpectNothing();
}

TEST_CASE("tcp data: cut into full segments") {
  TcpWorld w;
  w.Establish();
  const std::string text = w.Text(2500);
  w.Write(text);
  w.Expect({.seq = 1, .data = text.substr(0, 1000)});
  w.Expect({.seq = 1001, .data = text.substr(1000, 1000)});
  w.Expect({.seq = 2001, .data = text.substr(2000)});
  w.ExpectNothing();
  w.Send({.ack = 1501});  // in the middle of one
  CHECK(w.t.tx_count == 2);
  w.Send({.ack = 2501});
  CHECK(w.t.tx_count == 0);
}

TEST_CASE("tcp data: the initial window is ten segments, each acknowledgement opens it") {
  TcpWorld w;
  w.Establish();
  w.Write(40'000);
  CHECK(w.wire.size() == 10);
  w.wire.clear();
  w.Send({.ack = 2001});
  CHECK(w.wire.size() == 4);
}

TEST_CASE("tcp data: Nagle holds a small segment behind a small one only") {
  TcpWorld w;
  w.Establish();
  w.Write("a");
  w.Expect({.data = "a"});
  w.Write("b");
  w.Write("c");
  w.ExpectNothing();
  w.Send({.ack = 2});
  w.Expect({.seq = 2, .data = "bc"});
  SECTION("not with TCP_NODELAY") {
    w.t.settings.flags |= kSetNoDelay;
    w.Write("d");
    w.Expect({.data = "d"});
  }
  SECTION("Minshall: not behind a full one") {
    w.Send({.ack = 4});
    w.Write(1000);
    w.Expect({.bytes = 1000});
    w.Write("e");
    w.Expect({.data = "e"});
  }
}

TEST_CASE("tcp data: cork") {
  TcpWorld w;
  w.Establish();
  w.t.settings.flags |= kSetCork;
  w.Write("head");
  w.ExpectNothing();
  SECTION("full segments leave") {
    w.Write(1500);
    w.Expect({.seq = 1, .bytes = 1000});
    w.ExpectNothing();
  }
  SECTION("pulled") {
    w.t.settings.flags &= ~kSetCork;
    w.Kick();
    w.Expect({.data = "head"});
  }
  SECTION("as long as a retransmission waits at most") {
    w.Fire(w.t.rtt.rto_ns, w.t.rtt.rto_ns);
    CHECK((w.Expect({.data = "head"}).segment.flags & kPsh) != 0);
  }
  SECTION("the end of the stream leaves") {
    w.End();
    w.Expect({.flags = kFin | kAck, .data = "head"});
  }
}

TEST_CASE("tcp data: acknowledgements are delayed, but for each second segment") {
  TcpWorld w;
  w.Establish();
  w.Send({.data = w.Text(1000)});
  w.ExpectNothing();
  SECTION("40 ms") {
    w.Fire(40 * kMs, 40 * kMs);
    w.Expect({.seq = 1, .ack = 1001, .flags = kAck, .bytes = 0});
  }
  SECTION("second") {
    w.Send({.data = w.Text(1000)});
    w.Expect({.ack = 2001, .bytes = 0});
  }
}

TEST_CASE("tcp data: the first segments are acknowledged at once") {
  TcpWorld w;
  w.Establish();
  w.t.ato_ns = 0;  // as at the start
  for (uint32_t i = 1; i <= 16; i++) {
    w.Send({.data = "x"});
    w.Expect({.ack = i + 1, .bytes = 0});
  }
  w.Send({.data = "x"});
  w.ExpectNothing();
  SECTION("a program that answers ends it") {
    w.Write("y");
    w.Expect({.data = "y"});
    CHECK(Has(w.t, kPingPong));
  }
  SECTION("TCP_QUICKACK") {
    SetAckMode(w.t, AckMode::kQuick, w);
    w.Expect({.ack = 18, .bytes = 0});
  }
}

TEST_CASE("tcp data: out of order, overlapping, twice") {
  TcpWorld w;
  w.Establish();
  w.Send({.seq = 4, .data = "def"});
  w.Expect({.ack = 1, .sack = Blocks{{4, 7}}});
  w.Send({.seq = 8, .data = "hi"});
  w.Expect({.ack = 1, .sack = Blocks{{8, 10}, {4, 7}}});
  w.Send({.seq = 5, .data = "efgh"});                     // overlaps both
  w.Expect({.ack = 1, .sack = Blocks{{5, 7}, {4, 10}}});  // the first range that came twice
  CHECK(w.received.empty());
  w.Send({.seq = 1, .data = "abc"});
  w.Expect({.ack = 10, .sack = Blocks{}});
  CHECK(w.received == "abcdefghi");
  CHECK(w.kept.empty());
  w.Send({.seq = 1, .data = "abc"});
  w.Expect({.ack = 10, .sack = Blocks{{1, 4}}});
}

TEST_CASE("tcp data: the window never shrinks, and says so when it opens") {
  TcpWorld w;
  w.room_max = 8000;
  w.Establish();
  w.reading = false;
  uint32_t edge = 0;
  for (uint32_t i = 0; i < 8; i++) {
    w.Send({.data = w.Text(1000)});
    w.Advance(300 * kMs);
    while (!w.wire.empty()) {
      const auto out = w.Expect({.bytes = 0});
      const uint32_t now = static_cast<uint32_t>(out.segment.ack - Seq(kIrs)) + out.segment.window;
      CHECK(now >= edge);
      edge = now;
    }
  }
  CHECK(edge == 8001);
  w.Send({.data = "z"});  // a probe: not taken, answered
  w.Expect({.ack = 8001, .window = 0});
  CHECK(w.received.size() == 8000);
  w.Read();
  const auto update = w.Expect({.ack = 8001, .bytes = 0});
  CHECK(update.segment.window >= 7000);
}

TEST_CASE("tcp data: a receiver that reads is offered more and more") {
  TcpWorld w;
  w.Establish({.timestamps = true});
  uint32_t window = 0;
  for (int round = 0; round < 30; round++) {
    const auto left = static_cast<uint32_t>(w.t.rcv_adv - w.t.rcv_nxt);
    for (uint32_t sent = 0; sent + 988 <= left; sent += 988) w.Send({.data = w.Text(988)});
    w.Advance(10 * kMs);
    w.Kick();
    window = left;
  }
  CHECK(window > 500'000);
}

TEST_CASE("tcp data: TCP_WINDOW_CLAMP bounds what is offered, not what may be unread") {
  TcpWorld w;
  w.t.settings.window_clamp = 4096;
  w.Establish();
  w.reading = false;
  for (int i = 0; i < 20; i++) {
    w.Send({.data = w.Text(1000)});
    w.Advance(300 * kMs);  // until it is acknowledged
    CHECK(w.t.rcv_adv - w.t.rcv_nxt <= 4096);
    CHECK(w.t.rcv_adv - w.t.rcv_nxt >= 4000);
  }
}

TEST_CASE("tcp data: a zero window is probed, with backoff, as long as there are answers") {
  TcpWorld w;
  w.Establish();
  w.Send({.window = 0});
  w.Write("waiting");
  w.ExpectNothing();
  uint64_t wait = 200 * kMs;
  for (int i = 0; i < 20; i++) {
    w.Fire(wait, 120 * kSecond);
    wait = std::min(wait * 2, 120 * kSecond);
    w.Expect({.seq = 0, .bytes = 0});  // behind snd_una: has to be answered
    w.Send({.window = 0});
  }
  w.ExpectState(State::kEstablished);
  w.Send({.window = 100});
  w.Expect({.seq = 1, .data = "waiting"});
}

TEST_CASE("tcp data: probes without an answer end it") {
  TcpWorld w;
  w.Establish();
  w.Send({.window = 0});
  w.Write("waiting");
  w.Advance(3000 * kSecond);
  w.ExpectClosed();
  CHECK(w.ErrorOf(Event::kReset) == ETIMEDOUT);
}

TEST_CASE("tcp data: a window smaller than a segment is used when nothing else moves") {
  TcpWorld w;
  w.Establish({.scale = 0});
  w.Send({.window = 100});
  w.Write(1000);
  w.ExpectNothing();  // RFC 9293, 3.8.6.2.1
  w.Fire(200 * kMs, 2 * kSecond);
  CHECK((w.Expect({.seq = 1, .bytes = 100}).segment.flags & kPsh) != 0);  // as Linux
  w.Send({.ack = 101});
  CHECK((w.Expect({.seq = 101, .bytes = 900}).segment.flags & kPsh) != 0);
}

TEST_CASE("tcp data: no room on the wire") {
  TcpWorld w;
  w.Establish();
  w.wire_room = 2;
  w.Write(5000);
  CHECK(w.wire.size() == 2);
  w.wire_room = ~0u;
  w.Kick();
  CHECK(w.wire.size() == 5);
  CHECK(w.t.snd_nxt == Seq(kIss) + 5001);
}

TEST_CASE("tcp data: no table entry left for a segment") {
  TcpWorld w;
  w.Establish();
  w.tx_segs_max = 0;
  w.Write("x");
  w.ExpectNothing();
  w.tx_segs_max = 100;
  w.Fire(10 * kMs, 10 * kMs);
  w.Expect({.data = "x"});
}

TEST_CASE("tcp data: urgent, both ways") {
  TcpWorld w;
  w.Establish();
  w.Write("ab");
  w.Expect({.flags = kAck, .data = "ab"});
  w.Send({.ack = 3});
  Urgent(w.t, 3, w);
  w.Write("cd!");
  w.Expect({.seq = 3, .flags = kAck | kUrg, .data = "cd!", .urgent = 3});
  w.Write("e");
  w.Expect({.seq = 6, .flags = kAck, .data = "e"});

  w.Send({.seq = 1, .flags = kAck | kUrg, .data = "xy", .urgent = 2});
  CHECK(w.Happened(Event::kUrgent));
  CHECK(w.t.rcv_up == Seq(kIrs) + 3);
  CHECK(w.received == "xy");
}

TEST_CASE("tcp data: pacing") {
  TcpWorld w;
  w.Establish();
  w.t.settings.max_pacing_rate = 1'000'000;  // 1 ms for each segment
  w.Write(10'000);
  CHECK(w.wire.size() == 2);
  w.Advance(4 * kMs);
  CHECK(w.wire.size() == 6);
  w.Advance(4 * kMs);
  CHECK(w.wire.size() == 10);
}

// A deadline that nothing takes back would keep the engine busy for ever.
TEST_CASE("tcp data: pacing ends with the last acknowledgement") {
  TcpWorld w;
  w.Establish();
  w.t.settings.max_pacing_rate = 100'000;
  w.Write(5000);
  w.End();
  w.Advance(100 * kMs);
  const uint32_t end = static_cast<uint32_t>(w.t.snd_nxt - Seq(kIss));
  REQUIRE(end == 5002);
  while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) w.Fire(0, kSecond);
  w.Send({.ack = 1001});  // two may be sent again, the second a little later
  REQUIRE(Has(w.t, kPaceWait));
  w.Send({.ack = end});
  w.ExpectState(State::kFinWait2);
  CHECK(NextDeadline(w.t) == UINT64_MAX);
}

}  // namespace postern::tcp
