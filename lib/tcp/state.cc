// SPDX-License-Identifier: Apache-2.0
// state.cc - the states of RFC 9293, 3.3.2: which edges there are, and how a connection ends.
#include <cerrno>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

constexpr uint32_t Bit(State s) { return 1u << static_cast<uint32_t>(s); }

// Any state may be left for CLOSED.
constexpr uint32_t EdgesOf(State from) {
  switch (from) {
    case State::kClosed:
      // The last one: a cookie has come back.
      return Bit(State::kSynSent) | Bit(State::kSynReceived) | Bit(State::kEstablished);
    case State::kSynSent:
      return Bit(State::kEstablished) | Bit(State::kSynReceived);
    case State::kSynReceived:
      return Bit(State::kEstablished);
    case State::kEstablished:
      return Bit(State::kFinWait1) | Bit(State::kCloseWait);
    case State::kFinWait1:
      return Bit(State::kFinWait2) | Bit(State::kClosing) | Bit(State::kTimeWait);
    case State::kFinWait2:
    case State::kClosing:
      return Bit(State::kTimeWait);
    case State::kCloseWait:
      return Bit(State::kLastAck);
    case State::kLastAck:
    case State::kTimeWait:
      break;
  }
  return 0;
}

}  // namespace

// An edge that is not there is a mistake of ours: the connection ends rather than going on in a
// state that nothing is known about.
void SetState(Tcb& t, State to) {
  if (to != State::kClosed && (EdgesOf(StateOf(t)) & Bit(to)) == 0) to = State::kClosed;
  t.state = static_cast<uint32_t>(to);
}

void Forget(Tcb& t, Host& h) {
  if (StateOf(t) == State::kClosed) return;
  TxFreeAll(t, h);
  RxFreeAll(t, h);
  StopRtx(t);
  t.ack_deadline_ns = t.life_deadline_ns = t.retry_deadline_ns = t.cork_deadline_ns = 0;
  t.flags &= ~(kPaceWait | kAckNow | kAckDelayed | kAckHeld | kSynUnsent | kStarved);
  SetState(t, State::kClosed);
}

void EnterClosed(Tcb& t, Host& h) {
  if (StateOf(t) == State::kClosed) return;
  Forget(t, h);
  h.Report(t, Event::kClosed, 0);
}

void Fail(Tcb& t, int error, Host& h) {
  if (StateOf(t) == State::kClosed) return;
  h.Report(t, Event::kReset, error);
  EnterClosed(t, h);
}

//= rfc9293#3.10.5
//# <SEQ=SND.NXT><CTL=RST>
// With an ACK, as everybody sends it: the peer can check it by more than its window.
//= rfc7323#3.2
//# and SHOULD be sent in an <RST> segment (see Section 5.2 for details)
void SendReset(Tcb& t, Host& h) {
  SegmentOut out;
  out.seq = t.snd_nxt;
  out.ack = t.rcv_nxt;
  out.flags = kRst | kAck;
  const uint32_t window = static_cast<uint32_t>(std::max(t.rcv_adv - t.rcv_nxt, 0));
  out.window = static_cast<uint16_t>(std::min(window >> t.rcv_wscale, 0xffffu));
  FillTimestamps(t, out, h);
  t.segments_out++;
  h.Transmit(t, out);  // no room: it is lost, as it might be on the way
}

//= rfc9293#3.6.1
//# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time 2xMSL
void EnterTimeWait(Tcb& t, Host& h) {
  SetState(t, State::kTimeWait);
  TxFreeAll(t, h);
  RxFreeAll(t, h);
  StopRtx(t);
  t.retry_deadline_ns = t.cork_deadline_ns = 0;
  t.flags &= ~(kPaceWait | kStarved);
  t.life_deadline_ns = h.now_ns + kTimeWaitNs;
}

bool FinAcked(Tcb& t, Host& h) {
  switch (StateOf(t)) {
    case State::kFinWait1:
      SetState(t, State::kFinWait2);
      t.life_deadline_ns = 0;  // SetTimers
      if (!Has(t, kNoReader)) return true;
      // TCP_LINGER2 < 0: no program waits for the peer's FIN.
      if (t.settings.fin_wait2_s != kNoFinWait2) return true;
      EnterClosed(t, h);
      return false;
    case State::kClosing:
      EnterTimeWait(t, h);
      return true;
    case State::kLastAck:
      EnterClosed(t, h);
      return false;
    default:
      return true;
  }
}

//= rfc9293#3.10.7.4
//# If the FIN bit is set, signal the user "connection closing" and return any pending RECEIVEs with
//# same message, advance RCV.NXT over the FIN, and send an acknowledgment for the FIN.
void FinArrived(Tcb& t, Host& h) {
  if (Has(t, kFinReceived)) return;
  t.rcv_nxt += 1;
  t.flags |= kFinReceived;
  if (StateOf(t) != State::kEstablished) t.flags |= kAckNow;
  switch (StateOf(t)) {
    case State::kEstablished:
      // The program answers, or closes as well: its segment carries the acknowledgement (Linux:
      // tcp_fin()).
      SetState(t, State::kCloseWait);
      t.flags |= kPingPong;
      DelayAck(t, h);
      break;
    case State::kFinWait1:
      SetState(t, State::kClosing);  // FinAcked() was asked before: ours is under way
      break;
    case State::kFinWait2:
      EnterTimeWait(t, h);
      break;
    default:
      break;
  }
  RxFreeAll(t, h);  // there is nothing behind a FIN
  h.Report(t, Event::kFin, 0);
}

}  // namespace postern::tcp
