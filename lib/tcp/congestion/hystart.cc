// SPDX-License-Identifier: Apache-2.0
// hystart.cc - the end of the first slow start: HyStart++ (RFC 9406), and HyStart's train.
//
// A round ends when what was sent last at its beginning is acknowledged. If the shortest round trip
// of this round is longer than that of the last one by an eighth (4 ms at least, 16 ms at most), a
// queue is building up. That may be wrong (jitter), so slow start does not end at once but goes on
// at a quarter of its speed (conservative slow start, CSS) for at most five rounds: when a round is
// shorter again than where it began, slow start is resumed; else it is over.
//
// By then a queue of one round trip has overflowed: its packets are seen to be late one round trip
// after the window was doubled over the path's capacity, and CSS triples it. What comes earlier is
// what HyStart (Ha and Rhee, 2011) looks for, and Linux, too: acknowledgements come at the pace of
// the bottleneck. If those of one round follow each other closely for half the shortest round trip,
//
//       | data, at once      | ACKs, at the bottleneck's pace
//       |||||||||.           .| | | | | | | | |                      | = kTrainGapNs at most
//       |<---- shortest RTT ->|<-- half of it -->|
//
// then what was under way a round trip ago has filled half of the path at least. Of it, half a path
// was acknowledged since, and doubled: slow start ends with a path and a half under way at most,
// and CUBIC looks for the rest.
//
// L, the limit for one acknowledgement, is infinite, as in Linux: peers that aggregate (GRO)
// acknowledge some 44 segments at once, and would be punished for it. Bursts are for pacing.
#include <algorithm>

#include "tcp/congestion/congestion_parts.h"

namespace postern::tcp {
namespace {

// RFC 9406, 4.3: MIN_RTT_THRESH, MAX_RTT_THRESH, MIN_RTT_DIVISOR, N_RTT_SAMPLE, CSS_GROWTH_DIVISOR,
// CSS_ROUNDS.
constexpr uint64_t kMinThreshNs = 4'000'000, kMaxThreshNs = 16'000'000;
constexpr uint64_t kMinRttDivisor = 8;
constexpr uint32_t kSamples = 8, kCssDivisor = 4, kCssRounds = 5;
constexpr uint64_t kNone = UINT64_MAX;
// Linux: hystart_ack_delta_us, hystart_low_window, and what aggregation may add
// (hystart_ack_delay).
constexpr uint64_t kTrainGapNs = 2'000'000, kAggregationMaxNs = 1'000'000;
constexpr uint32_t kTrainSegmentsMin = 16;
constexpr uint64_t kAggregationBytes = 4 * 65536;

void BeginRound(HyStartState& h, Seq snd_nxt, uint64_t now_ns) {
  h.train_begin_ns = h.train_ns = now_ns;
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
  h.least_ns = std::min(h.least_ns, rtt_ns);
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

// Whether this acknowledgement belongs to a train that is long enough.
bool IsLongTrain(Congestion& cc, const AckSample& ack) {
  HyStartState& h = cc.hystart;
  // Late packets hold SND.UNA back: a round may begin with the end of the last one's train.
  if (ack.now_ns - h.train_ns > kTrainGapNs) h.train_begin_ns = ack.now_ns;
  h.train_ns = ack.now_ns;
  const uint64_t rate = CongestionPacingRate(cc, ack.srtt_ns);
  const uint64_t aggregation_ns =
      rate == 0 ? kAggregationMaxNs
                : std::min(kAggregationBytes * 1'000'000'000 / rate, kAggregationMaxNs);
  const uint64_t enough_ns = h.least_ns + aggregation_ns;
  return ack.now_ns - h.train_begin_ns > (ack.paced ? enough_ns : enough_ns / 2);
}

}  // namespace

void HyStartInit(HyStartState& h) {
  h = {};
  h.round_min_ns = h.last_min_ns = h.css_baseline_ns = h.least_ns = kNone;
}

uint32_t HyStartGrowth(Congestion& cc, const AckSample& ack, uint32_t bytes) {
  HyStartState& h = cc.hystart;
  // Behind window_end: a round begins with the first acknowledgement of a flight, and its train.
  if (h.started == 0 || After(ack.snd_una, h.window_end)) {
    // RFC 9406, 4.2: after CSS_ROUNDS of them comes congestion avoidance; a round in whose middle
    // CSS began counts.
    if (h.css_baseline_ns != kNone && ++h.css_rounds >= kCssRounds) {
      cc.ssthresh_bytes = cc.cwnd_bytes;
      return 0;
    }
    BeginRound(h, ack.snd_nxt, ack.now_ns);
  }
  const bool conservative = h.css_baseline_ns != kNone;
  if (ack.rtt_ns != 0) {
    TakeSample(h, ack.rtt_ns);
    if (cc.cwnd_bytes >= kTrainSegmentsMin * cc.mss_bytes && IsLongTrain(cc, ack)) {
      cc.ssthresh_bytes = cc.cwnd_bytes;
      return 0;
    }
  }
  if (!conservative) return bytes;
  const uint64_t quarters = uint64_t{bytes} + h.growth_rest;
  h.growth_rest = static_cast<uint32_t>(quarters % kCssDivisor);
  return static_cast<uint32_t>(quarters / kCssDivisor);
}

}  // namespace postern::tcp
