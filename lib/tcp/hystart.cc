// SPDX-License-Identifier: Apache-2.0
// hystart.cc - HyStart++ (RFC 9406): slow start ends when round trips get longer, before loss.
//
// A round ends when what was sent last at its beginning is acknowledged. If the shortest round trip
// of this round is longer than that of the last one by an eighth (4 ms at least, 16 ms at most), a
// queue is building up. That may be wrong (jitter), so slow start does not end at once but goes on
// at a quarter of its speed (conservative slow start, CSS) for at most five rounds: when a round is
// shorter again than where it began, slow start is resumed; else it is over.
//
// L, the limit for one acknowledgement, is infinite, as in Linux: peers that aggregate (GRO)
// acknowledge some 44 segments at once, and would be punished for it. Bursts are for pacing.
#include <algorithm>

#include "tcp/congestion_parts.h"

namespace postern::tcp {
namespace {

// RFC 9406, 4.3: MIN_RTT_THRESH, MAX_RTT_THRESH, MIN_RTT_DIVISOR, N_RTT_SAMPLE, CSS_GROWTH_DIVISOR,
// CSS_ROUNDS.
constexpr uint64_t kMinThreshNs = 4'000'000, kMaxThreshNs = 16'000'000;
constexpr uint64_t kMinRttDivisor = 8;
constexpr uint32_t kSamples = 8, kCssDivisor = 4, kCssRounds = 5;
constexpr uint64_t kNone = UINT64_MAX;

void BeginRound(HyStartState& h, Seq snd_nxt) {
  h.last_min_ns = h.round_min_ns;
  h.round_min_ns = kNone;
  h.samples = 0;
  h.window_end = snd_nxt;
  h.started = 1;
}

// Whether this round trip is so much longer that there is a queue.
bool Rises(const HyStartState& h) {
  if (h.last_min_ns == kNone) return false;
  const uint64_t threshold = std::clamp(h.last_min_ns / kMinRttDivisor, kMinThreshNs, kMaxThreshNs);
  return h.round_min_ns >= h.last_min_ns + threshold;
}

void TakeSample(HyStartState& h, uint64_t rtt_ns) {
  h.round_min_ns = std::min(h.round_min_ns, rtt_ns);
  h.samples++;
  if (h.samples < kSamples) return;
  if (h.css_baseline_ns == kNone) {
    if (!Rises(h)) return;
    h.css_baseline_ns = h.round_min_ns;
    h.css_rounds = 0;
  } else if (h.round_min_ns < h.css_baseline_ns) {
    // It was jitter: slow start goes on.
    h.css_baseline_ns = kNone;
    h.growth_rest = 0;
  }
}

}  // namespace

void HyStartInit(HyStartState& h) {
  h = {};
  h.round_min_ns = h.last_min_ns = h.css_baseline_ns = kNone;
}

uint32_t HyStartGrowth(Congestion& cc, const AckSample& ack, uint32_t bytes) {
  HyStartState& h = cc.hystart;
  if (h.started == 0 || AtOrAfter(ack.snd_una, h.window_end)) {
    // RFC 9406, 4.2: after CSS_ROUNDS of them comes congestion avoidance; a round in whose middle
    // CSS began counts.
    if (h.css_baseline_ns != kNone && ++h.css_rounds >= kCssRounds) {
      cc.ssthresh_bytes = cc.cwnd_bytes;
      return 0;
    }
    BeginRound(h, ack.snd_nxt);
  }
  const bool conservative = h.css_baseline_ns != kNone;
  if (ack.rtt_ns != 0) TakeSample(h, ack.rtt_ns);
  if (!conservative) return bytes;
  const uint64_t quarters = uint64_t{bytes} + h.growth_rest;
  h.growth_rest = static_cast<uint32_t>(quarters % kCssDivisor);
  return static_cast<uint32_t>(quarters / kCssDivisor);
}

}  // namespace postern::tcp
