// SPDX-License-Identifier: Apache-2.0
// input.cc - a segment arrives: the checks of RFC 9293, 3.10.7.4, in its order.
#include <cerrno>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// Linux's form of the four cases of RFC 9293, 3.4: it ends where we have acknowledged to or later,
// and begins in the window or at its edge. So old and probing segments bring their ACK along, and
// are seen by Trim() for what they are.
bool IsAcceptable(const Tcb& t, const SegmentIn& s) {
  const Seq end = s.seq + SequenceLength(s);
  return AtOrAfter(end, t.last_ack_sent) && AtOrBefore(s.seq, Later(t.rcv_adv, t.rcv_nxt));
}

//= rfc5961#3.2
//# If the RST bit is set and the sequence number exactly matches the next expected sequence number
//# (RCV.NXT), then TCP MUST reset the connection.
// Also behind the last byte that we have SACKed, and on the peer's FIN, as Linux does: senders are
// known that count so.
bool IsExactReset(const Tcb& t, const SegmentIn& s) {
  if (s.seq == t.rcv_nxt) return true;
  if (Has(t, kFinReceived) && s.seq == t.rcv_nxt - 1) return true;
  Seq last = t.rcv_nxt;
  for (uint32_t i = 0; i < t.sack_out_count; i++) last = Later(last, t.sack_out[i].right);
  return t.sack_out_count != 0 && s.seq == last;
}

void TakeReset(Tcb& t, const SegmentIn& s, Host& h) {
  if (!IsExactReset(t, s)) {
    Challenge(t, h);
    return;
  }
  int error = ECONNRESET;
  if (StateOf(t) == State::kSynReceived && !Has(t, kPassive)) error = ECONNREFUSED;
  if (StateOf(t) == State::kCloseWait) error = EPIPE;
  Fail(t, error, h);
}

// RFC 3168, 6.1.3: CWR ends the echo, CE begins it.
void TakeEcn(Tcb& t, const SegmentIn& s) {
  if (!Has(t, kEcnOk)) return;
  if ((s.flags & kCwr) != 0) t.flags &= ~kEcnEcho;
  if (s.ecn != Ecn::kCe || s.bytes == 0) return;
  if (!Has(t, kEcnEcho)) t.flags |= kAckNow;
  t.flags |= kEcnEcho;
}

// The SYN of a handshake that goes on: sent again by the peer, or crossing ours. True: done with
// it.
bool TakeSynAgain(Tcb& t, const SegmentIn& s, Host& h) {
  if (StateOf(t) != State::kSynReceived || s.seq != t.irs || (s.flags & kRst) != 0) return false;
  if ((s.flags & kAck) == 0 || After(s.ack, t.snd_nxt) || AtOrBefore(s.ack, t.snd_una)) {
    if (!MayAnswerOld(t, h)) return true;
    SendSyn(t, h);  // RFC 9293, 3.5: our SYN-ACK was lost
    return true;
  }
  // RFC 9293, 3.5, figure 7, line 6: both have sent SYN, ACK.
  SegmentIn rest = s;
  rest.seq = s.seq + 1;
  rest.flags &= static_cast<uint8_t>(~kSyn);
  t.received_ns = h.now_ns;
  if (CompleteHandshake(t, rest, h)) t.flags |= kAckNow;
  return true;
}

// Whether the acknowledgement lets the segment go on to its data.
bool TakeAckField(Tcb& t, const SegmentIn& s, Host& h) {
  if (StateOf(t) != State::kSynReceived) return TakeAck(t, s, h) == AckVerdict::kGoOn;
  if (AtOrBefore(s.ack, t.snd_una) || After(s.ack, t.snd_nxt)) {
    SegmentOut reset;
    if (ResetFor(s, reset)) h.Transmit(t, reset);
    return false;
  }
  t.received_ns = h.now_ns;
  TakeTimestamp(t, s, h);
  return CompleteHandshake(t, s, h);
}

// Nothing that a segment says is kept before its acknowledgement was looked at: a blind attacker
// who has guessed the ports and the window would else choose TS.Recent, and PAWS would drop all
// that the peer sends from then on (Linux: tcp_ack() calls tcp_replace_ts_recent()).
void InputSynchronized(Tcb& t, const SegmentIn& s, Host& h) {
  //= rfc9293#3.10.7.4
  //# if the ACK bit is off, drop the segment and return
  // Before anything else, as Linux: it is not answered either.
  if ((s.flags & (kAck | kSyn | kRst)) == 0) return;
  const bool rst = (s.flags & kRst) != 0;
  if ((s.flags & kSyn) != 0 && TakeSynAgain(t, s, h)) return;
  if (!rst && !TimestampOk(t, s, h)) {
    AnswerUnacceptable(t, s, h);
    return;
  }
  if (!IsAcceptable(t, s)) {
    if (rst && IsExactReset(t, s)) TakeReset(t, s, h);
    if (!rst) AnswerUnacceptable(t, s, h);
    return;
  }
  if (rst) {
    TakeReset(t, s, h);
    return;
  }
  //= rfc5961#4.2
  //# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also
  // referred # to as challenge ACK) to the remote peer
  if ((s.flags & kSyn) != 0) {
    Challenge(t, h);
    return;
  }
  if (!TakeAckField(t, s, h)) return;
  TakeEcn(t, s);
  const State state = StateOf(t);
  if (state != State::kTimeWait) TakeUrgent(t, s, h);
  TakeData(t, s, h);
}

//= rfc9293#3.10.7.4
//# The only thing that can arrive in this state is a retransmission of the remote FIN. Acknowledge
//# it, and restart the 2 MSL timeout.
void InputTimeWait(Tcb& t, const SegmentIn& s, Host& h) {
  const bool rst = (s.flags & kRst) != 0;
  if (!rst && !TimestampOk(t, s, h)) {
    Challenge(t, h);
    return;
  }
  if (rst) {
    if (s.seq == t.rcv_nxt && h.sysctls().tcp_rfc1337 == 0) EnterClosed(t, h);
    return;
  }
  if ((s.flags & kSyn) != 0 || !IsAcceptable(t, s)) {
    Challenge(t, h);
    return;
  }
  if ((s.flags & kAck) == 0) return;
  if (s.ack == t.snd_nxt) TakeTimestamp(t, s, h);  // MayReuse() believes it
  if (SequenceLength(s) != 0) t.flags |= kAckNow;
  if ((s.flags & kFin) != 0) t.life_deadline_ns = h.now_ns + kTimeWaitNs;
}

}  // namespace

// Early, late, urgent data and holes are for segments one by one: each is told to the peer.
bool MayRun(const Tcb& t, const SegmentIn& s) {
  return StateOf(t) == State::kEstablished && s.seq == t.rcv_nxt && s.flags == kAck &&
         s.bytes != 0 && s.options.sack_count == 0 && t.rx_head == kNone &&
         !Has(t, kUrgentIn | kNoReader);
}

// Linux's rules, net/ipv4/tcp_offload.c: an acknowledgement, a window, a time stamp or a mark of
// the network's that is news is seen when it comes.
bool Follows(const SegmentIn& run, uint32_t size, const SegmentIn& s) {
  const SegmentOptions &a = run.options, &b = s.options;
  return s.seq == run.seq + run.bytes && s.bytes != 0 && s.bytes <= size &&
         (s.flags & ~kPsh) == kAck && s.ack == run.ack && s.window == run.window &&
         s.ecn == run.ecn && b.sack_count == 0 && a.has_timestamps == b.has_timestamps &&
         a.ts_value == b.ts_value && a.ts_echo == b.ts_echo;
}

void Input(Tcb& t, const SegmentIn& s, Host& h) {
  t.segments_in += s.segments;
  switch (StateOf(t)) {
    case State::kClosed:
      return;
    case State::kSynSent:
      InputSynSent(t, s, h);
      break;
    case State::kTimeWait:
      InputTimeWait(t, s, h);
      break;
    default:
      InputSynchronized(t, s, h);
      break;
  }
  if (StateOf(t) == State::kClosed) return;
  if (Has(t, kMoreOut)) [[unlikely]]
    t.flags |= kIncoming;
  Send(t, h);
  t.flags &= ~kIncoming;
  SetTimers(t, h);
}

}  // namespace postern::tcp
