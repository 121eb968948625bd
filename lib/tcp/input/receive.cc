// SPDX-License-Identifier: Apache-2.0
// receive.cc - data that come: what is new of them, what is in order, and when they are
// acknowledged.
#include <cerrno>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// What is left of a segment inside the window.
struct Fresh {
  Seq seq;
  uint32_t off = 0;  // of the first byte that is new, in SegmentIn::data
  uint32_t bytes = 0;
  bool fin = false;
  bool nothing = false;
};

//= rfc9293#3.10.7.4
//# one could tailor actual segments to fit this assumption by trimming off any portions that lie
//# outside the window (including SYN and FIN)
Fresh Trim(Tcb& t, const SegmentIn& s) {
  Fresh f;
  f.seq = s.seq;
  f.bytes = s.bytes;
  f.fin = (s.flags & kFin) != 0;
  const Seq end = s.seq + SequenceLength(s);
  if (AtOrBefore(end, t.rcv_nxt)) {
    if (s.bytes != 0) NoteDuplicate(t, s.seq, s.seq + s.bytes);
    t.flags |= kAckNow;
    f.nothing = true;
    return f;
  }
  if (Before(s.seq, t.rcv_nxt)) {
    NoteDuplicate(t, s.seq, t.rcv_nxt);
    t.flags |= kAckNow;
    f.off = static_cast<uint32_t>(t.rcv_nxt - s.seq);  // at most `bytes`: only the FIN may be new
    f.seq = t.rcv_nxt;
    f.bytes -= f.off;
  }
  const int32_t room = t.rcv_adv - f.seq;
  if (room <= 0 && f.bytes != 0) {  // a probe of a window that is shut
    t.flags |= kAckNow;
    f.nothing = true;
  } else if (static_cast<int32_t>(f.bytes) > room && f.bytes != 0) {
    f.bytes = static_cast<uint32_t>(room);
    f.fin = false;
    t.flags |= kAckNow;
  }
  return f;
}

void TakeInOrder(Tcb& t, const SegmentIn& s, const Fresh& f, Host& h) {
  bool fin = f.fin;
  if (f.bytes != 0) {
    const uint32_t taken = std::min(s.run == nullptr ? h.Deliver(t, s.data + f.off, f.bytes)
                                                    : h.DeliverRun(t, s, f.off, f.bytes),
                                    f.bytes);
    t.rcv_nxt += taken;
    t.bytes_received += taken;
    if (taken != f.bytes) {
      fin = false;
      t.flags |= kAckNow;
    }
  }
  if (t.rx_head != kNone) {
    //= rfc5681#4.2
    //# a TCP receiver SHOULD send an immediate ACK when the incoming segment fills in all or part
    //# of a gap in the sequence space
    t.flags |= kAckNow;
    if (!fin) fin = RxDrain(t, h);
  }
  if (t.sack_out_count != 0) TrimSackOut(t);
  if (Has(t, kUrgentIn) && AtOrAfter(t.rcv_nxt, t.rcv_up)) t.flags &= ~kUrgentIn;
  if (fin) FinArrived(t, h);
}

// Linux's guess of how soon the program answers: half of the pauses between segments.
void MeasurePause(Tcb& t, const Host& h) {
  const uint64_t pause_ns = h.now_ns - t.last_data_ns;
  if (t.ato_ns == 0) {
    t.quick_acks = std::max(t.quick_acks, QuickAcks(t));
    t.ato_ns = kDelayedAckMinNs;
  } else if (pause_ns <= kDelayedAckMinNs / 2) {
    t.ato_ns = t.ato_ns / 2 + static_cast<uint32_t>(kDelayedAckMinNs / 2);
  } else if (pause_ns < t.ato_ns) {
    t.ato_ns = static_cast<uint32_t>(t.ato_ns / 2 + pause_ns);
    if (t.ato_ns > t.rtt.rto_ns) t.ato_ns = static_cast<uint32_t>(t.rtt.rto_ns);
  } else if (pause_ns > t.rtt.rto_ns) {
    // The peer has paused, and may be in slow start again.
    t.quick_acks = std::max(t.quick_acks, QuickAcks(t));
  }
  t.last_data_ns = h.now_ns;
}

uint64_t DelayNs(const Tcb& t) {
  uint64_t delay_ns = t.ato_ns;
  if (delay_ns > kDelayedAckMinNs) {
    uint64_t most_ns = Has(t, kPingPong) ? kDelayedAckMaxNs : 500 * kMs;
    const uint64_t srtt_ns = Srtt(t.rtt);
    if (srtt_ns != 0) most_ns = std::min(most_ns, std::max(srtt_ns, kDelayedAckMinNs));
    delay_ns = std::min(delay_ns, most_ns);
  }
  return std::min(delay_ns, kDelayedAckMaxNs);
}

}  // namespace

uint32_t QuickAcks(const Tcb& t) {
  const uint32_t window = static_cast<uint32_t>(t.rcv_adv - t.rcv_nxt);
  const uint32_t half = window / (2 * std::max(t.rcv_mss, 1u));
  return std::clamp(half, 2u, kQuickAcksMax);
}

//= rfc9293#3.8.6.3
//# an ACK should be generated for at least every second full-sized segment or 2*RMSS bytes of new
//# data [...] the delay MUST be less than 0.5 seconds
void ScheduleAck(Tcb& t, const SegmentIn& s, Host& h) {
  if (const uint32_t size = SizeOf(s); size >= t.rcv_mss)
    t.rcv_mss = std::clamp(size, kMssMin, std::max(kMssMin, AdvertisedMss(t)));
  t.unacked_bytes += s.bytes;
  MeasurePause(t, h);
  MeasureReceiver(t, s, h);
  TuneWindow(t, h);
  if (Has(t, kAckNow)) return;
  const bool second = t.unacked_bytes > t.rcv_mss;
  const bool quick = t.quick_acks != 0 && !Has(t, kPingPong);
  if (second || quick) {
    t.flags |= kAckNow;
    return;
  }
  DelayAck(t, h);
}

//= rfc5681#4.2
//# Out-of-order data segments SHOULD be acknowledged immediately
// Three for each hole, as many as the sender counts; then one for all that come within a twentieth
// of a round trip, or a millisecond: a receiver that is fast would else send an acknowledgement for
// each segment of a window in which one is missing (Linux: __tcp_ack_snd_check()). A block that the
// peer does not know yet, beyond two, can't wait: there may be no room for it later.
void AckEarly(Tcb& t, const Host& h) {
  if (Has(t, kAckNow)) return;
  const Sysctls& host = h.sysctls();
  const bool held = Has(t, kAckHeld);
  const bool quick = t.quick_acks != 0 && !Has(t, kPingPong);
  if (t.ack_dups_at != t.rcv_nxt) t.ack_dups = 0;
  t.ack_dups_at = t.rcv_nxt;
  if (quick || !Has(t, kSackOk) || t.unacked_bytes > t.rcv_mss || t.ack_dups < kDupAcksAtOnce ||
      (held ? t.acks_held : 0) >= host.tcp_comp_sack_nr) {
    t.ack_dups = std::min(t.ack_dups + 1, kDupAcksAtOnce);
    t.flags |= kAckNow;
    return;
  }
  if (held) {
    t.acks_held++;
    return;
  }
  uint64_t rtt_ns = t.rcv_rtt_ns;
  const uint64_t srtt_ns = Srtt(t.rtt);
  if (srtt_ns != 0 && srtt_ns < rtt_ns) rtt_ns = srtt_ns;
  const uint64_t at_ns =
      h.now_ns +
      std::max<uint64_t>(std::min<uint64_t>(host.tcp_comp_sack_delay_ns, rtt_ns / 20), 1);
  t.acks_held = 1;
  t.flags |= kAckHeld;
  if (t.ack_deadline_ns == 0 || at_ns < t.ack_deadline_ns) t.ack_deadline_ns = at_ns;
}

void DelayAck(Tcb& t, const Host& h) {
  // Nothing is known of the pauses before the first data; Linux waits for its next tick then.
  const uint64_t at_ns = h.now_ns + std::max(DelayNs(t), kTickNs);
  t.flags |= kAckDelayed;
  if (t.ack_deadline_ns == 0 || at_ns < t.ack_deadline_ns) t.ack_deadline_ns = at_ns;
}

void TakeData(Tcb& t, const SegmentIn& s, Host& h) {
  if (s.bytes == 0 && (s.flags & kFin) == 0) return;
  if (Has(t, kFinReceived)) {
    const Seq end = Earlier(s.seq + SequenceLength(s), t.rcv_nxt);
    NoteDuplicate(t, s.seq, end);  // of the FIN as well
    t.flags |= kAckNow;  // there is nothing behind a FIN; the peer may have missed our ACK
    return;
  }
  //= rfc9293#3.6
  //# [...] if new data is received after CLOSE is called, its TCP implementation SHOULD send a RST
  //# to show that data was lost
  // It is as one to a segment for nobody (Linux): at SEG.ACK, where the peer believes it.
  if (Has(t, kNoReader) && s.bytes != 0 && After(s.seq + s.bytes, t.rcv_nxt)) {
    SegmentOut reset;
    if (ResetFor(s, reset)) h.Transmit(t, reset);
    t.segments_out++;
    Fail(t, ECONNRESET, h);
    return;
  }
  t.data_segments_in += s.segments;
  const Fresh f = Trim(t, s);
  if (f.nothing) return;
  if (f.seq == t.rcv_nxt) {
    TakeInOrder(t, s, f, h);
    if (StateOf(t) == State::kClosed) return;
    if (f.bytes != 0) ScheduleAck(t, s, h);
    return;
  }
  if (s.run != nullptr) {  // a run is made of what is in order: as if lost
    t.flags |= kAckNow;
    return;
  }
  //= rfc5681#4.2
  //# Out-of-order data segments SHOULD be acknowledged immediately
  t.out_of_order++;
  RxInsert(t, s, f.seq, f.off, f.bytes, f.fin, h);
  MeasurePause(t, h);
  AckEarly(t, h);
}

//= rfc9293#3.10.7.4
//# If the URG bit is set, RCV.UP <- max(RCV.UP,SEG.UP), and signal the user that the remote side
// has # urgent data if the urgent pointer (RCV.UP) is in advance of the data consumed.
void TakeUrgent(Tcb& t, const SegmentIn& s, Host& h) {
  if ((s.flags & kUrg) == 0 || Has(t, kFinReceived)) return;
  // RFC 6093: the byte behind the urgent one, as Linux reads it, which takes 0 for 1; or the urgent
  // one itself, as RFC 9293 has it.
  const uint32_t ahead =
      h.sysctls().tcp_stdurg != 0 ? uint32_t{s.urgent} + 1 : std::max<uint32_t>(s.urgent, 1);
  const Seq up = s.seq + ahead;
  if (AtOrBefore(up, t.rcv_nxt)) return;
  if (Has(t, kUrgentIn) && AtOrBefore(up, t.rcv_up)) return;
  t.rcv_up = up;
  t.flags |= kUrgentIn;
  h.Report(t, Event::kUrgent, 0);
}

}  // namespace postern::tcp
