// SPDX-License-Identifier: Apache-2.0
// tcp_cookie_test.cc - initial sequence numbers, SYN cookies and the limits of challenge ACKs.
#include <cstring>
#include <random>
#include <set>

#include "../kit/catch.h"
#include "tcp/machine.h"
#include "tcp/segment/challenge.h"
#include "tcp/segment/isn.h"
#include "tcp/segment/syn_cookie.h"

namespace postern::tcp {
namespace {

constexpr SipKey kSecret = {0x1122334455667788u, 0x99aabbccddeeff00u};
constexpr uint64_t kClock = 1'764'000'000 * kSecond + 59 * kSecond;

ConnName Name(uint16_t remote_port) {
  ConnName conn = {};
  conn.local[10] = conn.local[11] = conn.remote[10] = conn.remote[11] = 0xff;
  conn.local[12] = conn.remote[12] = 10;
  conn.local[15] = 1;
  conn.remote[15] = 2;
  conn.local_port = 80;
  conn.remote_port = remote_port;
  return conn;
}

TEST_CASE("isn: grows with the clock for the same four names") {
  const ConnName conn = Name(40000);
  Seq last = InitialSeq(kSecret, conn, kClock);
  for (uint64_t passed = 0; passed < 600 * kSecond; passed += 7 * kSecond) {
    const Seq next = InitialSeq(kSecret, conn, kClock + passed + 7 * kSecond);
    CHECK(After(next, last));
    CHECK(static_cast<uint32_t>(next - last) == 7 * kSecond / 64);
    last = next;
  }
}

TEST_CASE("isn: other names, or another secret, have unrelated numbers") {
  std::set<uint32_t> seen, offsets;
  for (uint16_t port = 1000; port < 3000; port++) {
    seen.insert(InitialSeq(kSecret, Name(port), kClock).value() >> 8);
    offsets.insert(TimestampOffset(kSecret, Name(port)) >> 8);
  }
  CHECK(seen.size() > 1995);
  CHECK(offsets.size() > 1995);
  const SipKey other = {kSecret.k0, kSecret.k1 ^ 1};
  CHECK(InitialSeq(other, Name(1000), kClock) != InitialSeq(kSecret, Name(1000), kClock));
  // Every part of the name counts, and the two ends are not interchangeable.
  const ConnName conn = Name(1000);
  for (size_t i = 0; i < sizeof conn; i++) {
    ConnName changed = conn;
    reinterpret_cast<uint8_t*>(&changed)[i] ^= 1;
    CHECK(InitialSeq(kSecret, changed, kClock) != InitialSeq(kSecret, conn, kClock));
    CHECK(TimestampOffset(kSecret, changed) != TimestampOffset(kSecret, conn));
  }
}

// A client of a server that makes cookies.
struct Handshake {
  bool ipv6 = false;
  SegmentIn syn, ack;
  ConnName conn = Name(40000);
  uint32_t ts_ms = 123456;
  bool ecn = false;

  Handshake() {
    syn.seq = Seq(0xfffffffeu);
    syn.flags = kSyn;
    syn.options.mss = 1460;
  }
  void Answer(uint64_t clock_ns) {
    ack.seq = syn.seq + 1u;
    ack.ack = CookieMake(kSecret, conn, ipv6, syn, clock_ns) + 1u;
    ack.flags = kAck;
    ack.options.has_timestamps = syn.options.has_timestamps;
    if (!syn.options.has_timestamps) return;
    ack.options.ts_value = syn.options.ts_value + 3;
    ack.options.ts_echo = CookieTimestamp(kSecret, conn, syn, ecn, ts_ms);
  }
  bool Check(uint64_t clock_ns, CookieState& out) const {
    return CookieCheck(kSecret, conn, ipv6, ack, clock_ns, out);
  }
};

TEST_CASE("cookie: round trip without timestamps keeps the MSS alone") {
  const auto [sent, ipv6, kept] = GENERATE(table<uint16_t, bool, uint16_t>({{0, false, 536},
                                                                            {536, false, 536},
                                                                            {1299, false, 536},
                                                                            {1300, false, 1300},
                                                                            {1452, false, 1440},
                                                                            {1460, false, 1460},
                                                                            {8960, false, 1460},
                                                                            {0, true, 1220},
                                                                            {1440, true, 1440},
                                                                            {1439, true, 1420},
                                                                            {65000, true, 8940}}));
  Handshake h;
  h.ipv6 = ipv6;
  h.syn.options.mss = sent;
  h.syn.options.sack_permitted = h.syn.options.has_window_scale = true;
  h.syn.options.window_scale = 7;
  h.Answer(kClock);
  CookieState out;
  REQUIRE(h.Check(kClock + 20 * kMs, out));
  CHECK(out.mss == kept);
  CHECK(CookieMss(sent, ipv6) == kept);
  CHECK(out.irs == h.syn.seq);
  CHECK(out.iss == h.ack.ack - 1u);
  CHECK_FALSE(out.sack);
  CHECK_FALSE(out.has_window_scale);
  CHECK_FALSE(out.has_timestamps);
}

TEST_CASE("cookie: timestamps carry window scale, SACK and ECN, and do not run ahead") {
  const int scale = GENERATE(-1, 0, 7, 14, 200);
  const bool sack = GENERATE(false, true), ecn = GENERATE(false, true);
  Handshake h;
  h.ts_ms = GENERATE(0u, 1u, 63u, 64u, 123456u, 0xffffffffu);
  h.ecn = ecn;
  h.syn.options.has_timestamps = true;
  h.syn.options.ts_value = 77;
  h.syn.options.sack_permitted = sack;
  h.syn.options.has_window_scale = scale >= 0;
  h.syn.options.window_scale = static_cast<uint8_t>(scale < 0 ? 0 : scale);
  h.Answer(kClock);
  const auto ahead =
      static_cast<int32_t>(h.ack.options.ts_echo - TimestampOffset(kSecret, h.conn) - h.ts_ms);
  CHECK(ahead <= 0);
  CHECK(ahead > -128);
  CookieState out;
  REQUIRE(h.Check(kClock, out));
  CHECK(out.has_timestamps);
  CHECK(out.ts_recent == 80);
  CHECK(out.sack == sack);
  CHECK(out.ecn == ecn);
  CHECK(out.has_window_scale == (scale >= 0));
  CHECK(out.window_scale == (scale < 0 ? 0 : scale > 14 ? 14 : scale));
}

TEST_CASE("cookie: valid for more than one minute, and not for two") {
  Handshake h;
  CookieState out;
  for (uint64_t phase = 0; phase < 60 * kSecond; phase += 3 * kSecond) {
    const uint64_t made = kClock + phase;
    h.Answer(made);
    CHECK(h.Check(made, out));
    CHECK(h.Check(made + 60 * kSecond, out));
    CHECK_FALSE(h.Check(made + 120 * kSecond, out));
    CHECK_FALSE(h.Check(made + 3600 * kSecond, out));
    CHECK_FALSE(h.Check(made - 60 * kSecond, out));  // from the future
  }
}

TEST_CASE("cookie: no bit of it, and nothing it was made for, can be changed") {
  Handshake h;
  h.Answer(kClock);
  CookieState out;
  REQUIRE(h.Check(kClock, out));
  for (uint32_t bit = 0; bit < 32; bit++) {
    Handshake other = h;
    other.ack.ack = Seq(((h.ack.ack.value() - 1u) ^ (1u << bit)) + 1u);
    CHECK_FALSE(other.Check(kClock, out));
    other = h;
    other.ack.seq = Seq(h.ack.seq.value() ^ 1u << bit);
    CHECK_FALSE(other.Check(kClock, out));
  }
  for (size_t i = 0; i < sizeof h.conn; i++) {
    Handshake other = h;
    reinterpret_cast<uint8_t*>(&other.conn)[i] ^= 0x10;
    CHECK_FALSE(other.Check(kClock, out));
  }
  CHECK_FALSE(CookieCheck({kSecret.k0 ^ 1, kSecret.k1}, h.conn, false, h.ack, kClock, out));
}

TEST_CASE("cookie: a million guesses are in vain") {
  std::mt19937_64 random(11);
  Handshake h;
  h.Answer(kClock);
  CookieState out;
  int right = 0;
  for (int i = 0; i < 1'000'000; i++) {
    h.ack.ack = Seq(static_cast<uint32_t>(random()));
    right += h.Check(kClock, out) ? 1 : 0;
  }
  CHECK(right == 0);
}

TEST_CASE("cookie: looked at only within two minutes of the last one made") {
  CookieGate gate = {};
  CHECK_FALSE(CookieExpected(gate, kClock));
  CookieMade(gate, kClock);
  CHECK(CookieExpected(gate, kClock + 119 * kSecond));
  CHECK_FALSE(CookieExpected(gate, kClock + 120 * kSecond));
}

TEST_CASE("challenge: so many in a second on average, and not predictable") {
  std::mt19937_64 random(3);
  ChallengeLimit limit = {};
  std::set<uint32_t> numbers;
  uint64_t sum = 0;
  for (uint64_t second = 0; second < 400; second++) {
    uint32_t allowed = 0;
    for (int i = 0; i < 2000; i++) {
      const uint64_t at = second * kSecond + static_cast<uint64_t>(i) * 100'000;
      if (ChallengeAllowed(limit, at, 1000, random())) allowed++;
    }
    CHECK(allowed >= 500);
    CHECK(allowed <= 1500);
    numbers.insert(allowed);
    sum += allowed;
  }
  CHECK(numbers.size() > 200);
  CHECK(sum > 400 * 930);
  CHECK(sum < 400 * 1070);
  CHECK_FALSE(ChallengeAllowed(limit, 1000 * kSecond, 0, 1));
  CHECK(ChallengeAllowed(limit, 1000 * kSecond, ~0u, 1));
  CHECK(ChallengeAllowed(limit, 2000 * kSecond, 1, 1));
  CHECK_FALSE(ChallengeAllowed(limit, 2000 * kSecond, 1, 1));
}

TEST_CASE("challenge: one connection answers twice a second at most") {
  OutOfWindowLimit limit = {};
  int allowed = 0;
  for (uint64_t now = 0; now < 10 * kSecond; now += kMs)
    allowed += OutOfWindowAckAllowed(limit, now);
  CHECK(allowed >= 19);
  CHECK(allowed <= 21);
}

}  // namespace
}  // namespace postern::tcp
