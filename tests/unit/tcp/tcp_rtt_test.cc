// SPDX-License-Identifier: Apache-2.0
// tcp_rtt_test.cc - the RTO against a direct reckoning in floating point; back-off; smallest RTT.
#include "tcp/congestion/rtt.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <random>

#include "../kit/catch.h"
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// As rtt.h describes it, unscaled.
struct Reference {
  double srtt = 0, mdev = 0, mdev_max = 0, rttvar = 0;
  bool any = false;

  void Sample(double rtt, bool round_over) {
    const double floor = 0.2 / 4;
    if (!any) {
      any = true;
      srtt = rtt;
      mdev = rtt / 2;
      rttvar = mdev_max = std::max(mdev, floor);
      return;
    }
    const double err = rtt - srtt;
    srtt += err / 8;
    const double change = (std::fabs(err) - mdev) / 4;
    mdev += err < 0 && change > 0 ? change / 8 : change;
    if (mdev > mdev_max) {
      mdev_max = mdev;
      rttvar = std::max(rttvar, mdev_max);
    }
    if (!round_over) return;
    if (mdev_max < rttvar) rttvar -= (rttvar - mdev_max) / 4;
    mdev_max = floor;
  }
  double rto() const { return std::min(srtt + 4 * rttvar, 120.0); }
};

struct Fixture {
  RttEstimator r;
  Seq una = Seq(0xfffffff0u), nxt = Seq(0xfffffff0u) + 14600u;
  uint64_t now = 5 * kSecond;

  Fixture() { RttInit(r); }
  void Sample(uint64_t rtt_ns) {
    una += 1460;
    nxt += 1460;
    now += kMs;
    RttSample(r, now, rtt_ns, una, nxt);
  }
};

TEST_CASE("rtt: before the first sample, and after it") {
  Fixture f;
  CHECK(f.r.rto_ns == 1 * kSecond);
  CHECK(Srtt(f.r) == 0);
  CHECK(MinRtt(f.r, f.now) == UINT64_MAX);
  f.Sample(300 * kMs);
  CHECK(Srtt(f.r) == 300 * kMs);
  CHECK(RttVar(f.r) == 150 * kMs);
  CHECK(f.r.rto_ns == 900 * kMs);
}

TEST_CASE("rtt: a steady path has an RTO of its RTT and 200 ms") {
  const uint64_t rtt = GENERATE(20'000u, 1 * kMs, 40 * kMs, 1000 * kMs);
  Fixture f;
  for (int i = 0; i < 2000; i++) f.Sample(rtt);
  CHECK(f.r.rto_ns >= rtt + 200 * kMs);
  CHECK(f.r.rto_ns <= rtt + 201 * kMs);
}

TEST_CASE("rtt: a path whose RTT varies, against floating point") {
  std::mt19937_64 random(GENERATE(1u, 2u, 3u, 4u, 5u, 6u));
  std::uniform_real_distribution<double> uniform(0, 1);
  Fixture f;
  Reference reference;
  double base = 0.02 + uniform(random) * 0.3;
  Seq round_end = f.nxt;
  for (int i = 0; i < 5000; i++) {
    if (i % 700 == 0) base = 0.001 + uniform(random) * 2;  // another path
    const double rtt = base * (1 + uniform(random) * uniform(random) * 2);
    f.Sample(static_cast<uint64_t>(rtt * 1e9));
    const bool first = !reference.any, over = After(f.una, round_end);
    reference.Sample(rtt, over);
    if (first || over) round_end = f.nxt;
    const double rto = static_cast<double>(f.r.rto_ns) / 1e9;
    REQUIRE(std::fabs(rto - reference.rto()) < reference.rto() * 1e-6);
    REQUIRE(std::fabs(static_cast<double>(Srtt(f.r)) / 1e9 - reference.srtt) < 1e-6);
  }
}

TEST_CASE("rtt: a rising deviation counts at once, a falling one by a quarter in a round trip") {
  Fixture f;
  for (int i = 0; i < 200; i++) f.Sample(100 * kMs);
  f.Sample(2000 * kMs);
  const uint64_t high = f.r.rto_ns;
  CHECK(high > 2000 * kMs);
  for (int i = 0; i < 9; i++) f.Sample(100 * kMs);  // less than a round trip
  CHECK(f.r.rttvar4_ns + Srtt(f.r) > high * 8 / 10);
  for (int i = 0; i < 400; i++) f.Sample(100 * kMs);
  CHECK(f.r.rto_ns < 310 * kMs);
}

TEST_CASE("rtt: a path that becomes much faster raises the RTO little") {
  Fixture f;
  for (int i = 0; i < 200; i++) f.Sample(1000 * kMs);
  const uint64_t before = f.r.rto_ns;
  f.Sample(10 * kMs);
  // RFC 6298's formula would make it 1.88 s, more than before.
  CHECK(f.r.rto_ns <= before);
}

TEST_CASE("rtt: back-off doubles up to 120 s and ends with a sample") {
  Fixture f;
  f.Sample(100 * kMs);
  CHECK(f.r.rto_ns == 300 * kMs);
  uint64_t expected = f.r.rto_ns;
  for (int i = 0; i < 12; i++) {
    RttBackOff(f.r);
    expected = std::min(expected * 2, 120 * kSecond);
    CHECK(f.r.rto_ns == expected);
  }
  CHECK(f.r.rto_ns == 120 * kSecond);
  CHECK(f.r.backoff == 12);
  SECTION("by a sample") { f.Sample(100 * kMs); }
  SECTION("without one") { RttEndBackOff(f.r); }
  CHECK(f.r.backoff == 0);
  CHECK(f.r.rto_ns == 300 * kMs);
}

TEST_CASE("rtt: a handshake without a sample has an RTO of 3 s (RFC 6298, 5.7)") {
  Fixture f;
  RttBackOff(f.r);
  RttNoHandshakeSample(f.r);
  CHECK(f.r.rto_ns == 3 * kSecond);
  f.Sample(50 * kMs);
  CHECK(f.r.rto_ns == 250 * kMs);
  RttNoHandshakeSample(f.r);  // too late
  CHECK(f.r.rto_ns == 250 * kMs);
}

TEST_CASE("rtt: bounds") {
  Fixture f;
  RttSetBounds(f.r, 5 * kMs, 2 * kSecond);
  for (int i = 0; i < 1000; i++) f.Sample(1 * kMs);
  CHECK(f.r.rto_ns <= 7 * kMs);
  for (int i = 0; i < 20; i++) RttBackOff(f.r);
  CHECK(f.r.rto_ns == 2 * kSecond);
  RttSetBounds(f.r, 0, 0);
  CHECK(f.r.rto_max_ns == 120 * kSecond);
}

TEST_CASE("rtt: nonsense samples do not break it") {
  Fixture f;
  for (const uint64_t rtt : {uint64_t{0}, UINT64_MAX, uint64_t{1}, UINT64_MAX, uint64_t{50}}) {
    f.Sample(rtt);
    CHECK(f.r.rto_ns >= 200 * kMs);
    CHECK(f.r.rto_ns <= 120 * kSecond);
  }
}

TEST_CASE("rtt: the smallest of the last 300 s, against all samples kept") {
  std::mt19937_64 random(7);
  RttEstimator r;
  RttInit(r);
  std::deque<std::pair<uint64_t, uint64_t>> all;
  uint64_t now = 1'000'000 * kSecond;
  for (int i = 0; i < 20000; i++) {
    now += random() % (random() % 50 == 0 ? 90 * kSecond : kSecond);
    const uint64_t rtt = kMs + random() % (100 * kMs);
    RttSample(r, now, rtt, Seq(0), Seq(1));
    all.emplace_back(now, rtt);
    uint64_t least300 = UINT64_MAX, least400 = UINT64_MAX;
    while (all.front().first + 400 * kSecond < now) all.pop_front();
    for (const auto& [at, value] : all) {
      least400 = std::min(least400, value);
      if (at + 300 * kSecond >= now) least300 = std::min(least300, value);
    }
    REQUIRE(MinRtt(r, now) <= least300);
    REQUIRE(MinRtt(r, now) >= least400);
  }
  CHECK(MinRtt(r, now + 400 * kSecond) == UINT64_MAX);
}

}  // namespace
}  // namespace postern::tcp
