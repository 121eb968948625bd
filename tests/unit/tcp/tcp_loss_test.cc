// tcp_loss_test.cc - segments that do not arrive: time-outs, probes, fast recovery, and taking it
// back.
// SPDX-License-Identifier: Apache-2.0
#include "tcp_world.h"

namespace postern::tcp {
namespace {

// `count` full segments under way, 10 ms of round trip known.
void InFlight(TcpWorld& w, uint32_t count) {
  w.Send({});  // the window in its scaled form: it does not change any more
  w.Write(count * kMss);
  REQUIRE(w.wire.size() == count);
  w.wire.clear();
}

}  // namespace

TEST_CASE("tcp loss: a lone segment is probed, then times out, with backoff") {
  TcpWorld w;
  w.Establish();
  w.Write("x");
  w.Expect({.seq = 1, .data = "x"});
  w.Fire(200 * kMs, 250 * kMs);  // TLP: 2 RTT and the peer's delayed acknowledgement
  w.Expect({.seq = 1, .data = "x"});
  w.Fire(200 * kMs, 250 * kMs);
  w.Expect({.seq = 1, .data = "x"});
  CHECK(w.t.cc.cwnd_bytes == kMss);
  w.Fire(400 * kMs, 500 * kMs);
  w.Expect({.seq = 1, .data = "x"});
  w.Fire(800 * kMs, 1000 * kMs);
  w.Expect({.seq = 1, .data = "x"});
  w.Send({.ack = 2});
  CHECK(w.t.tx_head == kNone);
  CHECK(NextDeadline(w.t) == UINT64_MAX);
}

TEST_CASE("tcp loss: it is given up after tcp_retries2's time") {
  TcpWorld w;
  w.Establish();
  w.Write("x");
  w.Advance(900 * kSecond);
  w.ExpectState(State::kEstablished);
  w.Advance(200 * kSecond);
  w.ExpectClosed();
  CHECK(w.ErrorOf(Event::kReset) == ETIMEDOUT);
}

TEST_CASE("tcp loss: user timeout") {
  TcpWorld w;
  w.Establish();
  w.t.settings.user_timeout_ms = 3000;
  w.Write("x");
  w.Advance(2 * kSecond);
  w.ExpectState(State::kEstablished);
  w.Advance(2 * kSecond);
  w.ExpectClosed();
  CHECK(w.ErrorOf(Event::kReset) == ETIMEDOUT);
}

TEST_CASE("tcp loss: the tail is probed with its last segment") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 5);
  w.Advance(10 * kMs);
  w.Send({.ack = 3001});
  w.Fire(20 * kMs, 30 * kMs);
  w.Expect({.seq = 4001, .bytes = 1000});
  // It shows the loss of the one before it, long before the RTO.
  w.Advance(10 * kMs);
  w.Send({.ack = 3001, .sack = Blocks{{4001, 5001}}});
  w.Advance(5 * kMs);
  w.Expect({.seq = 3001, .bytes = 1000});
}

TEST_CASE("tcp loss: new data are the better probe") {
  TcpWorld w;
  w.Establish();
  w.Write(12 * kMss);
  CHECK(w.wire.size() == 10);
  w.wire.clear();
  w.Fire(20 * kMs, 30 * kMs);
  w.Expect({.seq = 10'001, .bytes = 1000});
  w.ExpectNothing();
  w.Fire(200 * kMs, 250 * kMs);
  w.Expect({.seq = 1, .bytes = 1000});
}

TEST_CASE("tcp loss: three SACKed segments show that the one before them is lost") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 10);
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{1001, 2001}}});
  w.ExpectNothing();
  w.Send({.ack = 1, .sack = Blocks{{1001, 3001}}});
  w.ExpectNothing();
  w.Send({.ack = 1, .sack = Blocks{{1001, 4001}}});
  w.Expect({.seq = 1, .bytes = 1000});
  w.ExpectNothing();
  CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kFast));
  CHECK(w.t.cc.ssthresh_bytes == 7000);  // CUBIC: 0.7
  for (uint32_t i = 5; i <= 10; i++) w.Send({.ack = 1, .sack = Blocks{{1001, i * 1000 + 1}}});
  w.Send({.ack = 10'001});
  CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kOpen));
  CHECK(w.t.cc.cwnd_bytes >= 7000);
  CHECK(w.t.cc.cwnd_bytes < 8000);
  w.ExpectNothing();
}

TEST_CASE("tcp loss: several holes are filled in one round trip") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 10);
  w.Advance(10 * kMs);
  // 1, 3 and 5 are lost.
  w.Send({.ack = 1, .sack = Blocks{{1001, 2001}}});
  w.Send({.ack = 1, .sack = Blocks{{3001, 4001}, {1001, 2001}}});
  w.Send({.ack = 1, .sack = Blocks{{5001, 6001}, {3001, 4001}, {1001, 2001}}});
  w.Expect({.seq = 1});
  for (uint32_t i = 7; i <= 10; i++)
    w.Send({.ack = 1, .sack = Blocks{{5001, i * 1000 + 1}, {3001, 4001}, {1001, 2001}}});
  w.Expect({.seq = 2001, .bytes = 1000});
  w.Expect({.seq = 4001, .bytes = 1000});
  w.ExpectNothing();
  w.Advance(10 * kMs);
  w.Send({.ack = 2001, .sack = Blocks{{5001, 10'001}, {3001, 4001}}});
  w.Send({.ack = 4001, .sack = Blocks{{5001, 10'001}}});
  w.Send({.ack = 10'001});
  CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kOpen));
  w.ExpectNothing();
}

TEST_CASE("tcp loss: a retransmission that is lost as well is found by time") {
  TcpWorld w;
  w.Establish();
  w.Write(20 * kMss);
  w.wire.clear();
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{1001, 4001}}});
  w.Expect({.seq = 1});
  w.Advance(10 * kMs);
  // What is sent after the retransmission arrives, the retransmission does not.
  for (uint32_t i = 5; i <= 10; i++) w.Send({.ack = 1, .sack = Blocks{{1001, i * 1000 + 1}}});
  REQUIRE(!w.wire.empty());
  const uint32_t fresh = static_cast<uint32_t>(w.wire.back().segment.seq - Seq(kIss));
  CHECK(fresh >= 10'001);
  w.wire.clear();
  w.Advance(15 * kMs);
  w.wire.clear();
  w.Send({.ack = 1, .sack = Blocks{{1001, fresh + 1000}}});
  REQUIRE(!w.wire.empty());
  w.Expect({.seq = 1, .bytes = 1000});
}

//= rfc8985#6.1
//= type=test
//# RACK_sent_after(t1, seq1, t2, seq2): If t1 > t2 Return true Else if t1 == t2 AND seq1 > seq2
//# Return true
// Several acknowledgements in one round of the engine: new data leave first, then an old segment.
TEST_CASE("tcp loss: of what leaves at one time, it is known what left first") {
  TcpWorld w;
  w.Establish();
  w.Write(20 * kMss);
  w.wire.clear();
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{1001, 2001}}});
  w.Send({.ack = 1, .sack = Blocks{{1001, 3001}}});
  w.Expect({.seq = 10'001});
  w.Expect({.seq = 11'001});
  w.Send({.ack = 1, .sack = Blocks{{1001, 10'001}}});
  w.Expect({.seq = 1, .bytes = 1000});
  w.wire.clear();
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{1001, 12'001}}});
  for (const auto& out : w.wire) CHECK(out.segment.seq != Seq(kIss) + 1);
  w.Send({.ack = 12'001});
  CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kOpen));
}

TEST_CASE("tcp loss: reordering is waited for once it has been seen") {
  TcpWorld w;
  w.Establish();
  w.Write(10 * kMss);
  w.wire.clear();
  w.Advance(20 * kMs);
  // The first arrives late: reordered, not lost.
  w.Send({.ack = 1, .sack = Blocks{{1001, 2001}}});
  w.Send({.ack = 2001});
  CHECK(Has(w.t, kReordering));
  w.Send({.ack = 2001, .sack = Blocks{{3001, 7001}}});
  w.ExpectNothing();    // four are ahead, but it may still come
  w.Fire(1, 10 * kMs);  // a quarter of the round trip
  w.Expect({.seq = 2001, .bytes = 1000});
}

TEST_CASE("tcp loss: a peer without SACK") {
  TcpWorld w;
  w.Establish({.sack = false});
  InFlight(w, 10);
  w.Advance(10 * kMs);
  w.Send({.ack = 1});
  w.Send({.ack = 1});
  w.ExpectNothing();
  w.Send({.ack = 1});
  w.Expect({.seq = 1, .bytes = 1000});
  for (int i = 0; i < 6; i++) w.Send({.ack = 1});
  w.wire.clear();
  w.Send({.ack = 3001});  // partial: the next hole
  w.Expect({.seq = 3001, .bytes = 1000});
  w.Send({.ack = 10'001});
  CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kOpen));
}

//= rfc6582#3.2
//= type=test
//# If not, the TCP does not enter fast retransmit and does not reset ssthresh.
TEST_CASE("tcp loss: duplicates of what a time-out sent twice are no loss, without SACK") {
  TcpWorld w;
  w.Establish({.sack = false});
  InFlight(w, 4);
  while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) w.Fire(0, kSecond);
  w.wire.clear();
  w.Advance(10 * kMs);
  w.Send({.ack = 4001});  // they had all arrived but the first
  w.Write(2 * kMss);
  w.Expect({.seq = 4001, .bytes = 1000});
  w.Expect({.seq = 5001, .bytes = 1000});
  for (int i = 0; i < 3; i++) w.Send({.ack = 4001});
  w.ExpectNothing();
  CHECK(w.t.recovery != static_cast<uint32_t>(Recovery::kFast));
  w.Send({.ack = 6001});
  // What is lost behind that is found as ever.
  w.Write(5 * kMss);
  w.wire.clear();
  w.Send({.ack = 7001});
  for (int i = 0; i < 3; i++) w.Send({.ack = 7001});
  w.Expect({.seq = 7001, .bytes = 1000});
}

//= rfc9293#3.9.1.2
//= type=test
//# The transmitter SHOULD collapse successive bits when it packetizes data, to send the largest
//# possible segment
TEST_CASE("tcp loss: what was written in small pieces is sent again in large ones") {
  TcpWorld w;
  w.Establish();
  w.t.settings.flags |= kSetNoDelay;
  w.Send({});
  for (int i = 0; i < 9; i++) w.Write(100);
  SECTION("with the FIN, after a time-out") {
    w.End();
    REQUIRE(w.wire.size() == 10);
    std::string all;
    for (const auto& out : w.wire) all += out.data;
    while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) {
      w.wire.clear();
      w.Fire(0, kSecond);
    }
    w.Expect({.seq = 1, .flags = kFin | kAck, .data = all});
    w.ExpectNothing();
    w.Send({.ack = 902});
    w.ExpectState(State::kFinWait2);
  }
  SECTION("up to what has arrived") {
    w.wire.clear();
    w.Advance(10 * kMs);
    w.Send({.ack = 1, .sack = Blocks{{501, 601}}});
    w.Advance(5 * kMs);
    w.Expect({.seq = 1, .bytes = 500});
    w.ExpectNothing();
    w.Send({.ack = 901});
    CHECK(w.t.tx_count == 0);
  }
  SECTION("up to a full segment") {
    w.Write(200);
    while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) {
      w.wire.clear();
      w.Fire(0, kSecond);
    }
    w.Expect({.seq = 1, .bytes = 900});
    w.ExpectNothing();  // a window of one segment
    w.Send({.ack = 901});
    w.Expect({.seq = 901, .bytes = 200});
  }
}

TEST_CASE("tcp loss: limited transmit") {
  TcpWorld w;
  const bool sack = GENERATE(true, false);
  w.Establish({.sack = sack});
  w.Send({});
  w.Write(20 * kMss);
  CHECK(w.wire.size() == 10);
  w.wire.clear();
  w.Advance(10 * kMs);
  Blocks blocks;
  if (sack) blocks = {{1001, 2001}};
  w.Send({.ack = 1, .sack = blocks});
  w.Expect({.seq = 10'001, .bytes = 1000});  // RFC 3042
  w.ExpectNothing();
}

TEST_CASE("tcp loss: after a time-out all that is not SACKed is sent again, in slow start") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 10);
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{4001, 5001}}});
  w.wire.clear();
  while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) w.Fire(0, kSecond);
  w.wire.erase(w.wire.begin(), w.wire.end() - 1);
  w.Expect({.seq = 1, .bytes = 1000});
  w.Advance(10 * kMs);
  w.Send({.ack = 1001, .sack = Blocks{{4001, 5001}}});
  w.Expect({.seq = 1001, .bytes = 1000});
  w.Expect({.seq = 2001, .bytes = 1000});
  w.ExpectNothing();
  w.Send({.ack = 3001, .sack = Blocks{{4001, 5001}}});
  w.Expect({.seq = 3001, .bytes = 1000});
  w.Expect({.seq = 5001, .bytes = 1000});
}

// With all acknowledgements of a minute lost, the next one SACKs what arrived at its beginning.
TEST_CASE("tcp loss: the pause of a time-out is no round trip") {
  TcpWorld w;
  const bool timestamps = GENERATE(false, true);
  w.Establish({.timestamps = timestamps});
  const uint32_t mss = w.t.mss_bytes;
  w.Send({});
  w.Write(4 * mss);
  while (w.t.rto_count < 6) w.Fire(0, 20 * kSecond);
  const uint64_t srtt_ns = Srtt(w.t.rtt);
  w.Advance(10 * kMs);
  // The first has arrived now, the third long ago; the echo is that of the first's last copy.
  w.Send({.ack = 1 + mss, .sack = Blocks{{1 + 2 * mss, 1 + 3 * mss}}});
  CHECK(Srtt(w.t.rtt) <= std::max(srtt_ns, 100 * kMs));
  CHECK(w.t.rtt.rto_ns <= kRtoMaxNs);
}

TEST_CASE("tcp loss: a spurious time-out is taken back") {
  TcpWorld w;
  w.Establish({.timestamps = true});
  w.Write(5 * 988);
  w.wire.clear();
  const uint32_t cwnd = w.t.cc.cwnd_bytes;
  const uint32_t early = static_cast<uint32_t>(w.now_ns / kMs);
  while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) w.Fire(0, kSecond);
  CHECK(w.t.cc.cwnd_bytes < cwnd);
  w.wire.clear();
  SECTION("Eifel: the echo is that of the original") {
    w.Send({.ack = 989, .echo = early});
    CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kOpen));
    CHECK(w.t.cc.cwnd_bytes >= cwnd);
    CHECK(w.t.lost_bytes == 0);
  }
}

TEST_CASE("tcp loss: F-RTO, the originals arrive") {
  TcpWorld w;
  w.Establish();
  w.Write(5 * kMss);
  w.wire.clear();
  const uint32_t cwnd = w.t.cc.cwnd_bytes;
  while (w.t.recovery != static_cast<uint32_t>(Recovery::kLoss)) w.Fire(0, kSecond);
  w.wire.clear();
  w.Write(5 * kMss);
  w.Send({.ack = 1001});
  // Not the old ones: two new ones ask.
  w.Expect({.seq = 5001, .bytes = 1000});
  w.Send({.ack = 2001});
  CHECK(w.t.recovery == static_cast<uint32_t>(Recovery::kOpen));
  CHECK(w.t.cc.cwnd_bytes >= cwnd);
  CHECK(w.t.lost_bytes == 0);
}

TEST_CASE("tcp loss: a recovery is taken back when a DSACK says that nothing was lost") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 10);
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{1001, 4001}}});
  w.Expect({.seq = 1});
  w.Send({.ack = 10'001});
  CHECK(w.t.cc.cwnd_bytes < 8000);
  w.Send({.ack = 10'001, .sack = Blocks{{1, 1001}}});  // it came twice
  w.Write(1000);  // something under way, so that an acknowledgement counts
  w.Send({.ack = 10'001, .sack = Blocks{{1, 1001}}});
  CHECK(w.t.cc.cwnd_bytes >= 10'000);
}

TEST_CASE("tcp loss: a receiver that drops what it has SACKed") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 6);
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{1001, 6001}}});
  w.wire.clear();
  w.Send({.ack = 1001});  // and forgets the rest
  w.Fire(0, 50 * kMs);
  w.Expect({.seq = 1001, .bytes = 1000});
  CHECK(w.t.sacked_bytes == 0);
}

TEST_CASE("tcp loss: the path takes less") {
  TcpWorld w;
  w.Establish();
  InFlight(w, 4);
  PathMtu(w.t, 600, w);
  CHECK(w.t.mss_bytes == 600);
  REQUIRE(!w.wire.empty());
  w.Expect({.seq = 1, .bytes = 600});
  w.Expect({.seq = 601, .bytes = 400});
  w.Expect({.seq = 1001, .bytes = 600});
  CHECK(w.t.cc.ssthresh_bytes == kSsthreshUnknown);  // no sign of congestion
  REQUIRE(Validate(w.t, w) == nullptr);
}

TEST_CASE("tcp loss: the path takes less, and there is no TxSeg to cut anything with") {
  TcpWorld w;
  const bool sack = GENERATE(true, false);
  w.Establish({.sack = sack});
  w.tx_segs_max = 2;
  w.Write(2000);
  w.wire.clear();
  w.Step([&] { PathMtu(w.t, 400, w); });
  w.Expect({.seq = 1, .bytes = 400});
  w.ExpectNothing();
  w.Send({.ack = 401});
  w.Expect({.seq = 401, .bytes = 400});
  w.Send({.ack = 801});
  w.Expect({.seq = 801, .bytes = 200});
  w.Send({.ack = 1001});  // one is free again
  w.Expect({.seq = 1001, .bytes = 400});
  w.Send({.ack = 1401});
  w.Expect({.seq = 1401, .bytes = 400});
  CHECK((w.Expect({.seq = 1801, .bytes = 200}).segment.flags & kPsh) != 0);
  w.Send({.ack = 2001});
  CHECK(NextDeadline(w.t) == UINT64_MAX);
}

TEST_CASE("tcp loss: of a segment that is cut anew, the last part pushes") {
  TcpWorld w;
  w.Establish();
  w.Write(1000);
  CHECK((w.Expect({.seq = 1, .bytes = 1000}).segment.flags & kPsh) != 0);
  w.Step([&] { PathMtu(w.t, 600, w); });
  CHECK((w.Expect({.seq = 1, .bytes = 600}).segment.flags & kPsh) == 0);
  CHECK((w.Expect({.seq = 601, .bytes = 400}).segment.flags & kPsh) != 0);
}

TEST_CASE("tcp loss: large segments vanish") {
  TcpWorld w;
  w.host.tcp_mtu_probing = 1;
  w.Establish({.mss = 1460});
  w.Write(1460);
  w.wire.clear();
  bool small = false;
  for (int i = 0; i < 8 && !small; i++) {
    w.Fire(0, 100 * kSecond);
    small = w.wire.back().segment.bytes <= 1024;
  }
  CHECK(small);
  w.Send({.ack = 1025});
  w.Send({.ack = 1461});
  w.ExpectState(State::kEstablished);
}

TEST_CASE("tcp loss: ECN") {
  TcpWorld w;
  w.Establish({.ecn = true});
  REQUIRE(Has(w.t, kEcnOk));
  w.Write(10 * kMss);
  for (int i = 0; i < 10; i++) w.Expect({.ecn = Ecn::kEct0});
  w.Send({.ack = 2001, .flags = kAck | kEce});
  CHECK(w.t.cc.ssthresh_bytes == 7000);
  w.Send({.ack = 4001, .flags = kAck | kEce});
  CHECK(w.t.cc.ssthresh_bytes == 7000);  // once for a window
  w.Send({.ack = 10'001});
  w.Write(1000);
  const auto out = w.Expect({.seq = 10'001});
  CHECK((out.segment.flags & kCwr) != 0);

  w.Send({.data = "x", .ecn = Ecn::kCe});
  const auto ack = w.Expect({.bytes = 0});
  CHECK((ack.segment.flags & kEce) != 0);
  CHECK(ack.segment.ecn == Ecn::kNotEct);
  w.Send({.flags = kAck | kCwr, .data = "y"});
  w.Advance(kSecond / 5);
  REQUIRE(!w.wire.empty());
  CHECK((w.wire.back().segment.flags & kEce) == 0);
}

}  // namespace postern::tcp
