// SPDX-License-Identifier: Apache-2.0
// cubic.cc - CUBIC (RFC 9438): a window that depends on the time since the last loss.
//
//        W_cubic(t) = C * (t - K)^3 + W_max          C = 0.4 segments / s^3
//
//   cwnd                                 .     W_max: where it was lost last time. The curve is
//   W_max ...............____--------´´        steep, then flat around W_max, then steep again, as
//               _.-´´´    |                    it does not know what there is beyond it. K: when
//            .´           |                    it gets there, so that W_cubic(0) is 0.7 * W_max.
//          0 ------------ K ----------> t
//
// Reno would have grown by one segment in each round trip instead; where that is faster (short
// round trips) cwnd follows it (W_est): CUBIC is at no time slower than Reno.
//
// No floating point: time is in ticks of 1/1024 s, so that (t - K)^3 is in 2^-30 s^3; windows are
// in bytes. The error is that of the tick: at 3 * C * (t - K)^2 segments a second, and K = 10 s
// (400 segments to regain), 0.12 segments where the curve is steepest.
#include <algorithm>

#include "tcp/congestion/congestion_parts.h"

namespace postern::tcp {
namespace {

constexpr uint32_t kTicks = 1024;  // in a second
constexpr uint64_t kSecondNs = 1'000'000'000;
// 512 s off the plateau the curve is 53 million segments above it: beyond any window. Its cube has
// 57 bits, times 2/5, less 10, and 16 of the segment size make 62.
constexpr uint64_t kOffTicksMax = 512 * kTicks;
constexpr uint32_t kWEstShift = 12;
// Linux: as long as no W_max is known, at least a segment for each 20 acknowledged. The curve alone
// would need seconds to leave the place where slow start was ended too early.
constexpr uint32_t kUnknownDivisor = 20;

uint64_t Ticks(uint64_t ns) {
  return ns / kSecondNs * kTicks + ns % kSecondNs * kTicks / kSecondNs;
}

uint32_t Capped(uint64_t bytes) {
  return static_cast<uint32_t>(std::min<uint64_t>(bytes, kCwndMax));
}

// RFC 9438, 4.2: K is the cube root of (W_max - cwnd_epoch) / C; 4.8 and 4.10: after a time-out,
// and after a slow start that ended without loss, K is 0 and the plateau is cwnd. So for all epochs
// without a W_max above cwnd.
void BeginEpoch(Congestion& cc, uint64_t now_ns) {
  CubicState& c = cc.cubic;
  c.epoch_start_ns = std::max<uint64_t>(now_ns, 1);
  c.growth_rest = 0;
  c.w_est_4096 = uint64_t{cc.cwnd_bytes} << kWEstShift;
  if (c.w_max_bytes <= cc.cwnd_bytes) {
    c.k_ticks = 0;
    c.origin_bytes = cc.cwnd_bytes;
    return;
  }
  // 30 bits of bytes and the 30 of the cubed tick: 60; times 5/2 after the division.
  const uint64_t behind = c.w_max_bytes - cc.cwnd_bytes;
  c.k_ticks = CubeRoot((behind << 30) / cc.mss_bytes * 5 / 2);
  c.origin_bytes = c.w_max_bytes;
}

// RFC 9438, 4.3: W_est begins as cwnd and grows by alpha segments in a round trip, alpha being
// 3 * (1 - beta) / (1 + beta) = 9/17, with which a window that falls to 0.7 has Reno's average; 1
// once it has regained cwnd_prior, so not as long as there is none. In bits: 30 of acked, 16 of the
// segment, 5 of 17, 12 make 63.
uint32_t GrowWEst(Congestion& cc, uint32_t bytes) {
  CubicState& c = cc.cubic;
  const bool regained = c.cwnd_prior_bytes != 0 && c.w_est_4096 >> kWEstShift >= c.cwnd_prior_bytes;
  const uint64_t product = uint64_t{bytes} * cc.mss_bytes * (regained ? 17 : 9);
  c.w_est_4096 += (product << kWEstShift) / (uint64_t{17} * cc.cwnd_bytes);
  c.w_est_4096 = std::min(c.w_est_4096, uint64_t{kCwndMax} << kWEstShift);
  return Capped(c.w_est_4096 >> kWEstShift);
}

// RFC 9438, 4.2: the curve one round trip ahead, not below cwnd and not above 1.5 of it; a byte
// more at least, or a window of one byte would stay while W_est goes on, and then jump there.
uint32_t Target(const Congestion& cc, uint64_t t_ns, uint64_t srtt_ns) {
  const uint32_t cwnd = cc.cwnd_bytes;
  const uint32_t least = cc.cubic.w_max_bytes == 0 ? cwnd + cwnd / kUnknownDivisor : cwnd;
  return std::clamp(CubicWindow(cc, t_ns + srtt_ns), least, cwnd + std::max(cwnd / 2, 1u));
}

}  // namespace

// Digit by digit in base 2, exact; once for each epoch.
uint32_t CubeRoot(uint64_t x) {
  uint64_t root = 0;
  for (int shift = 63; shift >= 0; shift -= 3) {
    root *= 2;
    const uint64_t step = 3 * root * (root + 1) + 1;  // (root + 1)^3 - root^3
    if (x >> shift >= step) {
      x -= step << shift;
      root++;
    }
  }
  return static_cast<uint32_t>(root);
}

// RFC 9438, 4.2, figure 1.
uint32_t CubicWindow(const Congestion& cc, uint64_t t_ns) {
  const CubicState& c = cc.cubic;
  const uint64_t t = Ticks(t_ns), k = c.k_ticks;
  const uint64_t off = std::min(t > k ? t - k : k - t, kOffTicksMax);
  const uint64_t delta = ((off * off * off * 2 / 5 >> 10) * cc.mss_bytes) >> 20;
  if (t >= k) return Capped(c.origin_bytes + delta);
  return static_cast<uint32_t>(c.origin_bytes - std::min<uint64_t>(delta, c.origin_bytes));
}

void CubicAvoid(Congestion& cc, const AckSample& ack, uint32_t bytes) {
  CubicState& c = cc.cubic;
  if (c.app_limited_ns != 0) {
    if (c.epoch_start_ns != 0 && ack.now_ns > c.app_limited_ns)
      c.epoch_start_ns += ack.now_ns - c.app_limited_ns;
    c.app_limited_ns = 0;
  }
  if (c.epoch_start_ns == 0) BeginEpoch(cc, ack.now_ns);
  const uint64_t t = ack.now_ns > c.epoch_start_ns ? ack.now_ns - c.epoch_start_ns : 0;
  bytes = std::min(bytes, cc.cwnd_bytes);  // an acknowledgement of more than a window is a jump
  const uint32_t w_est = GrowWEst(cc, bytes);
  // RFC 9438, 4.4 and 4.5: (target - cwnd) / cwnd segments for each segment acknowledged.
  const uint64_t grown =
      uint64_t{Target(cc, t, ack.srtt_ns) - cc.cwnd_bytes} * bytes + c.growth_rest;
  c.growth_rest = grown % cc.cwnd_bytes;
  cc.cwnd_bytes = Capped(cc.cwnd_bytes + grown / cc.cwnd_bytes);
  // RFC 9438, 4.3: the Reno-friendly region.
  if (CubicWindow(cc, t) < w_est) cc.cwnd_bytes = std::max(cc.cwnd_bytes, w_est);
}

// RFC 9438, 4.6: 0.7 of the window, two segments at least; cwnd in place of flight_size, see
// NewRenoReduced(). 4.7, fast convergence: lost below the last W_max, another flow has come and
// needs room, so W_max is not where it was lost but (1 + 0.7) / 2 of that.
uint32_t CubicReduced(Congestion& cc) {
  CubicState& c = cc.cubic;
  const uint64_t cwnd = cc.cwnd_bytes;
  c.w_max_bytes = static_cast<uint32_t>(cwnd < c.w_max_bytes ? cwnd * 17 / 20 : cwnd);
  c.cwnd_prior_bytes = cc.cwnd_bytes;
  c.epoch_start_ns = 0;
  c.app_limited_ns = 0;
  return std::max(static_cast<uint32_t>(cwnd * 7 / 10), 2 * cc.mss_bytes);
}

// RFC 9438, 4.2 and 5.8: t leaves out the time in which cwnd could not grow.
void CubicNotLimited(Congestion& cc, uint64_t now_ns) {
  if (cc.cubic.app_limited_ns == 0) cc.cubic.app_limited_ns = std::max<uint64_t>(now_ns, 1);
}

void CubicIdle(Congestion& cc, uint64_t idle_ns) {
  CubicState& c = cc.cubic;
  if (c.epoch_start_ns != 0 && c.app_limited_ns == 0) c.epoch_start_ns += idle_ns;
}

// The curve goes on from the window that is left, towards the same W_max: else the next
// acknowledgement would bring back what was given up.
void CubicNewStage(Congestion& cc) {
  cc.cubic.epoch_start_ns = 0;
  cc.cubic.app_limited_ns = 0;
}

void CubicReset(Congestion& cc) {
  const uint32_t prior = cc.cubic.cwnd_prior_bytes;
  cc.cubic = {};
  cc.cubic.cwnd_prior_bytes = prior;
}

// A path that has made us believe in a loss is not searched by 5 % in each round trip any more:
// that overflows the queue by a twentieth of it, and where packets are late each of these losses
// may make others (a receiver's PAWS drops what the retransmission has overtaken). So W_max is not
// forgotten, as in Linux, which restores nothing of the curve.
void CubicUndo(Congestion& cc) {
  const uint32_t found = cc.cubic.w_max_bytes;
  cc.cubic = cc.cubic_prior;
  if (cc.cubic.w_max_bytes == 0) cc.cubic.w_max_bytes = found;
}

void CubicScale(CubicState& c, uint32_t mss_old, uint32_t mss_new) {
  const auto scale = [&](uint32_t v) {
    return static_cast<uint32_t>(uint64_t{v} * mss_new / mss_old);
  };
  c.w_max_bytes = scale(c.w_max_bytes);
  c.origin_bytes = scale(c.origin_bytes);
  c.cwnd_prior_bytes = scale(c.cwnd_prior_bytes);
  c.w_est_4096 = (c.w_est_4096 >> kWEstShift) * mss_new / mss_old << kWEstShift;
  c.growth_rest = 0;
}

}  // namespace postern::tcp
