// SPDX-License-Identifier: Apache-2.0
// rack.cc - loss by time: RACK, and the probe for the last segments of a flight, TLP (RFC 8985).
//
// A segment is lost when one that was sent later has arrived, and a reordering window has passed
// since it should have. The chain of times (txqueue.cc) ends the search at the first segment that
// is too young, so that an acknowledgement costs as many steps as segments are found lost, and one.
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

constexpr uint64_t kTlpSlackNs = 2 * kMs;                           // Linux's TCP_TIMEOUT_MIN
constexpr uint32_t kRackStaticWindow = 2, kRackNoDupThreshold = 4;  // bits of tcp_recovery

//= rfc8985#6.1
//# RACK_sent_after(t1, seq1, t2, seq2): If t1 > t2 Return true Else if t1 == t2 AND seq1 > seq2
//# Return true
bool SentAfter(uint64_t t1, Seq seq1, uint64_t t2, Seq seq2) {
  return t1 > t2 || (t1 == t2 && After(seq1, seq2));
}

//= rfc8985#6.2
//# RACK_detect_reordering(Segment): If Segment.end_seq > RACK.fack: RACK.fack = Segment.end_seq
//# Else if Segment.end_seq < RACK.fack AND Segment.retransmitted is FALSE: RACK.reordering_seen =
//# TRUE
void DetectReordering(Tcb& t, const TxSeg& seg, const Host& h) {
  const Seq end = EndOf(seg);
  if (After(end, t.rack_fack)) {
    t.rack_fack = end;
  } else if (Before(end, t.rack_fack) && (seg.flags & kTxEverRetrans) == 0) {
    t.flags |= kReordering;
    t.reorder_seen++;
    const uint32_t late = static_cast<uint32_t>(t.rack_fack - seg.seq);
    const uint32_t segments = (late + t.mss_bytes - 1) / t.mss_bytes;
    t.reordering = std::min(std::max(t.reordering, segments), h.sysctls().tcp_max_reordering);
  }
}

// RFC 8985, 6.2, step 4: RACK_update_reo_wnd.
uint64_t ReorderingWindow(const Tcb& t, const Host& h) {
  if (!Has(t, kReordering)) {
    const Recovery r = static_cast<Recovery>(t.recovery);
    if (r == Recovery::kFast || r == Recovery::kLoss) return 0;
    if (t.sacked_count >= t.reordering && (h.sysctls().tcp_recovery & kRackNoDupThreshold) == 0)
      return 0;
  }
  const uint64_t min_ns = MinRtt(t.rtt, h.now_ns);
  if (min_ns == UINT64_MAX) return 0;
  return std::min(t.rack_reo_wnd_mult * (min_ns / 4), Srtt(t.rtt));
}

}  // namespace

// `seg` has been acknowledged, one way or the other, and was not before: steps 1 to 3.
void RackArrived(Tcb& t, const TxSeg& seg, const SegmentIn& s, const Host& h) {
  DetectReordering(t, seg, h);
  const uint64_t rtt_ns = SinceNs(seg.sent_ns, h);
  if ((seg.flags & kTxEverRetrans) != 0) {
    // Which of its transmissions has arrived is not known: not the last one, if its timestamp is
    // younger than the echo, or it would have been faster than the path ever was.
    const uint32_t sent_ts = static_cast<uint32_t>(seg.sent_ns / kMs) + t.ts_offset;
    if (Has(t, kTimestamps) && s.options.has_timestamps &&
        static_cast<int32_t>(s.options.ts_echo - sent_ts) < 0)
      return;
    const uint64_t min_ns = MinRtt(t.rtt, h.now_ns);
    if (min_ns != UINT64_MAX && rtt_ns + kStampsNs < min_ns) return;
  }
  t.rack_rtt_ns = rtt_ns;
  if (!SentAfter(seg.sent_ns, EndOf(seg), t.rack_sent_ns, t.rack_end_seq)) return;
  t.rack_sent_ns = seg.sent_ns;
  t.rack_end_seq = EndOf(seg);
}

//= rfc8985#6.2
//# If RACK.dsack_round is None AND any DSACK option is present on latest received ACK:
//# RACK.dsack_round = SND.NXT RACK.reo_wnd_mult += 1 RACK.reo_wnd_persist = 16
void RackUpdateWindow(Tcb& t, const AckNews& news, const Host& h) {
  if (Has(t, kRackDsack) && AtOrAfter(t.snd_una, t.rack_dsack_round)) t.flags &= ~kRackDsack;
  if (!news.dsack || Has(t, kRackDsack)) return;
  if ((h.sysctls().tcp_recovery & kRackStaticWindow) != 0) return;
  t.flags |= kRackDsack;
  t.rack_dsack_round = t.snd_nxt;
  t.rack_reo_wnd_mult = std::min(t.rack_reo_wnd_mult + 1, 255u);
  t.rack_reo_wnd_persist = 16;
}

//= rfc8985#6.2
//# Else if exiting Fast or RTO recovery: RACK.reo_wnd_persist -= 1 If RACK.reo_wnd_persist <= 0:
//# RACK.reo_wnd_mult = 1
void RackRecovered(Tcb& t) {
  if (t.rack_reo_wnd_persist != 0) t.rack_reo_wnd_persist--;
  if (t.rack_reo_wnd_persist == 0) t.rack_reo_wnd_mult = 1;
}

// Step 5. The RFC waits for the youngest that may be lost, and asks all of them; asking the oldest
// again when its time has come finds the same, and costs no walk.
uint64_t RackDetectLoss(Tcb& t, Host& h) {
  if (t.rack_sent_ns == 0 || t.tx_time_head == kNone) return 0;
  const uint64_t wait_ns = t.rack_rtt_ns + ReorderingWindow(t, h);
  for (uint32_t i = t.tx_time_head; i != kNone;) {
    const TxSeg& seg = h.TxSegAt(i);
    const uint32_t next = seg.time_next;
    if (!SentAfter(t.rack_sent_ns, t.rack_end_seq, seg.sent_ns, EndOf(seg))) break;
    // Those of one step at once, though their stamps differ.
    if (seg.sent_ns + wait_ns > h.now_ns + kStampsNs) return seg.sent_ns + wait_ns;
    TxMarkLost(t, i, h);
    i = next;
  }
  return 0;
}

//= rfc8985#7.2
//# If SRTT is available: PTO = 2 * SRTT If FlightSize is one segment: PTO += TLP.max_ack_delay
//# Else: PTO = 1 second
// False: no probe is due before the RTO.
bool TlpDeadline(const Tcb& t, Host& h, uint64_t& deadline_ns) {
  const Recovery r = static_cast<Recovery>(t.recovery);
  if (!Has(t, kSackOk) || Has(t, kTlpOut) || t.rto_count != 0) return false;
  if ((r != Recovery::kOpen && r != Recovery::kEcn) || t.sacked_bytes != 0) return false;
  const uint32_t early = h.sysctls().tcp_early_retrans;
  if (early != 3 && early != 4) return false;  // as Linux
  uint64_t pto_ns = kSecond;
  const uint64_t srtt_ns = Srtt(t.rtt);
  if (srtt_ns != 0) pto_ns = 2 * srtt_ns + (t.tx_count == 1 ? kDelayedAckMaxNs : kTlpSlackNs);
  deadline_ns = h.now_ns + std::min(pto_ns, t.rtt.rto_ns);
  return true;
}

// RFC 8985, 7.3, TLP_send_probe: the first segment that was not sent yet, beyond the window of
// congestion control; or else the last one that was.
void TlpSend(Tcb& t, Host& h) {
  StopRtx(t);
  if (t.tx_head == kNone) return;
  bool sent = SendNewProbe(t, h);
  t.flags &= ~kTlpRetransmit;
  if (!sent) {
    const uint32_t last = t.tx_tail;
    if ((h.TxSegAt(last).flags & (kTxSacked | kTxLost)) == 0) sent = Retransmit(t, last, h);
    if (sent) t.flags |= kTlpRetransmit;
  }
  if (sent) {
    t.flags |= kTlpOut;
    t.tlp_high_seq = t.snd_nxt;
  }
  RearmRto(t, h);
}

// RFC 8985, 7.4.2, TLP_process_ack.
void TlpAck(Tcb& t, const SegmentIn& s, const AckNews& news) {
  if (Before(s.ack, t.tlp_high_seq)) return;
  if (!Has(t, kTlpRetransmit)) {
    t.flags &= ~kTlpOut;  // of new data: they have arrived
  } else if (news.dsack && news.dsack_block.right == t.tlp_high_seq) {
    t.flags &= ~kTlpOut;  // the original had arrived: nothing was lost
  } else if (After(s.ack, t.tlp_high_seq)) {
    // The probe has repaired a loss that was not noticed. It counts all the same.
    t.flags &= ~kTlpOut;
    if (static_cast<Recovery>(t.recovery) <= Recovery::kDisorder) {
      CongestionOnLoss(t.cc, Cause::kLoss);
      CongestionOnRecovered(t.cc);
      if (Has(t, kEcnOk)) t.flags |= kEcnCwr;
    }
  } else if (news.acked_bytes == 0 && news.sacked_bytes == 0 && news.duplicate) {
    t.flags &= ~kTlpOut;  // both have arrived, and the peer has no DSACK
  }
}

}  // namespace postern::tcp
