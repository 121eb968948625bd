// SPDX-License-Identifier: Apache-2.0
// tcp_prr_test.cc - proportional rate reduction: the examples of RFC 6937, 3.1, and what always
// holds.
#include <random>
#include <string>

#include "../kit/catch.h"
#include "tcp_flow.h"

namespace postern::tcp {
namespace {

constexpr uint32_t kMss = 1000;

// A recovery that counts segments: the window of the examples is 20, of NewReno.
struct Recovery {
  Congestion cc;
  uint32_t pipe, sent = 0, delivered = 0;

  explicit Recovery(uint32_t pipe_segments, uint32_t window = 20,
                    CongestionKind kind = CongestionKind::kNewReno)
      : pipe(pipe_segments * kMss) {
    CongestionInit(cc, kind, kMss);
    cc.cwnd_bytes = window * kMss;
    cc.ssthresh_bytes = window * kMss;
    CongestionOnLoss(cc, Cause::kLoss);
  }
  // An acknowledgement of `arrived` segments that have left `pipe` already; what may be sent is.
  uint32_t Ack(uint32_t arrived, bool una_advanced, uint32_t lost = 0, uint32_t app = ~0u) {
    AckSample ack = {};
    ack.delivered_bytes = arrived * kMss;
    ack.newly_lost_bytes = lost * kMss;
    ack.in_flight_bytes = pipe;
    ack.una_advanced = una_advanced;
    CongestionOnAck(cc, ack);
    delivered += arrived;
    const uint32_t segments = std::min(CongestionRoom(cc, pipe) / kMss, app);
    pipe += segments * kMss;
    sent += segments;
    if (segments > 0) CongestionOnSent(cc, {0, 0, segments * kMss, pipe, Seq(0), Seq(1)});
    return segments;
  }
};

// The sender has answered the first two of 19 duplicate acknowledgements by limited transmit
// (RFC 3042), so 22 segments were sent; the third begins the recovery.
TEST_CASE("prr: one segment of twenty is lost: every second acknowledgement sends one") {
  Recovery r(22 - 3 - 1);
  std::string sends;
  for (int ack = 3; ack <= 19; ack++) {
    if (ack > 3) r.pipe -= kMss;
    sends += static_cast<char>('0' + r.Ack(1, false, ack == 3 ? 1 : 0));
  }
  // RFC 6937's figure: R at the third, N at the fifth, the seventh, ... ; and what is under way at
  // the end of it is ssthresh.
  CHECK(sends == "10101010101010100");
  CHECK(r.pipe == 10 * kMss);
  CongestionOnRecovered(r.cc);
  CHECK(r.cc.cwnd_bytes == 10 * kMss);
}

TEST_CASE("prr: fifteen of twenty are lost: conservative, or with slow start's bound") {
  // Three acknowledgements are left (17, 18, 19); the figure has 1, 1, 1 and 2, 2, 2.
  const bool safe = GENERATE(false, true);
  Recovery r(22 - 3 - 15);
  CHECK(r.Ack(1, safe, safe ? 0 : 15) == (safe ? 2u : 1u));
  r.pipe -= kMss;
  CHECK(r.Ack(1, safe) == (safe ? 2u : 1u));
  r.pipe -= kMss;
  CHECK(r.Ack(1, safe) == (safe ? 2u : 1u));
  CHECK(r.pipe == (safe ? 8u : 5u) * kMss);
}

TEST_CASE("prr: CUBIC sends seven for ten that arrive") {
  Recovery r(100 - 4, 100, CongestionKind::kCubic);
  for (int i = 0; i < 60; i++) {
    r.Ack(1, false);
    r.pipe -= kMss;
  }
  CHECK(r.sent == 42);
}

TEST_CASE("prr: the retransmission goes out with the first acknowledgement, whatever the numbers") {
  Recovery r(200, 20);  // more under way than the window, after ssthresh was lowered by others
  CHECK(r.Ack(0, false, 1) == 1);
  CHECK(r.Ack(0, false) == 0);  // nothing has arrived: nothing more
}

TEST_CASE("prr: an application that pauses catches up, up to ssthresh") {
  Recovery r(18);
  for (int i = 0; i < 10; i++) {
    r.Ack(1, false, 0, i == 0 ? 1 : 0);
    if (r.pipe > 0) r.pipe -= kMss;
  }
  CHECK(r.pipe == 9 * kMss);
  const uint32_t burst = r.Ack(1, false);
  CHECK(burst == 1);  // ssthresh - pipe
  CHECK(r.pipe == 10 * kMss);
}

TEST_CASE("prr: holds whatever the acknowledgements are") {
  std::mt19937_64 engine(GENERATE(1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u));
  const auto random = [&] { return static_cast<uint32_t>(engine() >> 32); };
  for (int run = 0; run < 300; run++) {
    const uint32_t window = 4 + random() % 200;
    Recovery r(window, window,
               random() % 2 == 0 ? CongestionKind::kCubic : CongestionKind::kNewReno);
    const uint32_t ssthresh = r.cc.ssthresh_bytes;
    uint32_t extra = 1;  // the first retransmission
    for (int i = 0; i < 300 && r.pipe > 0; i++) {
      const uint32_t arrived = std::min(random() % 4, r.pipe / kMss);
      r.pipe -= arrived * kMss;
      const uint32_t lost = random() % 5 == 0 ? std::min(random() % 6, r.pipe / kMss) : 0;
      r.pipe -= lost * kMss;
      const bool una = random() % 2 == 0;
      const uint32_t before = r.pipe;
      const uint32_t sent = r.Ack(arrived, una, lost, random() % 4 == 0 ? random() % 3 : ~0u);
      if (una && lost == 0 && arrived > 0) extra++;
      if (lost > 0 && arrived == 0) extra++;
      // Conservation: never more out than in, but for slow start's bound.
      REQUIRE(r.sent <= r.delivered + extra);
      // Never above ssthresh from below it; above it, at most what has arrived.
      if (before <= ssthresh && sent > 1) REQUIRE(r.pipe <= ssthresh);
      if (before > ssthresh && r.delivered > 0 && sent > 1)
        REQUIRE(r.sent * uint64_t{window} * kMss <=
                uint64_t{r.delivered + extra} * ssthresh + window * kMss);
    }
    CongestionOnRecovered(r.cc);
    REQUIRE(r.cc.cwnd_bytes == ssthresh);
  }
}

}  // namespace
}  // namespace postern::tcp
