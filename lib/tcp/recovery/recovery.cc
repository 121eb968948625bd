// SPDX-License-Identifier: Apache-2.0
// recovery.cc - what is done about losses: fast recovery, time-outs, and taking both back when they
// were for nothing.
//
//              lost (RACK, 3 duplicates)            snd_una >= recover
//   Open ------------------------------> Fast -------------------------------> Open
//    ^  \------------- ECE ------------> Cwr --------------------------------->  |
//    |                                    |  RTO                                 |
//    +------- RTO --------------------> Loss ----------------------------------->+
//
// How much may be sent is congestion control's (congestion.h); which segments are lost is RACK's,
// or NewReno's for a peer without SACK. Undo (RFC 3522, 3708, 5682): an acknowledgement of the
// original (its timestamp is older than the retransmission's), a DSACK for each retransmission, or
// F-RTO.
#include <cerrno>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

Recovery Now(const Tcb& t) { return static_cast<Recovery>(t.recovery); }
void Set(Tcb& t, Recovery r) { t.recovery = static_cast<uint32_t>(r); }

void ClampNewReno(Tcb& t) {
  if (!Has(t, kSackOk)) t.sacked_bytes = std::min(t.sacked_bytes, InFlight(t) - t.lost_bytes);
}

void MarkHeadLost(Tcb& t, Host& h) {
  if (t.tx_head == kNone) return;
  TxMarkLost(t, t.tx_head, h);
  ClampNewReno(t);
}

// The reduction that begins now may turn out to be for nothing.
void BeginUndo(Tcb& t) {
  t.flags |= kUndo;
  t.undo_marker = t.snd_una;
  t.undo_retrans_bytes = t.retrans_bytes != 0 ? t.retrans_bytes : kNone;
  if (t.retrans_bytes == 0) t.flags &= ~kRetransStamp;
}

// RFC 3522, 3.2: the echo is older than the first retransmission.
bool OriginalWasAcknowledged(const Tcb& t, const SegmentIn& s) {
  return Has(t, kRetransStamp) && Has(t, kTimestamps) && s.options.has_timestamps &&
         s.options.ts_echo != 0 && static_cast<int32_t>(s.options.ts_echo - t.retrans_stamp) < 0;
}

bool MayUndo(const Tcb& t, const SegmentIn& s) {
  return Has(t, kUndo) && (t.undo_retrans_bytes == 0 || OriginalWasAcknowledged(t, s));
}

enum class Losses : uint8_t { kStay, kForget };
void Undo(Tcb& t, Losses losses, Host& h) {
  // What fast recovery took for lost was late: so late that RACK could not see it by itself.
  if (Now(t) <= Recovery::kFast) t.flags |= kReordering;
  if (losses == Losses::kForget) TxForgetLosses(t, h);
  CongestionUndo(t.cc);
  t.flags &= ~(kUndo | kFrto | kFrtoNew);
}

void Leave(Tcb& t) {
  CongestionOnRecovered(t.cc);
  if (!Has(t, kSackOk)) t.sacked_bytes = 0;
  t.dup_acks = 0;
  RackRecovered(t);
  t.flags &= ~(kFrto | kFrtoNew);
  Set(t, t.sacked_bytes != 0 ? Recovery::kDisorder : Recovery::kOpen);
  if (t.retrans_bytes == 0) t.flags &= ~kRetransStamp;
}

void EnterFast(Tcb& t) {
  BeginUndo(t);
  t.recover = t.snd_nxt;
  t.flags &= ~kTlpOut;
  if (Has(t, kEcnOk)) t.flags |= kEcnCwr;
  CongestionOnLoss(t.cc, Cause::kLoss);
  Set(t, Recovery::kFast);
}

// RFC 6582: the third duplicate; in recovery, each partial acknowledgement shows the next hole.
void NewReno(Tcb& t, AckNews& news, Host& h) {
  if (news.acked_bytes != 0) {
    const uint32_t left = news.acked_bytes > t.mss_bytes ? news.acked_bytes - t.mss_bytes : 0;
    news.known_bytes = std::min(t.sacked_bytes, left);
    t.sacked_bytes -= news.known_bytes;
    t.dup_acks = 0;
    ClampNewReno(t);
    if (Now(t) == Recovery::kFast && Before(t.snd_una, t.recover)) MarkHeadLost(t, h);
  } else if (news.duplicate) {
    t.dup_acks++;
    const uint32_t before = t.sacked_bytes;
    NewRenoDuplicate(t);
    news.sacked_bytes = t.sacked_bytes - before;
    //= rfc6582#3.2
    //# If not, the TCP does not enter fast retransmit and does not reset ssthresh.
    // It: the acknowledgement covers more than `recover`. These duplicates are of what an earlier
    // recovery has sent twice.
    if (t.dup_acks == t.reordering && Now(t) <= Recovery::kEcn && After(t.snd_una, t.recover))
      MarkHeadLost(t, h);
  }
}

// RFC 5682, 2.1 and 3.1, in the order of Linux. True: the time-out is dealt with for now.
bool FRto(Tcb& t, const AckNews& news, Host& h) {
  // RFC 5682, 3.1, step 3b: what was not sent again since has arrived.
  if (news.original_arrived && Has(t, kUndo)) {
    Undo(t, Losses::kForget, h);
    Leave(t);
    return true;
  }
  if (After(t.snd_nxt, t.recover)) {
    // New data were sent, and what comes back is about them: the old ones are lost indeed.
    if (news.sacked_bytes != 0 || news.duplicate) t.flags &= ~kFrto;
    return false;
  }
  if (news.acked_bytes == 0 || AtOrAfter(t.snd_una, t.recover)) return false;
  t.recover = t.snd_nxt;
  const bool window_open = Before(t.snd_nxt, t.snd_una + t.snd_wnd);
  if (window_open && HasUnsent(t, h)) {
    t.flags |= kFrtoNew;
    return true;
  }
  t.flags &= ~kFrto;
  return false;
}

void InLoss(Tcb& t, const SegmentIn& s, const AckNews& news, Host& h) {
  const bool recovered = AtOrAfter(t.snd_una, t.recover);
  if (news.acked_bytes != 0 && MayUndo(t, s)) {
    Undo(t, Losses::kForget, h);
    Leave(t);
    return;
  }
  if (Has(t, kFrto) && FRto(t, news, h)) return;
  if (recovered) Leave(t);
}

void InFast(Tcb& t, const SegmentIn& s, const AckNews& news, Host& h) {
  const bool recovered = AtOrAfter(t.snd_una, t.recover);
  if (news.acked_bytes != 0 && MayUndo(t, s)) {
    Undo(t, Losses::kForget, h);
    Leave(t);
  } else if (recovered) {
    Leave(t);
  } else if (Has(t, kUndo) && t.undo_retrans_bytes == 0) {
    Undo(t, Losses::kStay, h);
  }
}

// Ends what has ended; OnRecovered of congestion.h's order.
void LeaveIfOver(Tcb& t, const SegmentIn& s, const AckNews& news, Host& h) {
  switch (Now(t)) {
    case Recovery::kLoss:
      InLoss(t, s, news, h);
      break;
    case Recovery::kFast:
      InFast(t, s, news, h);
      break;
    case Recovery::kEcn:
      if (AtOrAfter(t.snd_una, t.recover)) Leave(t);
      break;
    default:
      // The last recovery is over, and only now all of its retransmissions turn out needless.
      if (Has(t, kUndo) && t.undo_retrans_bytes == 0) Undo(t, Losses::kStay, h);
      break;
  }
}

// Begins what begins; OnLoss of that order.
void EnterIfDue(Tcb& t, const AckNews& news) {
  const Recovery r = Now(t);
  if (r == Recovery::kFast || r == Recovery::kLoss) return;
  if (t.lost_bytes != 0) {
    EnterFast(t);
  } else if (r != Recovery::kEcn && news.ece) {
    // RFC 3168, 6.1.2: at most once in a window of data.
    t.recover = t.snd_nxt;
    t.flags |= kEcnCwr;
    t.flags &= ~kUndo;
    CongestionOnLoss(t.cc, Cause::kEcn);
    Set(t, Recovery::kEcn);
  } else if (r != Recovery::kEcn) {
    Set(t, t.sacked_bytes != 0 ? Recovery::kDisorder : Recovery::kOpen);
  }
}

AckSample Sample(const Tcb& t, const AckNews& news, uint32_t newly_lost_bytes, const Host& h) {
  AckSample a = {};
  a.now_ns = h.now_ns;
  a.rtt_ns = news.retransmitted ? 0 : news.rtt_ns != 0 ? news.rtt_ns : news.sack_rtt_ns;
  a.srtt_ns = Srtt(t.rtt);
  a.delivered_bytes =
      news.acked_bytes - std::min(news.acked_bytes, news.known_bytes) + news.sacked_bytes;
  a.newly_lost_bytes = newly_lost_bytes;
  a.in_flight_bytes = PipeBytes(t);
  a.snd_una = t.snd_una;
  a.snd_nxt = t.snd_nxt;
  a.una_advanced = news.acked_bytes != 0;
  a.reordered = Has(t, kReordering);
  a.paced = HasSetting(t, kSetPacing) || t.settings.max_pacing_rate != 0;
  return a;
}

// RFC 2018, 8: a receiver may drop what it SACKed; then what is acknowledged ends before a segment
// that is marked. The time-out is waited for, though not for long.
bool HasReneged(const Tcb& t, Host& h) {
  return t.tx_head != kNone && (h.TxSegAt(t.tx_head).flags & kTxSacked) != 0;
}

}  // namespace

// After each acknowledgement that is about something under way.
void Recover(Tcb& t, const SegmentIn& s, AckNews& news, Host& h) {
  RackUpdateWindow(t, news, h);
  if (Has(t, kTlpOut)) TlpAck(t, s, news);
  if (news.acked_bytes != 0 && HasReneged(t, h)) {
    StopRtx(t);
    t.rtx_kind = static_cast<uint32_t>(Rtx::kRto);
    t.rtx_deadline_ns = h.now_ns + std::max(Srtt(t.rtt) / 2, 10 * kMs);
    t.flags |= kRenegeWait;
    return;
  }
  const uint32_t lost_before = t.lost_bytes;
  if (!Has(t, kSackOk)) NewReno(t, news, h);
  LeaveIfOver(t, s, news, h);
  uint64_t reorder_ns = 0;
  if (Has(t, kSackOk)) reorder_ns = RackDetectLoss(t, h);
  ClampNewReno(t);
  const uint32_t newly_lost = t.lost_bytes > lost_before ? t.lost_bytes - lost_before : 0;
  EnterIfDue(t, news);
  CongestionOnAck(t.cc, Sample(t, news, newly_lost, h));
  if (news.acked_bytes != 0 || static_cast<Rtx>(t.rtx_kind) == Rtx::kReorder) RearmRto(t, h);
  if (reorder_ns != 0) ArmReorder(t, reorder_ns);
}

// A reordering window has passed (RFC 8985, 6.3).
void ReorderTimeout(Tcb& t, Host& h) {
  StopRtx(t);
  const uint32_t lost_before = t.lost_bytes;
  const uint64_t again_ns = RackDetectLoss(t, h);
  const AckNews nothing = {};
  EnterIfDue(t, nothing);
  const uint32_t newly_lost = t.lost_bytes > lost_before ? t.lost_bytes - lost_before : 0;
  CongestionOnAck(t.cc, Sample(t, nothing, newly_lost, h));
  RearmRto(t, h);
  if (again_ns != 0) ArmReorder(t, again_ns);
}

namespace {

// So many retransmissions as a time, counted from the first time-out: 200 ms, doubled up to 120 s
// or tcp_rto_max_ms (Linux: tcp_model_timeout()).
uint64_t TimeOf(const Tcb& t, uint32_t retries) {
  const uint64_t most_ns = t.rtt.rto_max_ns;
  uint32_t doublings = 0;  // the last that is not more
  while (kRtoMinNs << (doublings + 1) <= most_ns) doublings++;
  const uint32_t doubled = std::min(retries, doublings);
  return ((2ull << doubled) - 1) * kRtoMinNs + (retries - doubled) * most_ns;
}

bool HasGivenUp(const Tcb& t, const Host& h) {
  if (t.stalled_ns == 0) return false;
  const Sysctls& host = h.sysctls();
  uint32_t retries = host.tcp_retries2;
  if (Has(t, kNoReader) && Has(t, kFinSent))
    retries = host.tcp_orphan_retries != 0 ? host.tcp_orphan_retries : kOrphanRetries;
  uint64_t limit_ns = TimeOf(t, retries);
  if (t.settings.user_timeout_ms != 0) limit_ns = t.settings.user_timeout_ms * kMs;
  return h.now_ns - t.stalled_ns >= limit_ns;
}

}  // namespace

//= rfc6298#5
//# (5.4) Retransmit the earliest segment that has not been acknowledged by the TCP receiver. (5.5)
//# The host MUST set RTO <- RTO * 2 ("back off the timer"). (5.6) Start the retransmission timer
void RtoTimeout(Tcb& t, Host& h) {
  StopRtx(t);
  if (HasGivenUp(t, h)) {
    Fail(t, t.soft_error != 0 ? static_cast<int>(t.soft_error) : ETIMEDOUT, h);
    return;
  }
  SuspectBlackHole(t, h);
  const Recovery before = Now(t);
  //= rfc2018#5
  //# After a retransmit timeout the data sender SHOULD turn off all of the SACKed bits, since the
  //# timeout might indicate that the data receiver has reneged.
  // Only if there is a sign of it, as Linux: else what has arrived would be sent again.
  if (HasReneged(t, h)) TxForgetSacks(t, h);
  t.flags &= ~kRenegeWait;
  const bool first = before <= Recovery::kDisorder || AtOrAfter(t.snd_una, t.recover) ||
                     (before == Recovery::kLoss && t.rto_count == 0);
  if (first) BeginUndo(t);
  if (!Has(t, kSackOk)) t.sacked_bytes = 0;
  TxMarkAllLost(t, h);
  t.dup_acks = 0;
  CongestionOnTimeout(t.cc, first ? Timeout::kFirst : Timeout::kAgain);
  Set(t, Recovery::kLoss);
  const bool test = before <= Recovery::kEcn || t.rto_count != 0;
  t.flags &= ~(kFrto | kFrtoNew | kTlpOut);
  if (test && h.sysctls().tcp_frto != 0) t.flags |= kFrto;
  t.recover = t.snd_nxt;
  if (Has(t, kEcnOk)) t.flags |= kEcnCwr;
  if (t.stalled_ns == 0) t.stalled_ns = h.now_ns;
  CountTimeout(t, h);
  const bool thin = h.sysctls().tcp_thin_linear_timeouts != 0 &&
                    StateOf(t) == State::kEstablished && t.tx_count < kThinSegments &&
                    t.rto_count <= kThinRetries;
  if (thin) {  // Linux: a stream of few segments loses more by waiting than the network gains
    RttEndBackOff(t.rtt);
  } else {
    RttBackOff(t.rtt);
  }
}

}  // namespace postern::tcp
