// SPDX-License-Identifier: Apache-2.0
// output.cc - what is said at the end of each step: lost segments first, then new ones, and an
// acknowledgement by itself if none of them carried it.
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

//= rfc9293#3.9.1.2
//# The transmitter SHOULD collapse successive bits when it packetizes data, to send the largest
//# possible segment
// What a program has written in small pieces, and the network has lost, need not fill it again with
// as many packets: queues count those, while our window counts bytes. Not over the end of the
// peer's window (Linux: tcp_retrans_try_collapse).
void Collapse(Tcb& t, uint32_t idx, Host& h) {
  const TxSeg& seg = h.TxSegAt(idx);
  const int32_t room = t.snd_una + t.snd_wnd - seg.seq;
  const uint32_t most = std::min(room > 0 ? static_cast<uint32_t>(room) : 0, SegmentMax(t));
  while (seg.bytes < most && TxMerge(t, idx, most, h)) {
  }
}

// RFC 6675, 5: while the pipe is not full, the segments that are lost, from the lowest on.
uint32_t SendLost(Tcb& t, Host& h) {
  uint32_t sent = 0;
  while (t.tx_lost_head != kNone) {
    const uint32_t idx = t.tx_lost_head;
    const TxSeg& seg = h.TxSegAt(idx);
    if (h.sysctls().tcp_retrans_collapse != 0) Collapse(t, idx, h);
    const uint32_t pipe = PipeBytes(t);
    const uint32_t bytes = std::min(seg.bytes, t.mss_bytes);
    if (pipe != 0 && CongestionRoom(t.cc, pipe) < bytes) break;
    // What the peer's window has been taken back from (RFC 9293, 3.8.6); the first is a probe.
    if (seg.seq != t.snd_una && AtOrAfter(seg.seq, t.snd_una + t.snd_wnd)) break;
    if (sent != 0 && t.pace_next_ns > h.now_ns + kPaceSlackNs) {
      t.flags |= kPaceWait;
      break;
    }
    if (!Retransmit(t, idx, h)) break;
    sent += std::max(bytes, 1u);
    Pace(t, bytes, h);
  }
  return sent;
}

}  // namespace

// The path may take less than when it was sent: cut anew (RFC 1191, 6.4). When there is no TxSeg to
// cut it with, it may be that all of them wait for this: then the first part of the first segment
// is sent, and what is left of it once that is acknowledged is lost again (ack.cc).
bool Retransmit(Tcb& t, uint32_t idx, Host& h) {
  const bool whole = h.TxSegAt(idx).bytes <= t.mss_bytes || TxSplit(t, idx, t.mss_bytes, h);
  if (!whole && idx != t.tx_head) return false;
  TxSeg seg = h.TxSegAt(idx);
  if (!whole) {
    seg.bytes = t.mss_bytes;
    seg.flags &= ~(kTxFin | kTxPsh | kTxRecord);
  }
  //= rfc3168#6.1.5
  //# ECN-capable TCP implementations MUST NOT set either ECT codepoint (ECT(0) or ECT(1)) in the IP
  //# header for retransmitted data packets
  if (!EmitData(t, seg, 0, Ecn::kNotEct, h)) return false;
  const uint32_t length = static_cast<uint32_t>(EndOf(seg) - seg.seq);
  TxMarkRetransmitted(t, idx, h);
  TxSeg& sent = h.TxSegAt(idx);
  sent.flags = whole ? sent.flags & ~kTxPart : sent.flags | kTxPart;
  t.retransmits++;
  t.bytes_retrans += seg.bytes;
  t.undo_retrans_bytes += length;
  if (!Has(t, kRetransStamp)) {
    t.flags |= kRetransStamp;
    t.retrans_stamp = TimestampNow(t, h);
  }
  return true;
}

void SendAckIfDue(Tcb& t, Host& h) {
  const State s = StateOf(t);
  if (s == State::kClosed || s == State::kSynSent) return;
  if (s == State::kSynReceived) {  // a challenge; the SYN-ACK is before it
    if (Has(t, kAckNow) && !Has(t, kSynUnsent)) EmitAck(t, h);
    return;
  }
  if (Has(t, kAckNow) || WindowHasOpened(t, h)) EmitAck(t, h);
}

void Send(Tcb& t, Host& h) {
  switch (StateOf(t)) {
    case State::kClosed:
      return;
    case State::kSynSent:
    case State::kSynReceived:
      if (Has(t, kSynUnsent)) SendSyn(t, h);
      SendAckIfDue(t, h);
      return;
    default:
      break;
  }
  if (MaySend(t)) {
    uint32_t sent = 0;
    const uint32_t under_way = InFlight(t);
    t.flags &= ~(kPaceWait | kStarved);
    t.retry_deadline_ns = 0;
    // F-RTO asks new data first, whether the old ones are lost at all (RFC 5682, 2.1, step 2b).
    if (t.tx_lost_head != kNone && !Has(t, kFrtoNew)) sent = SendLost(t, h);
    sent += SendNew(t, h);
    t.flags &= ~kFrtoNew;
    if (sent != 0) {
      const SendSample sample = {h.now_ns, t.rtt.rto_ns, sent, PipeBytes(t), t.snd_una, t.snd_nxt};
      CongestionOnSent(t.cc, sample);
    }
    const Rtx kind = static_cast<Rtx>(t.rtx_kind);
    // A timer that waits for the youngest segment begins anew with each; the RTO does not.
    const bool grown = InFlight(t) != under_way;
    if (t.tx_head != kNone &&
        (kind == Rtx::kIdle || kind == Rtx::kPersist || (grown && kind == Rtx::kTlp)))
      RearmRto(t, h);
  } else {
    // Our FIN is acknowledged, and with it what pacing or the want of a TxSeg had held back.
    t.flags &= ~(kPaceWait | kStarved);
    t.retry_deadline_ns = 0;
  }
  NoteLimit(t, h);
  SendAckIfDue(t, h);
}

void Output(Tcb& t, Host& h) {
  if (StateOf(t) == State::kClosed) return;
  if (IsSynchronized(t)) TuneWindow(t, h);
  Send(t, h);
  SetTimers(t, h);
}

// Linux: TCP_NAGLE_PUSH, which lasts until what was there has been sent.
void Flush(Tcb& t) { t.flags |= kFlush; }

// Those that no room is left for are forgotten: a segment may then go on over them.
void MarkRecord(Tcb& t, uint32_t bytes) {
  const State s = StateOf(t);
  if (s == State::kClosed || Has(t, kFinSent) || bytes == 0) return;
  const bool opening = s == State::kSynSent || s == State::kSynReceived;
  const Seq end = (opening ? t.iss + 1 : t.snd_una) + bytes;
  if (!After(end, t.snd_nxt) || t.record_ends >= kRecordEndsMax) return;
  if (t.record_ends != 0 && !After(end, t.record_end[t.record_ends - 1])) return;
  t.record_end[t.record_ends++] = end;
  t.flags |= kRecordOut;
}

void MarkUrgent(Tcb& t, uint32_t bytes) {
  const State s = StateOf(t);
  if (s == State::kClosed || Has(t, kFinSent) || bytes == 0) return;
  const bool opening = s == State::kSynSent || s == State::kSynReceived;
  t.snd_up = (opening ? t.iss + 1 : t.snd_una) + bytes;
  t.flags |= kUrgentOut;
}

void Urgent(Tcb& t, uint32_t bytes, Host& h) {
  MarkUrgent(t, bytes);
  Output(t, h);
}

void SetAckMode(Tcb& t, AckMode mode, Host& h) {
  if (!IsSynchronized(t)) return;
  if (mode == AckMode::kDelayed) {
    t.flags |= kPingPong;
    return;
  }
  t.flags &= ~kPingPong;
  t.answers = 0;
  if ((t.flags & (kAckDelayed | kAckHeld)) != 0) t.flags |= kAckNow;
  SendAckIfDue(t, h);
  SetTimers(t, h);
}

}  // namespace postern::tcp
