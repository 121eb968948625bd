// SPDX-License-Identifier: Apache-2.0
// congestion.cc - the window's life: growth, reduction (PRR), time-out, undo, idleness.
//
//            loss or CE: OnLoss               OnRecovered
//   Open ----------------------> Reducing -------------------> Open, cwnd = ssthresh
//     |                             | RTO
//     +---------- RTO ------------->+--> Loss, cwnd = 1 segment, slow start ---OnRecovered---> Open
//
// The algorithms (congestion_parts.h) only say how much a used window grows in congestion
// avoidance, and what is left of it after a loss.
//
// A window that the program does not use says nothing about the network. So it does not grow then,
// and what was not used for an RTO is taken back by halves (RFC 2861), which is why a reduction may
// start from cwnd and not from what is under way (RFC 5681, 3.1 and 9438, 4.6 allow it under this
// condition). Whether it is used is judged once in a window from the most that was under way.
#include "tcp/congestion/congestion.h"

#include <algorithm>

#include "tcp/congestion/congestion_parts.h"

namespace postern::tcp {
namespace {

constexpr const char* kNames[] = {"cubic", "reno"};

CongestionPhase Phase(const Congestion& cc) { return static_cast<CongestionPhase>(cc.phase); }
void SetPhase(Congestion& cc, CongestionPhase phase) { cc.phase = static_cast<uint32_t>(phase); }
bool IsCubic(const Congestion& cc) {
  return cc.kind == static_cast<uint32_t>(CongestionKind::kCubic);
}
uint32_t InitialWindow(const Congestion& cc) { return kInitialSegments * cc.mss_bytes; }

// In slow start half the window is enough: it doubles in a round trip, so half of it was the whole
// one when what is acknowledged now was sent.
bool IsWindowUsed(const Congestion& cc) {
  return cc.limited != 0 || (InSlowStart(cc) && cc.cwnd_bytes / 2 < cc.flight_max_bytes);
}

// What slow start ends at if it has to begin again: a threshold not below what was reached.
uint32_t CurrentSsthresh(const Congestion& cc) {
  if (IsReducing(cc)) return cc.ssthresh_bytes;
  return std::max(cc.ssthresh_bytes, cc.cwnd_bytes / 4 * 3);
}

// RFC 9406, 4.2: in the first slow start only, where ssthresh is not known.
bool InFirstSlowStart(const Congestion& cc) {
  return IsCubic(cc) && cc.ssthresh_bytes == kSsthreshUnknown;
}

// RFC 5681, 3.1, in bytes acknowledged (RFC 3465, without its limit: see hystart.cc). What is left
// of them once ssthresh is reached is returned.
uint32_t SlowStart(Congestion& cc, const AckSample& ack, uint32_t bytes) {
  const bool first = InFirstSlowStart(cc);
  const uint32_t growth = first ? HyStartGrowth(cc, ack, bytes) : bytes;
  const uint32_t room = std::min(cc.ssthresh_bytes, kCwndMax) - std::min(cc.cwnd_bytes, kCwndMax);
  const uint32_t grown = std::min(growth, room);
  cc.cwnd_bytes += grown;
  return first ? 0 : bytes - grown;
}

void Grow(Congestion& cc, const AckSample& ack) {
  const bool progress = ack.una_advanced || ack.reordered;
  if (ack.delivered_bytes == 0 || !progress) return;
  if (!IsWindowUsed(cc)) {
    CubicNotLimited(cc, ack.now_ns);
    return;
  }
  uint32_t bytes = ack.delivered_bytes;
  if (InSlowStart(cc)) bytes = SlowStart(cc, ack, bytes);
  if (bytes == 0 || cc.cwnd_bytes >= kCwndMax) return;
  if (IsCubic(cc)) {
    CubicAvoid(cc, ack, bytes);
  } else {
    NewRenoAvoid(cc, bytes);
  }
}

// ceil(delivered * ssthresh / recover_fs): what may have been sent so far for the window to shrink
// in proportion to what arrives. In whole segments: no sender sends half a one.
uint64_t Proportion(const Congestion& cc) {
  const uint64_t share = uint64_t{cc.prr_delivered_bytes} * cc.ssthresh_bytes;
  const uint64_t segment = uint64_t{cc.recover_fs_bytes} * cc.mss_bytes;
  return (share + segment - 1) / segment * cc.mss_bytes;
}

uint64_t Above(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// RFC 9937, 6.2, with Linux's base (cwnd for RecoverFS). While more than ssthresh is under way: 7
// bytes out for 10 that arrive (CUBIC). Below it: as much out as arrives (conservative bound); a
// segment more (slow start's bound) when SND.UNA moves and nothing else is lost, a sign that
// retransmissions get through. `prr_delivered - prr_out` lets a sender that had to pause catch up.
void Reduce(Congestion& cc, const AckSample& ack) {
  // A timer (RACK) has found the loss: as if a segment had come, so that it is sent again.
  const uint32_t unasked = ack.newly_lost_bytes != 0 ? cc.mss_bytes : 0;
  const uint32_t delivered = ack.delivered_bytes != 0 ? ack.delivered_bytes : unasked;
  const uint32_t pipe = ack.in_flight_bytes;
  if (delivered == 0) return;
  cc.prr_delivered_bytes += std::min(delivered, ~cc.prr_delivered_bytes);
  uint64_t send = 0;
  if (pipe > cc.ssthresh_bytes) {
    send = Above(Proportion(cc), cc.prr_out_bytes);
  } else {
    send = std::max<uint64_t>(Above(cc.prr_delivered_bytes, cc.prr_out_bytes), delivered);
    if (ack.una_advanced && ack.newly_lost_bytes == 0) send += cc.mss_bytes;
    send = std::min<uint64_t>(send, cc.ssthresh_bytes - pipe);
  }
  // The fast retransmission is sent in any case.
  if (cc.prr_out_bytes == 0) send = std::max<uint64_t>(send, cc.mss_bytes);
  cc.cwnd_bytes = static_cast<uint32_t>(std::min<uint64_t>(pipe + send, kCwndMax));
}

// A reduced ssthresh, and what it was before.
void LowerSsthresh(Congestion& cc) {
  cc.prior_cwnd_bytes = cc.cwnd_bytes;
  cc.prior_ssthresh_bytes = CurrentSsthresh(cc);
  cc.cubic_prior = cc.cubic;
  cc.ssthresh_bytes = IsCubic(cc) ? CubicReduced(cc) : NewRenoReduced(cc);
  cc.bytes_acked = 0;
}

// cwnd gets smaller without a loss: congestion avoidance begins anew from there.
void NewStage(Congestion& cc) {
  cc.bytes_acked = 0;
  CubicNewStage(cc);
}

// RFC 2861: half of what was not used for an RTO is given up.
void GiveUpUnused(Congestion& cc, uint64_t now_ns) {
  const uint32_t used = std::max(cc.flight_used_bytes, InitialWindow(cc));
  if (used < cc.cwnd_bytes) {
    cc.ssthresh_bytes = CurrentSsthresh(cc);
    cc.cwnd_bytes = static_cast<uint32_t>((uint64_t{cc.cwnd_bytes} + used) / 2);
    NewStage(cc);
  }
  cc.flight_used_bytes = 0;
  cc.limited_ns = now_ns;
}

}  // namespace

bool CongestionByName(const char* name, uint32_t bytes, CongestionKind& out) {
  for (uint32_t kind = 0; kind < sizeof kNames / sizeof kNames[0]; kind++) {
    const char* wanted = kNames[kind];
    uint32_t i = 0;
    while (i < bytes && name[i] != 0 && name[i] == wanted[i]) i++;
    const bool ended = i == bytes || name[i] == 0;
    if (!ended || wanted[i] != 0) continue;
    out = static_cast<CongestionKind>(kind);
    return true;
  }
  return false;
}

const char* CongestionName(CongestionKind kind) {
  return kind == CongestionKind::kNewReno ? kNames[1] : kNames[0];
}

void CongestionInit(Congestion& cc, CongestionKind kind, uint32_t mss_bytes) {
  cc = {};
  cc.kind = static_cast<uint32_t>(kind);
  cc.mss_bytes = std::max(mss_bytes, 1u);
  cc.cwnd_bytes = InitialWindow(cc);
  cc.ssthresh_bytes = kSsthreshUnknown;
  HyStartInit(cc.hystart);
}

void CongestionSetMss(Congestion& cc, uint32_t mss_bytes) {
  const uint32_t old = cc.mss_bytes, now = std::max(mss_bytes, 1u);
  cc.mss_bytes = now;
  if (now < old) {
    const auto scale = [&](uint32_t v) { return static_cast<uint32_t>(uint64_t{v} * now / old); };
    cc.cwnd_bytes = scale(cc.cwnd_bytes);
    cc.prior_cwnd_bytes = scale(cc.prior_cwnd_bytes);
    if (cc.ssthresh_bytes != kSsthreshUnknown) cc.ssthresh_bytes = scale(cc.ssthresh_bytes);
    if (cc.prior_ssthresh_bytes != kSsthreshUnknown)
      cc.prior_ssthresh_bytes = scale(cc.prior_ssthresh_bytes);
    cc.bytes_acked = 0;
    CubicScale(cc.cubic, old, now);
    CubicScale(cc.cubic_prior, old, now);
  }
  cc.cwnd_bytes = std::max(cc.cwnd_bytes, now);
  cc.ssthresh_bytes = std::max(cc.ssthresh_bytes, 2 * now);
}

void CongestionSetKind(Congestion& cc, CongestionKind kind) {
  if (cc.kind == static_cast<uint32_t>(kind)) return;
  cc.kind = static_cast<uint32_t>(kind);
  cc.cubic = {};
  cc.cubic_prior = {};
  cc.bytes_acked = 0;
  HyStartInit(cc.hystart);
}

void CongestionHandshakeLost(Congestion& cc) { cc.cwnd_bytes = cc.mss_bytes; }

void CongestionOnAck(Congestion& cc, const AckSample& ack) {
  if (IsReducing(cc)) {
    Reduce(cc, ack);
  } else {
    Grow(cc, ack);
  }
}

void CongestionOnSent(Congestion& cc, const SendSample& sent) {
  if (IsReducing(cc)) cc.prr_out_bytes += std::min(sent.bytes, ~cc.prr_out_bytes);
  const bool fills = uint64_t{sent.in_flight_bytes} + cc.mss_bytes > cc.cwnd_bytes;
  const bool more = cc.limited == 0 && sent.in_flight_bytes > cc.flight_max_bytes;
  if (fills || more || AtOrAfter(sent.snd_una, cc.usage_end)) {
    cc.limited = fills ? 1 : 0;
    cc.flight_max_bytes = sent.in_flight_bytes;
    cc.usage_end = sent.snd_nxt;
  }
  if (IsWindowUsed(cc)) {
    cc.flight_used_bytes = 0;
    cc.limited_ns = sent.now_ns;
    return;
  }
  CubicNotLimited(cc, sent.now_ns);
  cc.flight_used_bytes = std::max(cc.flight_used_bytes, sent.in_flight_bytes);
  if (cc.limited_ns == 0) cc.limited_ns = sent.now_ns;
  if (Phase(cc) == CongestionPhase::kOpen && sent.now_ns - cc.limited_ns >= sent.rto_ns)
    GiveUpUnused(cc, sent.now_ns);
}

// CE costs as much as a loss: Linux has no RFC 8511 for CUBIC and Reno. It can't have been for
// nothing, so there is no undo.
void CongestionOnLoss(Congestion& cc, Cause cause) {
  if (Phase(cc) != CongestionPhase::kOpen) return;
  cc.recover_fs_bytes = std::max(cc.cwnd_bytes, 1u);
  cc.prr_delivered_bytes = cc.prr_out_bytes = 0;
  LowerSsthresh(cc);
  if (cause == Cause::kEcn) cc.prior_cwnd_bytes = 0;
  SetPhase(cc, CongestionPhase::kReducing);
}

// RFC 9937, 6.3: whatever PRR has come to, cwnd is ssthresh in the end.
void CongestionOnRecovered(Congestion& cc) {
  if (IsReducing(cc)) cc.cwnd_bytes = cc.ssthresh_bytes;
  SetPhase(cc, CongestionPhase::kOpen);
}

// RFC 5681, 3.1: the loss window is one segment; ssthresh is lowered once for the same data. A
// time-out in the middle of a recovery belongs to the same window as the loss: held, too.
void CongestionOnTimeout(Congestion& cc, Timeout which) {
  if (which == Timeout::kFirst && !IsReducing(cc)) LowerSsthresh(cc);
  CubicReset(cc);
  cc.cwnd_bytes = cc.mss_bytes;
  cc.bytes_acked = 0;
  SetPhase(cc, CongestionPhase::kLoss);
}

// RFC 9438, 4.9: cwnd, ssthresh and the curve as they were saved, unless cwnd is more now.
void CongestionUndo(Congestion& cc) {
  if (cc.prior_cwnd_bytes == 0) return;
  if (cc.cwnd_bytes <= cc.prior_cwnd_bytes) {
    cc.cwnd_bytes = cc.prior_cwnd_bytes;
    CubicUndo(cc);
  }
  cc.ssthresh_bytes = std::max(cc.ssthresh_bytes, cc.prior_ssthresh_bytes);
  cc.prior_cwnd_bytes = 0;
  SetPhase(cc, CongestionPhase::kOpen);
}

// RFC 2861, 3.1 (Linux's tcp_slow_start_after_idle): half of it for each RTO, down to the initial
// window, where RFC 5681, 4.1 would go at once.
void CongestionOnIdle(Congestion& cc, uint64_t idle_ns, uint64_t rto_ns) {
  CubicIdle(cc, idle_ns);
  if (idle_ns <= rto_ns || rto_ns == 0) return;
  const uint32_t least = std::min(InitialWindow(cc), cc.cwnd_bytes);
  cc.ssthresh_bytes = CurrentSsthresh(cc);
  if (cc.cwnd_bytes > least) NewStage(cc);
  for (; idle_ns > rto_ns && cc.cwnd_bytes > least; idle_ns -= rto_ns) cc.cwnd_bytes /= 2;
  cc.cwnd_bytes = std::max(cc.cwnd_bytes, least);
  cc.flight_used_bytes = 0;
  cc.limited_ns = 0;
}

uint64_t CongestionPacingRate(const Congestion& cc, uint64_t srtt_ns, PaceRatios ratios) {
  if (srtt_ns == 0) return 0;
  const uint64_t percent =
      cc.cwnd_bytes < cc.ssthresh_bytes / 2 ? ratios.slow_start : ratios.avoidance;
  // 30 bits of the window, 30 of 1e9, 4 of the percentage, which is at most 1000 in Linux.
  const uint64_t rate =
      uint64_t{cc.cwnd_bytes} * 1'000'000'000 / 100 * std::min<uint64_t>(percent, 1000);
  return std::max<uint64_t>(rate / srtt_ns, 1);
}

}  // namespace postern::tcp
