// SPDX-License-Identifier: Apache-2.0
// congestion.h - congestion control: how much may be under way. CUBIC or NewReno, HyStart++, PRR.
//
// Plain memory of fixed size, part of each Tcb. All in bytes and nanoseconds. The Tcb keeps to one
// rule when it sends: what is under way stays at most `cwnd_bytes`; recovery moves `cwnd_bytes`
// with each acknowledgement, so that the rule is the same there. It tells what happens, in this
// order for each acknowledgement:
//
//   1. OnRecovered   if SND.UNA has reached what was SND.NXT when the reduction (or RTO) began
//   2. OnLoss        if this acknowledgement makes losses known and no recovery goes on; or it
//                    brings the first ECE of a window
//   3. OnAck         always, also when nothing new is acknowledged: grows, or reduces by PRR
//
// (losses that a timer finds: OnLoss, then OnAck with nothing delivered and `newly_lost_bytes`),
// and OnSent once for each burst (a call of Output() that has sent something).
//
// RFC 5681, 6582 (NewReno), 9438 (CUBIC), 9406 (HyStart++), 9937 (PRR, the successor of 6937), 3465
// (byte counting), 6928 (initial window), 3168 (ECN), 2861 (idle, and programs that send less than
// they could), in each case as Linux does it where the two differ; docs/protocols/congestion.md.
#pragma once
#include <cstdint>

#include "tcp/segment/seq.h"

namespace postern::tcp {

enum class CongestionKind : uint32_t { kCubic = 0, kNewReno = 1 };
// As TCP_CONGESTION names them ("cubic", "reno"); at most `bytes`, or up to a null byte.
// False: there is no such.
bool CongestionByName(const char* name, uint32_t bytes, CongestionKind& out);
const char* CongestionName(CongestionKind kind);

struct AckSample {
  uint64_t now_ns;
  uint64_t rtt_ns;            // of this acknowledgement, 0: none (Karn)
  uint64_t srtt_ns;           // smoothed, 0: not known
  uint32_t delivered_bytes;   // newly acknowledged, cumulatively and by SACK; each byte once
  uint32_t newly_lost_bytes;  // found to be lost by this acknowledgement
  uint32_t in_flight_bytes;   // after it (RFC 6675's pipe): what is lost or SACKed not counted
  Seq snd_una, snd_nxt;       // after it
  bool una_advanced;          // SND.UNA has moved
  bool reordered;             // this path reorders (RACK): SACKed data are progress, too
  bool paced;                 // sent at a rate of ours: so acknowledgements say less of the path's
};

struct SendSample {
  uint64_t now_ns;
  uint64_t rto_ns;
  uint32_t bytes;            // just sent, retransmissions too
  uint32_t in_flight_bytes;  // with them
  Seq snd_una, snd_nxt;      // after it
};

inline constexpr uint32_t kInitialSegments = 10;  // RFC 6928
inline constexpr uint32_t kSsthreshUnknown = ~0u;
inline constexpr uint32_t kCwndMax = 1u << 30;  // the largest window (RFC 7323, 2.3)

// What the connection does about congestion. Linux: Open (and Disorder), CWR and Recovery, Loss.
enum class CongestionPhase : uint32_t { kOpen = 0, kReducing = 1, kLoss = 2 };

// RFC 9438. Times are in ns; `origin` and K say where the curve is flat.
struct CubicState {
  uint64_t epoch_start_ns;    // 0: no congestion avoidance stage has begun
  uint64_t app_limited_ns;    // since when cwnd is not what bounds us; 0: it is
  uint64_t w_est_4096;        // W_est, what Reno would have, in 1/4096 bytes
  uint64_t growth_rest;       // what is too little for a byte yet, in bytes * cwnd
  uint32_t w_max_bytes;       // 0: not known (start, time-out)
  uint32_t origin_bytes;      // the curve's plateau: W_max, or cwnd if that was higher
  uint32_t k_ticks;           // from the epoch to the plateau, in 1/1024 s
  uint32_t cwnd_prior_bytes;  // before the last reduction
};

// RFC 9406; HyStart's train of acknowledgements.
struct HyStartState {
  uint64_t round_min_ns, last_min_ns;  // smallest RTT of this round and the last; ~0: none
  uint64_t css_baseline_ns;            // ~0: not in conservative slow start
  uint64_t least_ns;                   // smallest RTT of all rounds; ~0: none
  uint64_t train_begin_ns, train_ns;   // a train of acknowledgements: its first, its last
  Seq window_end;                      // of this round
  uint32_t samples;                    // in this round
  uint32_t css_rounds;                 // conservative rounds that have ended
  uint32_t started;                    // 1: window_end is valid
  uint32_t growth_rest;                // CSS: bytes too few for a quarter
  uint32_t pad;
};

struct Congestion {
  uint32_t kind;   // CongestionKind
  uint32_t phase;  // CongestionPhase
  uint32_t mss_bytes;
  uint32_t cwnd_bytes;
  uint32_t ssthresh_bytes;  // kSsthreshUnknown: not known yet
  // ---- PRR (RFC 9937)
  uint32_t prr_delivered_bytes, prr_out_bytes;
  uint32_t recover_fs_bytes;  // cwnd when the reduction began
  // ---- undo
  uint32_t prior_cwnd_bytes;  // 0: there is nothing to undo
  uint32_t prior_ssthresh_bytes;
  // ---- whether cwnd bounds what is sent, judged once in a window (RFC 2861, 7661)
  uint32_t limited;            // 1: it did
  uint32_t flight_max_bytes;   // most that was under way in that window
  uint32_t flight_used_bytes;  // most since limited_ns
  Seq usage_end;               // snd_nxt when that was judged
  uint64_t limited_ns;         // when cwnd last was the limit
  // ---- congestion avoidance
  uint32_t bytes_acked;  // NewReno: towards the next segment of cwnd (RFC 3465)
  uint32_t pad;
  CubicState cubic, cubic_prior;  // the latter for undo
  HyStartState hystart;
};
static_assert(sizeof(CubicState) == 48 && sizeof(HyStartState) == 72);
static_assert(sizeof(Congestion) == 72 + 2 * 48 + 72);

void CongestionInit(Congestion& cc, CongestionKind kind, uint32_t mss_bytes);
// PMTU or the peer's MSS: a smaller one keeps the number of segments, a larger one that of bytes.
void CongestionSetMss(Congestion& cc, uint32_t mss_bytes);
void CongestionSetKind(Congestion& cc, CongestionKind kind);  // TCP_CONGESTION while it runs
// SYN or SYN-ACK was sent more than twice: a window of one segment, as Linux. (RFC 6928, 2 says so
// of the first loss; but a first SYN is often lost to the resolution of the neighbour's address.)
void CongestionHandshakeLost(Congestion& cc);

void CongestionOnAck(Congestion& cc, const AckSample& ack);
void CongestionOnSent(Congestion& cc, const SendSample& sent);
// A reduction begins: loss, or a CE mark; at most once for each window. While one goes on, and
// after a time-out until OnRecovered, it does nothing.
enum class Cause : uint8_t { kLoss, kEcn };
void CongestionOnLoss(Congestion& cc, Cause cause);
// Reduction or time-out are over.
void CongestionOnRecovered(Congestion& cc);
// The RTO has fired, and all that is under way is taken to be lost. Each time: only the first for
// the same data changes ssthresh.
enum class Timeout : uint8_t { kFirst, kAgain };
void CongestionOnTimeout(Congestion& cc, Timeout which);
// The reduction was for nothing (F-RTO, DSACK, Eifel): as before it, at least. May come when the
// recovery is over already.
void CongestionUndo(Congestion& cc);
// To be called before sending when nothing is under way, however short `idle_ns`, the time since
// something was sent.
void CongestionOnIdle(Congestion& cc, uint64_t idle_ns, uint64_t rto_ns);

inline bool InSlowStart(const Congestion& cc) { return cc.cwnd_bytes < cc.ssthresh_bytes; }
inline bool IsReducing(const Congestion& cc) {
  return cc.phase == static_cast<uint32_t>(CongestionPhase::kReducing);
}
// How many bytes may be sent now.
inline uint32_t CongestionRoom(const Congestion& cc, uint32_t in_flight_bytes) {
  return in_flight_bytes < cc.cwnd_bytes ? cc.cwnd_bytes - in_flight_bytes : 0;
}
// Bytes in a second that the window means, with the head room that Linux gives: twice as fast in
// slow start, a fifth faster else. 0: not known, do not pace.
struct PaceRatios {
  uint32_t slow_start = 200, avoidance = 120;  // tcp_pacing_ss_ratio, tcp_pacing_ca_ratio
};
uint64_t CongestionPacingRate(const Congestion& cc, uint64_t srtt_ns, PaceRatios ratios = {});

}  // namespace postern::tcp
