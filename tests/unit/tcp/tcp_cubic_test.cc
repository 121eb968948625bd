// SPDX-License-Identifier: Apache-2.0
// tcp_cubic_test.cc - CUBIC's window against the closed formula of RFC 9438, and against Reno.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <random>
#include <vector>

#include "../kit/catch.h"
#include "tcp/congestion/congestion_parts.h"
#include "tcp_flow.h"

namespace postern::tcp {
namespace {

TEST_CASE("cubic: cube roots are exact") {
  const auto check = [](uint64_t x) {
    const unsigned __int128 root = CubeRoot(x);
    REQUIRE(root * root * root <= x);
    REQUIRE((root + 1) * (root + 1) * (root + 1) > x);
  };
  for (uint64_t x = 0; x < 5000; x++) check(x);
  std::mt19937_64 random(5);
  for (int i = 0; i < 100000; i++) check(random() >> random() % 64);
  for (uint64_t root = 1; root < 2642245; root += 997) {
    CHECK(CubeRoot(root * root * root) == root);
    CHECK(CubeRoot(root * root * root - 1) == root - 1);
  }
  check(UINT64_MAX);
}

// The formula, in segments and seconds.
double Formula(double w_max, double cwnd, double t) {
  const double k = std::cbrt((w_max - cwnd) / 0.4);
  return 0.4 * std::pow(t - k, 3) + w_max;
}

TEST_CASE("cubic: the curve itself is the formula's") {
  const uint32_t mss = GENERATE(88u, 1000u, 1448u, 8948u, 65000u);
  const double w_max = GENERATE(10.0, 100.0, 1000.0, 10000.0);
  Congestion cc;
  CongestionInit(cc, CongestionKind::kCubic, mss);
  cc.cwnd_bytes = static_cast<uint32_t>(w_max * mss);
  cc.ssthresh_bytes = CubicReduced(cc);
  cc.cwnd_bytes = cc.ssthresh_bytes;
  AckSample ack = {};
  ack.now_ns = 77 * kSecond;
  ack.srtt_ns = 1;
  CubicAvoid(cc, ack, 1);
  for (uint64_t t = 0; t < 40 * kSecond; t += 333 * kMs) {
    const double expected = std::min(Formula(w_max, w_max * 0.7, static_cast<double>(t) / 1e9),
                                     static_cast<double>(kCwndMax) / mss);
    const double segments = CubicWindow(cc, t) / static_cast<double>(mss);
    REQUIRE(segments == Approx(expected).epsilon(0.002).margin(0.05));
  }
}

TEST_CASE("cubic: a flow's window follows the formula within 1 %") {
  const uint32_t w_max = GENERATE(300u, 1000u, 5000u);
  Flow f(CongestionKind::kCubic);
  f.rtt = GENERATE(50 * kMs, 100 * kMs);
  f.Settle(w_max);
  f.Lose();
  CHECK(f.segments() == Approx(w_max * 0.7));
  const uint64_t start = f.now;
  // K, and half as long again: the steep part, the plateau, and the other steep part.
  const double k = std::cbrt(w_max * 0.3 / 0.4);
  while (static_cast<double>(f.now - start) < 1.5e9 * k) {
    f.Round();
    const double t = static_cast<double>(f.now - start) / 1e9;
    REQUIRE(f.segments() == Approx(Formula(w_max, w_max * 0.7, t)).epsilon(0.01));
  }
}

TEST_CASE("cubic: with short round trips it is Reno with other numbers") {
  // 1 ms: the curve needs seconds for what Reno does in a few round trips.
  Flow f(CongestionKind::kCubic);
  f.rtt = 1 * kMs;
  f.Settle(40);
  f.Lose();
  // alpha = 9/17 up to the old window, and 1 beyond it (RFC 9438, 4.3).
  double reno = 28;
  for (int i = 0; i < 100; i++) {
    f.Round();
    reno += reno < 40 ? 9.0 / 17 : 1;
    REQUIRE(f.segments() == Approx(reno).epsilon(0.03));
  }
}

// The average window of a flow that loses a segment whenever its window is `limit` segments.
double AverageWindow(CongestionKind kind, uint32_t limit, uint64_t rtt) {
  Flow f(kind);
  f.rtt = rtt;
  f.Settle(limit);
  double sum = 0;
  int rounds = 0;
  for (int losses = 0; losses < 60;) {
    if (f.segments() >= limit) {
      f.Lose();
      losses++;
    }
    f.rtt = rtt;
    f.Round();
    if (losses < 10) continue;
    sum += f.segments();
    rounds++;
  }
  return sum / rounds;
}

TEST_CASE("cubic: never less than Reno on the same path") {
  const uint32_t limit = GENERATE(8u, 20u, 60u, 200u);
  const uint64_t rtt = GENERATE(1 * kMs, 20 * kMs, 100 * kMs);
  CHECK(AverageWindow(CongestionKind::kCubic, limit, rtt) >=
        AverageWindow(CongestionKind::kNewReno, limit, rtt) * 0.98);
}

// Losses at random: alpha and beta are chosen so that the rate is Reno's (RFC 9438, 4.3).
double RandomLossWindow(CongestionKind kind, double loss, uint32_t seed) {
  std::mt19937 random(seed);
  Flow f(kind);
  f.Settle(10);
  double sum = 0;
  for (int i = 0; i < 20000; i++) {
    f.rtt = kMs;
    const double sent = f.segments();
    f.Round();
    sum += sent;
    if (std::uniform_real_distribution<double>(0, 1)(random) < 1 - std::pow(1 - loss, sent))
      f.Lose();
  }
  return sum / 20000;
}

TEST_CASE("cubic: in the Reno-friendly region it gets what Reno gets") {
  const double loss = GENERATE(0.001, 0.005, 0.02);
  const double cubic = RandomLossWindow(CongestionKind::kCubic, loss, 9);
  const double reno = RandomLossWindow(CongestionKind::kNewReno, loss, 9);
  CHECK(cubic / reno > 0.8);
  CHECK(cubic / reno < 1.4);
}

TEST_CASE("cubic: fast convergence gives room to a newcomer") {
  Flow f(CongestionKind::kCubic);
  f.Settle(1000);
  f.Lose();
  CHECK(f.cc.cubic.w_max_bytes == 1'000'000);
  f.Lose();  // at 700, below the last maximum
  CHECK(f.cc.cubic.w_max_bytes == 595'000);
  CHECK(f.cc.cwnd_bytes == 490'000);
}

TEST_CASE("cubic: after a time-out the curve begins where slow start ends") {
  Flow f(CongestionKind::kCubic);
  f.Settle(1000);
  f.Fill();
  CongestionOnTimeout(f.cc, Timeout::kFirst);
  CHECK(f.cc.ssthresh_bytes == 700'000);
  f.nxt = f.una;
  while (InSlowStart(f.cc)) f.Round();
  CongestionOnRecovered(f.cc);
  f.Round();
  CHECK(f.cc.cubic.k_ticks == 0);
  CHECK(f.cc.cubic.origin_bytes >= 700'000);
  CHECK(f.cc.cubic.origin_bytes < 705'000);
}

TEST_CASE("cubic: time in which the program sent little does not count") {
  Flow f(CongestionKind::kCubic), g = f;
  for (Flow* flow : {&f, &g}) {
    flow->Settle(1000);
    flow->Lose();
    for (int i = 0; i < 20; i++) flow->Round();
  }
  REQUIRE(f.cc.cwnd_bytes == g.cc.cwnd_bytes);
  const uint32_t before = f.cc.cwnd_bytes;
  const bool idle = GENERATE(false, true);
  if (idle) {
    g.una = g.nxt;
    g.now += 20 * kSecond;
    CongestionOnIdle(g.cc, 20 * kSecond, 30 * kSecond);
  } else {  // small requests, for less than an RTO
    g.una = g.nxt;
    for (int i = 0; i < 20; i++) {
      CongestionOnSent(g.cc, {g.now, 100 * kSecond, 1000, 1000, g.una, g.nxt = g.una + 1000u});
      g.now += 1 * kSecond;
      g.Ack(1000);
    }
  }
  CHECK(g.cc.cwnd_bytes <= before + 1000);
  for (int i = 0; i < 10; i++) {
    f.Round();
    g.Round();
    // Without it g would be some 6000 segments further, or at 1.5 times in each round trip.
    CHECK(g.segments() == Approx(f.segments()).epsilon(0.02));
  }
}

TEST_CASE("cubic: grows by no more than half in a round trip") {
  Flow f(CongestionKind::kCubic);
  f.Settle(100);
  f.Lose();
  for (int i = 0; i < 3; i++) f.Round();
  f.now += 1000 * kSecond;  // a clock that jumped, or an acknowledgement that took long
  const uint32_t before = f.cc.cwnd_bytes;
  f.Round();
  CHECK(f.cc.cwnd_bytes <= before * 1.66);  // (1 + 1/2n)^n
}

TEST_CASE("cubic: as long as no maximum is known it grows by a twentieth at least") {
  Flow f(CongestionKind::kCubic);
  f.Settle(1000);
  f.Round();
  CHECK(f.segments() >= 1045);
}

TEST_CASE("cubic: ... and not after a loss that was none: then it is as slow as Linux") {
  Flow f(CongestionKind::kCubic);
  f.rtt = 20 * kMs;
  f.Round();
  const uint32_t before = f.cc.cwnd_bytes;
  CongestionOnLoss(f.cc, Cause::kLoss);  // a segment was late
  CongestionUndo(f.cc);
  CHECK(f.cc.cwnd_bytes == before);
  f.Settle(240);  // where HyStart has ended slow start
  for (int i = 0; i < 50; i++) f.Round();
  // A second: Reno's 9/17 of a segment in each round trip, or the curve, 0.4 segments.
  CHECK(f.segments() >= 240 + 25);
  CHECK(f.segments() <= 240 + 35);
}

}  // namespace
}  // namespace postern::tcp
