// SPDX-License-Identifier: Apache-2.0
// rtt.h - how long a round trip takes, and so how long to wait before a segment is sent again.
//
// RFC 6298 as Linux does it, in nanoseconds, part of each Tcb:
// - smoothed values are kept scaled (8 * SRTT, 4 * deviation), so that shifts lose nothing;
// - RTTVAR follows a rising deviation at once, but falls only once in a round trip, by a quarter
//   towards the largest of that round trip: a sample for each segment would else have forgotten
//   the last round trip's variation before this one's is known;
// - a sample far below SRTT raises the deviation by an eighth of what RFC 6298 says: a path that
//   becomes faster is no reason to wait longer (the Eifel estimator's point);
// - the floor of 200 ms is that of 4 * RTTVAR, not of the sum: RTO = SRTT + max(4 * RTTVAR, 200
// ms).
//   So a receiver that delays its acknowledgements by 40 ms never meets the timer.
#pragma once
#include <cstdint>

#include "tcp/segment/seq.h"

namespace postern::tcp {

inline constexpr uint64_t kRtoInitialNs = 1'000'000'000;      // RFC 6298, 2.1
inline constexpr uint64_t kRtoFallbackNs = 3'000'000'000;     // 5.7: the handshake gave no sample
inline constexpr uint64_t kRtoMinNs = 200'000'000;            // Linux; the RFC says 1 s
inline constexpr uint64_t kRtoMaxNs = 120'000'000'000;        // 2.5: at least 60 s
inline constexpr uint64_t kMinRttWindowNs = 300'000'000'000;  // Linux's tcp_min_rtt_wlen

struct RttEstimator {
  uint64_t srtt8_ns;                // 8 * SRTT; 0: no sample yet
  uint64_t mdev4_ns;                // 4 * mean deviation
  uint64_t mdev_max4_ns;            // its largest value in this round trip
  uint64_t rttvar4_ns;              // 4 * RTTVAR
  uint64_t latest_ns;               // the last sample; 0: none
  uint64_t rto_ns;                  // to be used for the timer: backed off, and within the bounds
  uint64_t rto_min_ns, rto_max_ns;  // TCP_RTO_MIN, TCP_RTO_MAX_MS
  // The smallest of each of the last four spans, of a third of the window (tcp_min_rtt_wlen). All
  // of them together: the smallest of the last 300 s at least, and of 400 at most.
  uint64_t min_ns[4];     // UINT64_MAX: none in that span
  uint64_t min_start_ns;  // when span 0 began; the next ones are older
  uint64_t min_span_ns;
  Seq round_end;     // snd_nxt when this round trip began
  uint32_t backoff;  // how often the RTO was doubled since the last sample
};
static_assert(sizeof(RttEstimator) == 8 * 8 + 4 * 8 + 8 + 8 + 8);

void RttInit(RttEstimator& r);
// A sample: of a segment sent once, or by its timestamp (RFC 7323, 4). `snd_una` and `snd_nxt` as
// they are after the acknowledgement. Ends the back-off.
void RttSample(RttEstimator& r, uint64_t now_ns, uint64_t rtt_ns, Seq snd_una, Seq snd_nxt);
// The handshake is over and its SYN was sent more than once: RFC 6298, 5.7.
void RttNoHandshakeSample(RttEstimator& r);
void RttBackOff(RttEstimator& r);     // the timer has fired: 5.5
void RttEndBackOff(RttEstimator& r);  // what is known is good after all (undo, ICMP: RFC 6069)
// For the options that change the bounds. 0: the default.
void RttSetBounds(RttEstimator& r, uint64_t rto_min_ns, uint64_t rto_max_ns);
// How long MinRtt() remembers: so long, or a third more.
void RttSetMinWindow(RttEstimator& r, uint64_t window_ns);

inline uint64_t Srtt(const RttEstimator& r) { return r.srtt8_ns >> 3; }  // 0: not known
inline uint64_t RttVar(const RttEstimator& r) { return r.rttvar4_ns >> 2; }
// UINT64_MAX: not known. (RFC 8985, 6.2 wants it over a window.)
uint64_t MinRtt(const RttEstimator& r, uint64_t now_ns);

}  // namespace postern::tcp
