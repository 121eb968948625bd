// SPDX-License-Identifier: Apache-2.0
// tcp_hystart_test.cc - HyStart++: slow start ends when a queue builds up, and not for jitter; and
// when acknowledgements come at the pace of a bottleneck.
#include <random>

#include "../kit/catch.h"
#include "tcp/congestion/congestion_parts.h"
#include "tcp_flow.h"

namespace postern::tcp {
namespace {

constexpr uint64_t kNoTime = UINT64_MAX;

// All acknowledgements of a round come at once: no bottleneck gives them its pace.
constexpr double kBurst = 1000;

// A bottleneck that takes `capacity` segments in a round trip of `base`; what is more waits.
void QueueRound(Flow& f, uint64_t base, uint32_t capacity) {
  const double over = std::max(0.0, f.segments() - capacity);
  const auto queue = static_cast<uint64_t>(static_cast<double>(base) * over / capacity);
  f.Round([&](uint32_t) { return base + queue; });
}

TEST_CASE("hystart: a growing queue ends slow start before it has become long") {
  const uint64_t base = GENERATE(20 * kMs, 100 * kMs, 400 * kMs);
  const uint32_t capacity = GENERATE(100u, 1000u);
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  f.rtt = base;
  int rounds = 0, conservative = 0;
  double noticed = 0;  // the window when the queue was seen
  for (; f.cc.ssthresh_bytes == kSsthreshUnknown; rounds++) {
    REQUIRE(rounds < 40);
    QueueRound(f, base, capacity);
    if (f.cc.hystart.css_baseline_ns == kNoTime) continue;
    if (conservative++ == 0) noticed = f.segments();
  }
  // It is seen when the round trip of what overfills the path is over, and doubled no more then.
  CHECK(noticed >= capacity);
  CHECK(noticed <= capacity * 3.5);
  CHECK(conservative <= 6);
  CHECK(f.segments() <= noticed * std::pow(1.25, 5) * 1.02);
  CHECK(f.cc.ssthresh_bytes == Approx(f.cc.cwnd_bytes).epsilon(0.06));  // CUBIC has gone on
}

TEST_CASE("hystart: conservative slow start grows by a quarter, five rounds of it") {
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  const auto steady = [](uint64_t ms) { return [ms](uint32_t) { return ms * kMs; }; };
  for (int i = 0; i < 3; i++) f.Round(steady(100));
  CHECK(f.segments() == 80);
  f.Round(steady(120));  // in this round it becomes known, from the eighth sample on
  CHECK(f.cc.hystart.css_baseline_ns == 120 * kMs);
  double last = f.segments();
  CHECK(last > 80);
  CHECK(last < 160);
  for (int i = 0; i < 4; i++) {
    REQUIRE(f.cc.ssthresh_bytes == kSsthreshUnknown);
    f.Round(steady(120));
    CHECK(f.segments() == Approx(last * 1.25).epsilon(0.03));
    last = f.segments();
  }
  f.Round(steady(120));
  CHECK_FALSE(InSlowStart(f.cc));
}

TEST_CASE("hystart: jitter alone does not end it") {
  std::mt19937_64 random(GENERATE(1u, 2u, 3u, 4u, 5u));
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  // Each acknowledgement is late by up to half a round trip, but of eight there is one in time.
  for (int i = 0; i < 12; i++) {
    f.Round([&](uint32_t) { return 100 * kMs + (random() % 3 == 0 ? 0 : random() % (50 * kMs)); });
    REQUIRE(f.cc.ssthresh_bytes == kSsthreshUnknown);
  }
  CHECK(f.segments() > 10 << 11);
}

TEST_CASE("hystart: one late round slows it down, the next one in time resumes it") {
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  const auto steady = [](uint64_t ms) { return [ms](uint32_t) { return ms * kMs; }; };
  for (int i = 0; i < 4; i++) f.Round(steady(100));
  f.Round(steady(130));
  CHECK(f.cc.hystart.css_baseline_ns == 130 * kMs);
  f.Round(steady(100));
  CHECK(f.cc.hystart.css_baseline_ns == kNoTime);
  const double before = f.segments();
  f.Round(steady(100));
  CHECK(f.segments() == Approx(before * 2).epsilon(0.01));
}

TEST_CASE("hystart: thresholds are 4 ms at least and 16 ms at most") {
  const auto [base, more, ends] =
      GENERATE(table<uint64_t, uint64_t, bool>({{1000, 3900, false},  // us
                                                {1000, 4100, true},
                                                {80000, 9900, false},
                                                {80000, 10100, true},
                                                {400000, 15900, false},
                                                {400000, 16100, true}}));
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  for (int i = 0; i < 3; i++) f.Round([b = base](uint32_t) { return b * 1000; });
  f.Round([b = base, m = more](uint32_t) { return (b + m) * 1000; });
  CHECK((f.cc.hystart.css_baseline_ns != kNoTime) == ends);
}

TEST_CASE("hystart: seven samples are too few") {
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  f.Round([](uint32_t) { return 100 * kMs; });  // 5 acknowledgements
  f.Round([](uint32_t i) { return i < 7 ? 500 * kMs : 100 * kMs; });
  CHECK(f.cc.hystart.css_baseline_ns == kNoTime);
}

TEST_CASE("hystart: acknowledgements without an RTT count for nothing, but grow") {
  Flow f(CongestionKind::kCubic);
  f.wide = kBurst;
  for (int i = 0; i < 5; i++) f.Round([](uint32_t) { return uint64_t{0}; });
  CHECK(f.segments() == 320);
}

TEST_CASE("hystart: only in the first slow start, and not for NewReno") {
  Flow f(GENERATE(CongestionKind::kCubic, CongestionKind::kNewReno));
  if (f.cc.kind == static_cast<uint32_t>(CongestionKind::kCubic)) {
    f.Settle(200);
    CongestionOnTimeout(f.cc, Timeout::kFirst);
    f.cc.cwnd_bytes = 10000;
  }
  for (uint64_t i = 1; i <= 3; i++) f.Round([i](uint32_t) { return i * 100 * kMs; });
  CHECK(f.segments() == 80);
}

TEST_CASE(
    "hystart: acknowledgements at a bottleneck's pace end slow start before there is much of a "
    "queue") {
  const uint64_t base = GENERATE(20 * kMs, 100 * kMs);
  const double capacity = GENERATE(200.0, 1000.0);
  Flow f(CongestionKind::kCubic);
  f.rtt = base;
  for (int rounds = 0; f.cc.ssthresh_bytes == kSsthreshUnknown; rounds++) {
    REQUIRE(rounds < 40);
    f.wide = std::max(1.0, capacity / f.segments());
    f.Round([&](uint32_t) { return base; });
    REQUIRE(f.cc.hystart.css_baseline_ns == kNoTime);
  }
  CHECK(f.cc.ssthresh_bytes >= capacity * f.cc.mss_bytes * 0.5);
  CHECK(f.cc.ssthresh_bytes <= capacity * f.cc.mss_bytes * 1.5);
}

TEST_CASE("hystart: a train of less than half a round trip is none, nor one with gaps") {
  Flow f(CongestionKind::kCubic);
  f.rtt = 20 * kMs;
  SECTION("short") { f.wide = 2.2; }
  SECTION("gaps of more than 2 ms") { f.rtt = 1000 * kMs; }
  const int rounds = f.rtt == 20 * kMs ? 10 : 6;
  for (int i = 0; i < rounds; i++) f.Round();
  CHECK(f.cc.ssthresh_bytes == kSsthreshUnknown);
}

TEST_CASE("hystart: what was paced by us takes a whole round trip to be a train") {
  Flow f(CongestionKind::kCubic);
  f.rtt = 20 * kMs;
  f.wide = 1.3;
  f.paced = GENERATE(true, false);
  for (int i = 0; i < 8; i++) f.Round();
  CHECK((f.cc.ssthresh_bytes == kSsthreshUnknown) == f.paced);
}

TEST_CASE("hystart: windows below 16 segments are not judged by trains") {
  Flow f(CongestionKind::kCubic);
  f.rtt = 4 * kMs;
  f.app_bytes = 8 * f.cc.mss_bytes;
  for (int i = 0; i < 20; i++) f.Round();
  CHECK(f.cc.ssthresh_bytes == kSsthreshUnknown);
}

}  // namespace
}  // namespace postern::tcp
