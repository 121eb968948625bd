// SPDX-License-Identifier: Apache-2.0
// ending.cc - the ways out that the Host chooses, RSTs for stray segments, and TIME_WAIT that
// makes room for a new connection. (FINs are data: newdata.cc sends them, state.cc has what
// follows.)
#include "tcp/machine.h"

namespace postern::tcp {

// A program that has closed, or died. Its stream has ended as well (Host::Ended): the FIN follows
// the last byte.
void Closed(Tcb& t, Host& h) {
  switch (StateOf(t)) {
    case State::kClosed:
      return;
    case State::kSynSent:
      //= rfc9293#3.10.4
      //# SYN-SENT STATE Delete the TCB and return "error: closing" responses to any queued SENDs,
      // or # RECEIVEs.
      EnterClosed(t, h);
      return;
    default:
      break;
  }
  t.flags |= kNoReader;
  if (StateOf(t) == State::kFinWait2) {
    t.life_deadline_ns = 0;  // SetTimers: 60 s at most for the peer's FIN
    if (t.settings.fin_wait2_s == kNoFinWait2) {
      EnterClosed(t, h);
      return;
    }
  }
  Output(t, h);
}

//= rfc9293#3.10.5
//# SYN-RECEIVED STATE ESTABLISHED STATE FIN-WAIT-1 STATE FIN-WAIT-2 STATE CLOSE-WAIT STATE Send a
//# reset segment
void Abort(Tcb& t, Host& h) {
  switch (StateOf(t)) {
    case State::kSynReceived:
    case State::kEstablished:
    case State::kFinWait1:
    case State::kFinWait2:
    case State::kCloseWait:
      SendReset(t, h);
      break;
    default:
      break;
  }
  EnterClosed(t, h);
}

void Strip(Tcb& t, uint64_t now_ns) {
  Tcb left = {};
  left.tx_head = left.tx_tail = left.tx_time_head = left.tx_time_tail = kNone;
  left.tx_lost_head = left.tx_lost_tail = left.rx_head = left.rx_tail = left.rx_lane_head = kNone;
  const State s = StateOf(t);
  if (s != State::kClosed && s != State::kSynSent && s != State::kTimeWait) {
    left.state = static_cast<uint32_t>(State::kEstablished);
    left.flags = t.flags & kTimestamps;
    left.snd_una = left.snd_nxt = t.snd_una;  // nothing is under way; the peer has had all before
    left.rcv_nxt = left.rcv_adv = t.rcv_nxt;
    left.rcv_wscale = t.rcv_wscale <= 14 ? t.rcv_wscale : 0;
    left.ts_recent = t.ts_recent;
    left.ts_offset = t.ts_offset;
    left.mss_bytes = t.mss_bytes > kMssMin ? t.mss_bytes : kMssMin;
    left.cc.cwnd_bytes = left.mss_bytes;
    left.settings.flags = kSetKeepalive;
    left.settings.keepalive_idle_s = left.settings.keepalive_interval_s = 1;
    left.settings.keepalive_probes = 3;
    left.received_ns = now_ns - kSecond;
    left.life_deadline_ns = now_ns;
  }
  t = left;
}

//= rfc9293#3.10.7.1
//# If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>
// If # the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>
bool ResetFor(const SegmentIn& s, SegmentOut& out) {
  if ((s.flags & kRst) != 0) return false;
  out = SegmentOut{};
  if ((s.flags & kAck) != 0) {
    out.seq = s.ack;
    out.flags = kRst;
  } else {
    out.ack = s.seq + SequenceLength(s);
    out.flags = kRst | kAck;
  }
  return true;
}

//= rfc9293#3.10.7.2
//# This should not be reached. Drop the segment and return.
// It is, by a scanner's segments: without any flag, with a FIN alone, with FIN, PSH and URG. Nor is
// a SYN with a FIN answered, which no host sends that wants to connect (Linux:
// tcp_rcv_state_process(), TCP_LISTEN).
ForListener AtListener(const SegmentIn& s) {
  if ((s.flags & kRst) != 0) return ForListener::kDrop;
  if ((s.flags & kAck) != 0) return ForListener::kReset;
  return (s.flags & (kSyn | kFin)) == kSyn ? ForListener::kOpens : ForListener::kDrop;
}

// RFC 6191, 2: a later timestamp, or a later sequence number, can't be an old SYN.
bool MayReuse(const Tcb& t, const SegmentIn& syn, Seq& iss) {
  if (StateOf(t) != State::kTimeWait) return false;
  if (AtListener(syn) != ForListener::kOpens) return false;
  bool newer = After(syn.seq, t.rcv_nxt);
  if (Has(t, kTimestamps) && syn.options.has_timestamps) {
    const int32_t ahead = static_cast<int32_t>(syn.options.ts_value - t.ts_recent);
    if (ahead < 0) return false;  // PAWS
    newer = newer || ahead > 0;
  }
  iss = t.snd_nxt + 65537;  // Linux: behind any window that the old one may have had
  return newer;
}

}  // namespace postern::tcp
