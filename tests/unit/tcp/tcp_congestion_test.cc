// SPDX-License-Identifier: Apache-2.0
// tcp_congestion_test.cc - windows that grow, shrink, rest and come back: NewReno and what all
// share.
#include "tcp/congestion/congestion.h"

#include <cstring>
#include <initializer_list>
#include <random>

#include "../kit/catch.h"
#include "tcp_flow.h"

namespace postern::tcp {
namespace {

TEST_CASE("congestion: names as TCP_CONGESTION has them") {
  CongestionKind kind = CongestionKind::kCubic;
  CHECK(CongestionByName("reno", 5, kind));
  CHECK(kind == CongestionKind::kNewReno);
  CHECK(CongestionByName("cubic", 5, kind));  // not terminated
  CHECK(kind == CongestionKind::kCubic);
  for (const char* no : {"", "cub", "cubicc", "renoo", "bbr", "Reno"})
    CHECK_FALSE(CongestionByName(no, static_cast<uint32_t>(strlen(no)) + 1, kind));
  CHECK_FALSE(CongestionByName("cubic", 4, kind));
  CHECK_FALSE(CongestionByName("cubic", 0, kind));
  CHECK(strcmp(CongestionName(CongestionKind::kCubic), "cubic") == 0);
  CHECK(strcmp(CongestionName(CongestionKind::kNewReno), "reno") == 0);
}

TEST_CASE("congestion: begins with ten segments and doubles in each round trip") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno));
  f.wide = 3;
  CHECK(f.segments() == 10);
  for (int i = 1; i <= 6; i++) {
    f.Round();
    CHECK(f.segments() == 10 << i);
  }
}

TEST_CASE("congestion: NewReno: a segment for each round trip, half after a loss") {
  Flow f(CongestionKind::kNewReno);
  f.Settle(40);
  for (int i = 0; i < 100; i++) f.Round();
  CHECK(f.segments() >= 138);
  CHECK(f.segments() <= 140);
  const uint32_t before = f.cc.cwnd_bytes;
  f.Lose();
  CHECK(f.cc.cwnd_bytes == before / 2);
  CHECK_FALSE(InSlowStart(f.cc));
}

TEST_CASE("congestion: slow start ends at ssthresh, and what is left over counts as avoidance") {
  Flow f(CongestionKind::kNewReno);
  f.cc.ssthresh_bytes = 15000;
  f.Fill();
  f.Ack(10000);
  CHECK(f.segments() == 15);
  CHECK(f.cc.bytes_acked == 5000);
}

TEST_CASE("congestion: windows have a limit") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno), 60000);
  for (int i = 0; i < 18; i++) {
    f.cc.limited = 1;
    f.nxt = f.una + f.cc.cwnd_bytes;
    f.Ack(f.cc.cwnd_bytes);
  }
  CHECK(f.cc.cwnd_bytes == kCwndMax);
}

TEST_CASE("congestion: duplicate acknowledgements do not open the window") {
  Flow f(CongestionKind::kNewReno);
  f.Fill();
  AckSample ack = {};
  ack.now_ns = f.now;
  ack.delivered_bytes = 1000;
  ack.snd_una = f.una;
  ack.snd_nxt = f.nxt;
  for (int i = 0; i < 9; i++) CongestionOnAck(f.cc, ack);
  CHECK(f.segments() == 10);
  ack.reordered = true;  // they are no sign of loss on such a path
  CongestionOnAck(f.cc, ack);
  CHECK(f.segments() == 11);
}

TEST_CASE("congestion: a program that sends little keeps its window, and then loses it") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno));
  f.Settle(100);
  for (int i = 0; i < 3; i++) f.Round();
  const uint32_t before = f.cc.cwnd_bytes;
  f.app_bytes = 20000;
  f.una = f.nxt;
  f.Round();
  CHECK(f.cc.cwnd_bytes <= before + f.cc.mss_bytes);
  for (int i = 0; i < 300; i++) f.Round();
  CHECK(f.segments() >= 20);
  CHECK(f.segments() <= 41);  // in slow start half of it is the whole one of before
  CHECK(f.cc.ssthresh_bytes >= before * 3 / 4);  // and gets it back by slow start
  f.app_bytes = ~0u;
  for (int i = 0; i < 3; i++) f.Round();
  CHECK(f.cc.cwnd_bytes > before * 6 / 10);
}

TEST_CASE("congestion: a program that sends little does not get below the initial window") {
  Flow f(CongestionKind::kCubic);
  f.app_bytes = 1000;
  for (int i = 0; i < 100; i++) f.Round();
  CHECK(f.segments() == 10);
}

TEST_CASE("congestion: idleness halves the window for each RTO, down to the initial one") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno));
  f.Settle(100);
  CongestionOnIdle(f.cc, 250 * kMs, 300 * kMs);
  CHECK(f.segments() == 100);
  CongestionOnIdle(f.cc, 700 * kMs, 300 * kMs);
  CHECK(f.segments() == 25);
  CHECK(f.cc.ssthresh_bytes == 100000);
  CongestionOnIdle(f.cc, 3600 * kSecond, 300 * kMs);
  CHECK(f.segments() == 10);
  f.cc.cwnd_bytes = 4000;  // less than that stays
  CongestionOnIdle(f.cc, 3600 * kSecond, 300 * kMs);
  CHECK(f.segments() == 4);
}

TEST_CASE("congestion: a time-out leaves one segment, and slow start to the new threshold") {
  Flow f(CongestionKind::kNewReno);
  f.Settle(64);
  f.Fill();
  CongestionOnTimeout(f.cc, Timeout::kFirst);
  CHECK(f.segments() == 1);
  CHECK(f.cc.ssthresh_bytes == 32000);
  CongestionOnTimeout(f.cc, Timeout::kAgain);
  CHECK(f.cc.ssthresh_bytes == 32000);
  f.nxt = f.una;
  int rounds = 0;
  for (; InSlowStart(f.cc); rounds++) f.Round();
  CHECK(rounds == 5);
  CHECK(f.segments() == 32);
}

TEST_CASE("congestion: a time-out in the middle of a recovery lowers the threshold no further") {
  Flow f(CongestionKind::kNewReno);
  f.Settle(64);
  CongestionOnLoss(f.cc, Cause::kLoss);
  CongestionOnTimeout(f.cc, Timeout::kFirst);
  CHECK(f.cc.ssthresh_bytes == 32000);
  CongestionOnRecovered(f.cc);
  CHECK(f.segments() == 1);
}

TEST_CASE("congestion: one reduction for each window") {
  Flow f(CongestionKind::kNewReno);
  f.Settle(64);
  CongestionOnLoss(f.cc, Cause::kEcn);
  CongestionOnLoss(f.cc, Cause::kEcn);
  CongestionOnLoss(f.cc, Cause::kLoss);
  CHECK(f.cc.ssthresh_bytes == 32000);
  CongestionOnRecovered(f.cc);
  CHECK(f.segments() == 32);
}

TEST_CASE("congestion: tiny windows do not vanish") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno));
  for (int i = 0; i < 10; i++) f.Lose();
  CHECK(f.segments() == 2);
  CongestionOnTimeout(f.cc, Timeout::kFirst);
  CHECK(f.segments() == 1);
  CHECK(f.cc.ssthresh_bytes == 2000);
}

TEST_CASE("congestion: undo restores what there was, also later") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno));
  f.Settle(80);
  f.Lose();  // from here on CUBIC has a maximum (tcp_cubic_test.cc: without)
  for (int i = 0; i < 20; i++) f.Round();
  const Congestion before = f.cc;
  const bool by_timeout = GENERATE(false, true), late = GENERATE(false, true);
  if (by_timeout) {
    CongestionOnTimeout(f.cc, Timeout::kFirst);
    CongestionOnTimeout(f.cc, Timeout::kAgain);
  } else {
    CongestionOnLoss(f.cc, Cause::kLoss);
  }
  if (late) CongestionOnRecovered(f.cc);
  CongestionUndo(f.cc);
  CHECK(f.cc.cwnd_bytes == before.cwnd_bytes);
  CHECK(f.cc.ssthresh_bytes >= before.ssthresh_bytes);
  CHECK(memcmp(&f.cc.cubic, &before.cubic, sizeof before.cubic) == 0);
  CHECK(f.cc.phase == before.phase);
  // Once: a second DSACK means nothing more.
  f.cc.cwnd_bytes = 5000;
  CongestionUndo(f.cc);
  CHECK(f.cc.cwnd_bytes == 5000);
}

TEST_CASE("congestion: undo of the first loss brings slow start back") {
  Flow f(CongestionKind::kCubic);
  f.Round();
  CongestionOnLoss(f.cc, Cause::kLoss);
  CongestionUndo(f.cc);
  CHECK(f.segments() == 20);
  CHECK(f.cc.ssthresh_bytes == kSsthreshUnknown);
}

TEST_CASE("congestion: a CE mark is not undone, a smaller window than now neither") {
  Flow f(CongestionKind::kNewReno);
  f.Settle(80);
  CongestionOnLoss(f.cc, Cause::kEcn);
  CongestionUndo(f.cc);
  CongestionOnRecovered(f.cc);
  CHECK(f.segments() == 40);
  CongestionOnLoss(f.cc, Cause::kLoss);
  f.cc.cwnd_bytes = 90000;
  CongestionUndo(f.cc);
  CHECK(f.segments() == 90);
}

TEST_CASE("congestion: a smaller MSS keeps the segments, a larger one the bytes") {
  Flow f(CongestionKind::kCubic, 1460);
  f.Settle(50);
  f.Lose();
  CongestionSetMss(f.cc, 500);
  CHECK(f.segments() == 35);
  CHECK(f.cc.ssthresh_bytes == 35 * 500);
  CHECK(f.cc.cubic.w_max_bytes == 50 * 500);
  CongestionSetMss(f.cc, 9000);
  CHECK(f.cc.cwnd_bytes == 35 * 500);
  CHECK(f.cc.ssthresh_bytes == 18000);
  Flow young(CongestionKind::kCubic, 1460);
  CongestionSetMss(young.cc, 1200);
  CHECK(young.segments() == 10);
  CHECK(young.cc.ssthresh_bytes == kSsthreshUnknown);
}

TEST_CASE("congestion: the algorithm changes, the window stays") {
  Flow f(CongestionKind::kCubic);
  f.Settle(50);
  f.Lose();
  CongestionSetKind(f.cc, CongestionKind::kNewReno);
  CHECK(f.segments() == 35);
  for (int i = 0; i < 10; i++) f.Round();
  CHECK(f.segments() == Approx(45).margin(1));
  CongestionSetKind(f.cc, CongestionKind::kCubic);
  for (int i = 0; i < 10; i++) f.Round();
  CHECK(f.segments() >= 45);
}

TEST_CASE("congestion: pacing is twice the window in slow start, a fifth more after") {
  Flow f(CongestionKind::kCubic);
  CHECK(CongestionPacingRate(f.cc, 0) == 0);
  CHECK(CongestionPacingRate(f.cc, 100 * kMs) == 200'000);
  f.Settle(10);
  CHECK(CongestionPacingRate(f.cc, 100 * kMs) == 120'000);
  f.cc.cwnd_bytes = f.cc.ssthresh_bytes = kCwndMax;
  CHECK(CongestionPacingRate(f.cc, 1000) == uint64_t{kCwndMax} * 1'200'000);
}

TEST_CASE("congestion: a lost handshake begins with one segment") {
  Flow f(CongestionKind::kCubic);
  CongestionHandshakeLost(f.cc);
  CHECK(f.segments() == 1);
  f.Round();
  CHECK(f.segments() == 2);
}

}  // namespace
}  // namespace postern::tcp
