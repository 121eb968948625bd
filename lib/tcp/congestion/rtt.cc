// SPDX-License-Identifier: Apache-2.0
// rtt.cc - round-trip estimation and the retransmission time-out (RFC 6298).
#include "tcp/congestion/rtt.h"

#include <algorithm>

namespace postern::tcp {
namespace {

constexpr uint32_t kSpans = 4;
// A sample beyond this is a clock that jumped; what is computed of it stays far from overflow.
constexpr uint64_t kSampleMaxNs = uint64_t{1} << 50;  // 13 days

//= rfc6298#2
//# (2.3) RTO <- SRTT + max (G, K*RTTVAR)
void Derive(RttEstimator& r) {
  uint64_t rto = r.srtt8_ns == 0 ? kRtoInitialNs : Srtt(r) + r.rttvar4_ns;
  r.rto_ns = std::clamp(rto, r.rto_min_ns, r.rto_max_ns);
}

//= rfc6298#2
//# (2.2) SRTT <- R, RTTVAR <- R/2
void First(RttEstimator& r, uint64_t rtt_ns, Seq snd_nxt) {
  r.srtt8_ns = rtt_ns * 8;
  r.mdev4_ns = rtt_ns * 2;
  r.rttvar4_ns = std::max(r.mdev4_ns, r.rto_min_ns);
  r.mdev_max4_ns = r.rttvar4_ns;
  r.round_end = snd_nxt;
}

//= rfc6298#2
//# (2.3) RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|
//# SRTT <- (1 - alpha) * SRTT + alpha * R'
void Next(RttEstimator& r, uint64_t rtt_ns) {
  const uint64_t srtt = Srtt(r);
  const uint64_t off = rtt_ns > srtt ? rtt_ns - srtt : srtt - rtt_ns;
  r.srtt8_ns = std::max<uint64_t>(rtt_ns > srtt ? r.srtt8_ns + off : r.srtt8_ns - off, 1);
  const uint64_t mdev = r.mdev4_ns >> 2;
  if (off <= mdev) {
    r.mdev4_ns -= mdev - off;
  } else {
    r.mdev4_ns += rtt_ns > srtt ? off - mdev : (off - mdev) >> 3;  // rtt.h: Eifel
  }
}

// Spans since the present one began.
uint64_t Passed(const RttEstimator& r, uint64_t now_ns) {
  if (now_ns < r.min_start_ns + r.min_span_ns) return 0;
  return (now_ns - r.min_start_ns) / r.min_span_ns;
}

void Minimum(RttEstimator& r, uint64_t now_ns, uint64_t rtt_ns) {
  const uint64_t passed = Passed(r, now_ns);
  if (passed > 0) {
    const auto shift = static_cast<uint32_t>(std::min<uint64_t>(passed, kSpans));
    for (uint32_t i = kSpans; i-- > shift;) r.min_ns[i] = r.min_ns[i - shift];
    for (uint32_t i = 0; i < shift; i++) r.min_ns[i] = UINT64_MAX;
    r.min_start_ns += passed * r.min_span_ns;
  }
  r.min_ns[0] = std::min(r.min_ns[0], rtt_ns);
}

}  // namespace

void RttInit(RttEstimator& r) {
  r = {};
  r.rto_min_ns = kRtoMinNs;
  r.rto_max_ns = kRtoMaxNs;
  RttSetMinWindow(r, kMinRttWindowNs);
  for (uint64_t& min : r.min_ns) min = UINT64_MAX;
  Derive(r);
}

void RttSample(RttEstimator& r, uint64_t now_ns, uint64_t rtt_ns, Seq snd_una, Seq snd_nxt) {
  rtt_ns = std::clamp<uint64_t>(rtt_ns, 1, kSampleMaxNs);
  r.latest_ns = rtt_ns;
  Minimum(r, now_ns, rtt_ns);
  if (r.srtt8_ns == 0) {
    First(r, rtt_ns, snd_nxt);
  } else {
    Next(r, rtt_ns);
    if (r.mdev4_ns > r.mdev_max4_ns) {
      r.mdev_max4_ns = r.mdev4_ns;
      r.rttvar4_ns = std::max(r.rttvar4_ns, r.mdev_max4_ns);
    }
    if (After(snd_una, r.round_end)) {
      if (r.mdev_max4_ns < r.rttvar4_ns) r.rttvar4_ns -= (r.rttvar4_ns - r.mdev_max4_ns) >> 2;
      r.round_end = snd_nxt;
      r.mdev_max4_ns = r.rto_min_ns;
    }
  }
  //= rfc6298#5
  //# Note that after retransmitting, once a new RTT measurement is obtained [...], the
  //# computations outlined in Section 2 are performed, [...] which may result in "collapsing" RTO
  //# back down after it has been subject to exponential back off
  r.backoff = 0;
  Derive(r);
}

void RttNoHandshakeSample(RttEstimator& r) {
  //= rfc6298#5
  //# (5.7) [...] the RTO MUST be re-initialized to 3 seconds when data transmission begins
  if (r.srtt8_ns != 0) return;
  r.backoff = 0;
  r.rto_ns = std::clamp(kRtoFallbackNs, r.rto_min_ns, r.rto_max_ns);
}

void RttBackOff(RttEstimator& r) {
  //= rfc6298#5
  //# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer").
  r.backoff++;
  r.rto_ns = std::min(r.rto_ns * 2, r.rto_max_ns);
}

void RttEndBackOff(RttEstimator& r) {
  r.backoff = 0;
  Derive(r);
}

void RttSetBounds(RttEstimator& r, uint64_t rto_min_ns, uint64_t rto_max_ns) {
  r.rto_max_ns = rto_max_ns != 0 ? rto_max_ns : kRtoMaxNs;
  r.rto_min_ns = std::min(rto_min_ns != 0 ? rto_min_ns : kRtoMinNs, r.rto_max_ns);
  r.rto_ns = std::clamp(r.rto_ns, r.rto_min_ns, r.rto_max_ns);
}

void RttSetMinWindow(RttEstimator& r, uint64_t window_ns) {
  r.min_span_ns = std::max<uint64_t>(window_ns / (kSpans - 1), 1);
}

uint64_t MinRtt(const RttEstimator& r, uint64_t now_ns) {
  const uint64_t passed = Passed(r, now_ns);
  uint64_t least = UINT64_MAX;
  for (uint64_t i = 0; i + passed < kSpans; i++) least = std::min(least, r.min_ns[i]);
  return least;
}

}  // namespace postern::tcp
