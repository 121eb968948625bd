// tcp_close_test.cc - connections end: in each order, by RST, by nobody being there; TIME_WAIT.
// SPDX-License-Identifier: Apache-2.0
#include "tcp_world.h"

namespace postern::tcp {

TEST_CASE("tcp close: we first") {
  TcpWorld w;
  w.Establish();
  w.Write("bye");
  w.wire.clear();
  w.End();
  w.Expect({.seq = 4, .ack = 1, .flags = kFin | kAck, .bytes = 0});
  w.ExpectState(State::kFinWait1);
  SECTION("acknowledged, then the peer's FIN") {
    w.Send({.ack = 5});
    w.ExpectState(State::kFinWait2);
    CHECK(w.Happened(Event::kAllAcked));
    w.Send({.data = "more"});  // half closed: it is still read
    CHECK(w.received == "more");
    w.Send({.flags = kFin | kAck});
    w.ExpectState(State::kTimeWait);
    CHECK(w.Happened(Event::kFin));
  }
  SECTION("FIN and acknowledgement in one") {
    w.Send({.ack = 5, .flags = kFin | kAck});
    w.ExpectState(State::kTimeWait);
  }
  SECTION("both at once") {
    w.Send({.ack = 4, .flags = kFin | kAck});
    w.ExpectState(State::kClosing);
    w.Expect({.seq = 5, .ack = 2, .flags = kAck});
    w.Send({.ack = 5});
    w.ExpectState(State::kTimeWait);
  }
  w.wire.clear();
  // The peer did not see our last ACK.
  const auto fin = static_cast<uint32_t>(w.t.rcv_nxt - Seq(kIrs)) - 1;
  w.Advance(30 * kSecond);
  w.Send({.seq = fin, .flags = kFin | kAck});
  w.Expect({.seq = 5, .ack = fin + 1, .flags = kAck});
  w.Advance(59 * kSecond);
  w.ExpectState(State::kTimeWait);
  w.Advance(2 * kSecond);
  w.ExpectClosed();
}

TEST_CASE("tcp close: the peer first") {
  TcpWorld w;
  w.Establish();
  w.Send({.flags = kFin | kAck, .data = "last"});
  CHECK(w.received == "last");
  CHECK(w.Happened(Event::kFin));
  w.ExpectState(State::kCloseWait);
  w.ExpectNothing();  // the program is about to say something
  SECTION("and does") {
    w.Write("answer");
    w.Expect({.seq = 1, .ack = 6, .data = "answer"});
  }
  SECTION("later") {
    w.Fire(4 * kMs, 200 * kMs);
    w.Expect({.ack = 6, .flags = kAck});
    w.Write("answer");
    w.Expect({.seq = 1, .data = "answer"});
  }
  w.End();
  w.Expect({.seq = 7, .flags = kFin | kAck});
  w.ExpectState(State::kLastAck);
  w.Send({.ack = 8});
  w.ExpectClosed();
}

TEST_CASE("tcp close: a record that was marked and never written") {
  TcpWorld w;
  w.Establish();
  MarkRecord(w.t, 1 + GENERATE(0u, 1u, 5u));  // the FIN has the number behind the first byte
  w.Write("a");
  w.End();
  w.ExpectState(State::kFinWait1);
  CHECK(w.t.record_ends == 0);
}

TEST_CASE("tcp close: a FIN rides on the last data") {
  TcpWorld w;
  w.Establish();
  w.t.settings.flags |= kSetCork;
  w.Write(1500);
  w.wire.clear();
  w.End();
  w.Expect({.seq = 1001, .flags = kFin | kAck, .bytes = 500});
}

TEST_CASE("tcp close: a FIN is sent again") {
  TcpWorld w;
  w.Establish();
  w.End();
  w.Expect({.seq = 1, .flags = kFin | kAck});
  w.Fire(200 * kMs, 300 * kMs);
  w.Expect({.seq = 1, .flags = kFin | kAck});
  w.Send({.ack = 2});
  w.ExpectState(State::kFinWait2);
}

TEST_CASE("tcp close: a FIN that came too early waits") {
  TcpWorld w;
  w.Establish();
  w.Send({.seq = 3, .flags = kFin | kAck, .data = "cd"});
  w.Expect({.ack = 1});
  CHECK(!w.Happened(Event::kFin));
  w.Send({.seq = 1, .data = "ab"});
  CHECK(w.received == "abcd");
  CHECK(w.Happened(Event::kFin));
  w.Expect({.ack = 6});
}

TEST_CASE("tcp close: FIN_WAIT_2 of a connection that nobody holds") {
  TcpWorld w;
  w.Establish();
  w.Close();
  w.Send({.ack = 2});
  w.ExpectState(State::kFinWait2);
  SECTION("60 s") {
    w.Fire(60 * kSecond, 60 * kSecond);
    w.ExpectClosed();
  }
  SECTION("data are lost: RST") {
    w.wire.clear();
    w.Send({.data = "x"});
    w.Expect({.seq = 2, .flags = kRst});
    w.ExpectClosed();
  }
}

TEST_CASE("tcp close: data that come before our FIN is acknowledged get a RST at their ACK") {
  TcpWorld w;
  w.Establish();
  w.Write("abc");
  w.Close();
  w.wire.clear();
  w.Send({.ack = 2, .data = "x"});
  w.Expect({.seq = 2, .flags = kRst});
  w.ExpectClosed();
}

TEST_CASE("tcp close: FIN_WAIT_2 of one that is still read has no end") {
  TcpWorld w;
  w.Establish();
  w.End();
  w.Send({.ack = 2});
  w.Advance(1000 * kSecond);
  w.ExpectState(State::kFinWait2);
}

TEST_CASE("tcp close: abort") {
  TcpWorld w;
  const bool timestamps = GENERATE(false, true);
  w.Establish({.timestamps = timestamps});
  w.Write("x");
  w.wire.clear();
  Abort(w.t, w);
  const auto reset = w.Expect({.seq = 2, .flags = kRst | kAck});
  CHECK(reset.segment.options.has_timestamps == timestamps);
  w.ExpectClosed();
}

TEST_CASE("tcp close: before it has opened") {
  TcpWorld w;
  w.OpenActive();
  w.wire.clear();
  w.Close();
  w.ExpectNothing();
  w.ExpectClosed();
}

TEST_CASE("tcp close: the answer to a segment for nobody") {
  SegmentIn s;
  SegmentOut out;
  s.seq = Seq(0xffffffff);
  s.bytes = 3;
  s.flags = kSyn;
  REQUIRE(ResetFor(s, out));
  CHECK(out.seq == Seq(0));
  CHECK(out.ack == Seq(3));
  CHECK(out.flags == (kRst | kAck));
  s.flags = kAck;
  s.ack = Seq(77);
  REQUIRE(ResetFor(s, out));
  CHECK(out.seq == Seq(77));
  CHECK(out.flags == kRst);
  s.flags = kRst;
  CHECK(!ResetFor(s, out));
}

TEST_CASE("tcp close: TIME_WAIT and a new SYN") {
  TcpWorld w;
  w.Establish({.timestamps = true});
  w.End();
  w.Send({.flags = kFin | kAck});
  w.ExpectState(State::kTimeWait);
  SegmentIn syn;
  syn.flags = kSyn;
  Seq iss;
  SECTION("a later number") {
    syn.seq = w.t.rcv_nxt + 1;
    REQUIRE(MayReuse(w.t, syn, iss));
    CHECK(After(iss, w.t.snd_nxt + 0xffff));
  }
  SECTION("a later timestamp") {
    syn.seq = Seq(kIrs);
    syn.options.has_timestamps = true;
    syn.options.ts_value = w.t.ts_recent + 1;
    CHECK(MayReuse(w.t, syn, iss));
    syn.options.ts_value = w.t.ts_recent;
    CHECK(!MayReuse(w.t, syn, iss));
    syn.seq = w.t.rcv_nxt + 1;
    syn.options.ts_value = w.t.ts_recent - 1;
    CHECK(!MayReuse(w.t, syn, iss));
  }
  SECTION("an old one") {
    syn.seq = Seq(kIrs);
    CHECK(!MayReuse(w.t, syn, iss));
  }
  SECTION("one with a FIN") {
    syn.seq = w.t.rcv_nxt + 1;
    syn.flags = kSyn | kFin;
    CHECK(!MayReuse(w.t, syn, iss));
  }
  Forget(w.t, w);
  w.ExpectState(State::kClosed);
}

TEST_CASE("tcp close: keepalive") {
  TcpWorld w;
  w.Establish();
  w.t.settings.flags |= kSetKeepalive;
  w.t.settings.keepalive_idle_s = 10;
  w.t.settings.keepalive_interval_s = 2;
  w.t.settings.keepalive_probes = 3;
  w.Kick();
  w.Fire(10 * kSecond, 10 * kSecond);
  w.Expect({.seq = 0, .ack = 1, .flags = kAck, .bytes = 0});
  SECTION("answered") {
    w.Send({});
    w.ExpectNothing();
    w.Advance(9 * kSecond);
    w.ExpectNothing();
    w.Advance(2 * kSecond);
    w.Expect({.seq = 0, .bytes = 0});
  }
  SECTION("not answered") {
    w.Fire(2 * kSecond, 2 * kSecond);
    w.Expect({.seq = 0});
    w.Fire(2 * kSecond, 2 * kSecond);
    w.Expect({.seq = 0});
    w.Fire(2 * kSecond, 2 * kSecond);
    w.Expect({.flags = kRst | kAck});
    CHECK(w.ErrorOf(Event::kReset) == ETIMEDOUT);
    w.ExpectClosed();
  }
}

}  // namespace postern::tcp
