// SPDX-License-Identifier: Apache-2.0
// ack.cc - what an acknowledgement says: which bytes have arrived, how long they took, how far the
// window reaches; and the answers to segments that cannot be believed (RFC 5961, 7323).
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

//= rfc9293#3.10.7.4
//# If SND.UNA < SEG.ACK =< SND.NXT, then set SND.UNA <- SEG.ACK. Any segments on the retransmission
//# queue that are thereby entirely acknowledged are removed.
void TakeCumulative(Tcb& t, const SegmentIn& s, AckNews& news, Host& h) {
  while (t.tx_head != kNone) {
    const TxSeg& seg = h.TxSegAt(t.tx_head);
    if (AtOrBefore(s.ack, seg.seq)) break;
    if (Before(s.ack, EndOf(seg))) {
      const uint32_t bytes = static_cast<uint32_t>(s.ack - seg.seq);
      news.stream_bytes += std::min(bytes, seg.bytes);
      if ((seg.flags & kTxEverRetrans) != 0) {
        news.retransmitted = true;
        if (news.sent_again_ns == 0) news.sent_again_ns = seg.sent_ns;
      }
      TxTrimHead(t, bytes, h);
      if ((seg.flags & kTxPart) != 0) TxMarkLost(t, t.tx_head, h);  // there was no TxSeg to cut it
      break;
    }
    //= rfc6298#3
    //# RTT samples MUST NOT be made using segments that were retransmitted
    if ((seg.flags & kTxEverRetrans) != 0) {
      news.retransmitted = true;
      if (news.sent_again_ns == 0) news.sent_again_ns = seg.sent_ns;
    } else if ((seg.flags & kTxSacked) == 0) {
      if (news.rtt_ns == 0) news.rtt_ns = SinceNs(seg.sent_ns, h);
      if (AtOrBefore(EndOf(seg), t.recover)) news.original_arrived = true;
    }
    if ((seg.flags & kTxSacked) == 0) {
      RackArrived(t, seg, s, h);
    } else {
      news.known_bytes += static_cast<uint32_t>(EndOf(seg) - seg.seq);
    }
    if ((seg.flags & kTxFin) != 0) news.fin = true;
    news.stream_bytes += seg.bytes;
    TxRemoveHead(t, h);
  }
  // Without SACK the sender can't tell whether it was the retransmission that brought them all.
  if (!Has(t, kSackOk) && news.retransmitted) news.original_arrived = false;
  news.acked_bytes = static_cast<uint32_t>(s.ack - t.snd_una);
  t.snd_una = s.ack;
}

// Linux's rule, which also takes a window that opens with the same numbers.
//= rfc9293#3.10.7.4
//# If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK), set SND.WND <- SEG.WND, set
//# SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
bool TakeWindow(Tcb& t, const SegmentIn& s) {
  const uint32_t window = static_cast<uint32_t>(s.window) << t.snd_wscale;
  const Seq seq = LastSeqOf(s);
  const bool newer = After(s.ack, t.snd_una) || After(seq, t.snd_wl1) ||
                     (seq == t.snd_wl1 && (window > t.snd_wnd || window == 0));
  if (!newer) return false;
  t.snd_wl1 = seq;
  t.snd_wl2 = s.ack;
  if (window == t.snd_wnd) return false;
  t.snd_wnd = window;
  t.snd_wnd_max = std::max(t.snd_wnd_max, window);
  return true;
}

void TakeRoundTrip(Tcb& t, const SegmentIn& s, const AckNews& news, const Host& h) {
  // Nor by a segment SACKed beside one that was sent again: it may have arrived long ago, with all
  // acknowledgements of it lost, and the pause of our own time-out would count as its round trip.
  uint64_t rtt_ns = 0;
  if (!news.retransmitted) rtt_ns = news.rtt_ns != 0 ? news.rtt_ns : news.sack_rtt_ns;
  //= rfc7323#4.1
  //# RTTM rule: A TSecr value received in a segment MAY be used to update the averaged RTT
  //# measurement only if the segment advances the left edge of the send window
  if (rtt_ns == 0 && news.acked_bytes != 0 && Has(t, kTimestamps) && s.options.has_timestamps &&
      s.options.ts_echo != 0) {
    const uint32_t ms = TimestampNow(t, h) - s.options.ts_echo;
    // An echo from before the retransmission: the answer to the original was late, or it was lost
    // and this one is to the second copy, which a receiver does not echo. Then the pause of our own
    // time-out would count as a round trip, and grow with itself.
    const uint32_t again = static_cast<uint32_t>(news.sent_again_ns / kMs) + t.ts_offset;
    const bool doubtful =
        news.sent_again_ns != 0 && static_cast<int32_t>(s.options.ts_echo - again) < 0;
    if (!doubtful && ms < 0x7fffffffu / 1000) rtt_ns = std::max(ms, 1u) * kMs;
  }
  if (rtt_ns != 0) RttSample(t.rtt, h.now_ns, rtt_ns, t.snd_una, t.snd_nxt);
}

//= rfc5681#2
//# DUPLICATE ACKNOWLEDGMENT: [...] (a) the receiver of the ACK has outstanding data, (b) the
//# incoming acknowledgment carries no data, (c) the SYN and FIN bits are both off, (d) the
//# acknowledgment number is equal to the greatest acknowledgment received on the given connection
//# [...] and (e) the advertised window in the incoming acknowledgment equals the advertised window
//# in the last incoming acknowledgment
bool IsDuplicate(const Tcb& t, const SegmentIn& s, bool window_changed) {
  return s.ack == t.snd_una && InFlight(t) != 0 && SequenceLength(s) == 0 && !window_changed;
}

// A retransmission that fills a hole takes TS.Recent beyond segments that were sent before it and
// are late. PAWS drops those: on a path that reorders each repaired loss makes new ones, for ever.
// It is there for segments of 2^32 bytes ago, and they can be told from late ones without knowing
// the peer's clock. `ts_floor` is TS.Recent as it was one to two kFloorBytes ago:
//
//      bytes   ... 2^32 ago        ts_floor_seq before   ts_floor_seq      rcv_nxt   window's end
//      TSval        < ts_floor    |  ts_floor           |  ts_floor_next       |        |
//
// A segment in the window was first sent when the peer had our acknowledgement of all that lies a
// window (2^30 at most) before it, so when it had sent ts_floor already; one of the last turn of
// the sequence numbers was acknowledged, and had been sent the last time, long before that.
//
// And late means by a round trip at most, if the peer's clock is of milliseconds: by then it has
// sent the segment again. What is older is dropped as the RFC says.
constexpr uint32_t kFloorBytes = 1u << 30;
constexpr uint32_t kFloorTicks = 1u << 29;  // so that the numbers do not wrap between the floors

bool IsLate(const Tcb& t, const SegmentIn& s) {
  const uint32_t above = s.options.ts_value - t.ts_floor;
  const uint64_t late_ns = (t.ts_recent - s.options.ts_value) * kMs;
  return s.bytes != 0 && AtOrAfter(s.seq, t.rcv_nxt) && above <= t.ts_recent - t.ts_floor &&
         late_ns <= std::max(t.rcv_rtt_ns, Srtt(t.rtt));
}

void MoveFloor(Tcb& t) {
  const bool jumped = t.ts_recent - t.ts_floor_next > kFloorTicks;
  if (!jumped && static_cast<uint32_t>(t.rcv_nxt - t.ts_floor_seq) < kFloorBytes) return;
  t.ts_floor = jumped ? t.ts_recent : t.ts_floor_next;
  t.ts_floor_next = t.ts_recent;
  t.ts_floor_seq = t.rcv_nxt;
}

// An acknowledgement that others have overtaken may have been the only one that says of a segment
// that it has arrived, or come twice (Linux: tcp_ack(), old_ack).
void TakeOldSack(Tcb& t, const SegmentIn& s, Host& h) {
  if (s.options.sack_count == 0 || !Has(t, kSackOk)) return;
  AckNews news;
  news.prior_una = t.snd_una;
  TakeSack(t, s, news, h);
  if (news.sacked_bytes != 0 || news.dsack) Recover(t, s, news, h);
}

}  // namespace

AckVerdict TakeAck(Tcb& t, const SegmentIn& s, Host& h) {
  //= rfc5961#5.2
  //# The ACK value is considered acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND)
  //# <= SEG.ACK <= SND.NXT). All incoming segments whose ACK value doesn't satisfy the above
  //# condition MUST be discarded and an ACK sent back.
  // Nor one of what was never sent: MAX.SND.WND is at most what was acknowledged, SYN included.
  const uint64_t old_max = std::min<uint64_t>(t.snd_wnd_max, t.bytes_acked + 1);
  if (After(s.ack, t.snd_nxt) || Before(s.ack, t.snd_una - static_cast<uint32_t>(old_max))) {
    Challenge(t, h);
    return AckVerdict::kDrop;
  }
  t.received_ns = h.now_ns;
  if (Before(s.ack, t.snd_una)) {  // overtaken by another
    TakeOldSack(t, s, h);
    return AckVerdict::kGoOn;
  }
  TakeTimestamp(t, s, h);
  AckNews news;
  news.prior_una = t.snd_una;
  t.probes_out = 0;
  const bool window_changed = TakeWindow(t, s);
  // No news. (A DSACK may come when all has been acknowledged.)
  if (t.tx_head == kNone && s.ack == t.snd_una && s.options.sack_count == 0)
    return AckVerdict::kGoOn;
  news.duplicate = IsDuplicate(t, s, window_changed);
  news.ece = Has(t, kEcnOk) && (s.flags & kEce) != 0;
  if (After(s.ack, t.snd_una)) TakeCumulative(t, s, news, h);
  if (Has(t, kSackOk)) TakeSack(t, s, news, h);
  TakeRoundTrip(t, s, news, h);
  if (Has(t, kUrgentOut) && AtOrAfter(t.snd_una, t.snd_up)) t.flags &= ~kUrgentOut;
  if (news.acked_bytes != 0) {
    if (t.rto_count != 0) TimeoutsOver(t, h);
    t.stalled_ns = 0;
    t.soft_error = 0;
    t.bytes_acked += news.stream_bytes;
    if (news.stream_bytes != 0) h.Release(t, news.stream_bytes);
  }
  Recover(t, s, news, h);
  if (news.acked_bytes == 0) return AckVerdict::kGoOn;
  //= rfc6298#5
  //# (5.2) When all outstanding data has been acknowledged, turn off the retransmission timer.
  if (t.tx_head == kNone) {
    StopRtx(t);
    h.Report(t, Event::kAllAcked, 0);
  }
  if (news.fin && !FinAcked(t, h)) return AckVerdict::kDrop;
  return AckVerdict::kGoOn;
}

//= rfc7323#5.3
//# R1) If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is
//# valid (see later discussion), and if the RST bit is not set, then treat the arriving segment as
//# not acceptable
// A tick less is let through, as Linux does: stacks are known that stamp before they number. So is
// what is late only.
bool TimestampOk(const Tcb& t, const SegmentIn& s, const Host& h) {
  if (!Has(t, kTimestamps) || !s.options.has_timestamps) return true;
  if (static_cast<int32_t>(s.options.ts_value - t.ts_recent) >= -1 || IsLate(t, s)) return true;
  // RFC 7323, 5.5: after 24 days the peer's clock may have wrapped.
  return h.now_ns - t.ts_recent_ns > 24ull * 86400 * kSecond;
}

//= rfc7323#4.3
//# (2) If: SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent then SEG.TSval is copied to
//# TS.Recent; otherwise, it is ignored.
void TakeTimestamp(Tcb& t, const SegmentIn& s, const Host& h) {
  if (!Has(t, kTimestamps) || !s.options.has_timestamps) return;
  if (After(s.seq, t.last_ack_sent)) return;
  const bool newer = static_cast<int32_t>(s.options.ts_value - t.ts_recent) >= 0;
  if (!newer && h.now_ns - t.ts_recent_ns <= 24ull * 86400 * kSecond) return;
  t.ts_recent = s.options.ts_value;
  t.ts_recent_ns = h.now_ns;
  MoveFloor(t);
}

void BeginTimestamps(Tcb& t, uint32_t ts_recent) {
  t.ts_recent = t.ts_floor = t.ts_floor_next = ts_recent;
  t.ts_floor_seq = t.irs;
}

// Two ends that take each other's segments for old ones do not go on about it for ever.
bool MayAnswerOld(Tcb& t, const Host& h) {
  const uint64_t pause_ns = h.sysctls().tcp_invalid_ratelimit * kMs;
  if (t.challenge_ns != 0 && h.now_ns - t.challenge_ns < pause_ns) return false;
  t.challenge_ns = h.now_ns;
  return true;
}

//= rfc5961#7
//# [...] an implementation SHOULD include an ACK throttling mechanism to be conservative.
// For each connection, and for the Host if it says so, as Linux.
void Challenge(Tcb& t, Host& h) {
  if (MayAnswerOld(t, h) && h.MayChallenge()) t.flags |= kAckNow;
}

void AnswerUnacceptable(Tcb& t, const SegmentIn& s, Host& h) {
  const bool brings_data = SequenceLength(s) != 0 && (s.flags & kSyn) == 0;
  if (!brings_data) {
    if (MayAnswerOld(t, h)) t.flags |= kAckNow;
    return;
  }
  // What was delivered comes again: the peer may have missed our acknowledgement. RFC 2883.
  const Seq end = s.seq + SequenceLength(s);
  if (Before(s.seq, t.rcv_nxt))
    NoteDuplicate(t, s.seq, AtOrBefore(end, t.rcv_nxt) ? end : t.rcv_nxt);
  t.flags |= kAckNow;
}

}  // namespace postern::tcp
