// SPDX-License-Identifier: Apache-2.0
// timers.cc - all that happens because time has passed. Each timer is a deadline in the Tcb (0: not
// running), NextDeadline() is the least of them, and Timer() looks at all: none can be forgotten,
// and one call too many does nothing.
//
//   rtx     one of: RTO, TLP probe, RACK's reordering window, zero-window probe (rtx_kind)
//   ack     delayed acknowledgement
//   life    keepalive; FIN_WAIT_2 of a connection no program holds; TIME_WAIT; deferred accept
//   others  pacing, a cork that has been in too long, TxSegs that were all taken
#include <cerrno>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

bool IsDue(uint64_t deadline_ns, const Host& h) {
  return deadline_ns != 0 && deadline_ns <= h.now_ns;
}
Rtx Kind(const Tcb& t) { return static_cast<Rtx>(t.rtx_kind); }
// What the program has set, or else the host.
uint32_t Or(uint32_t set, uint32_t host) { return set != 0 ? set : host; }
uint64_t IdleNs(const Tcb& t, const Host& h) {
  return Or(t.settings.keepalive_idle_s, h.sysctls().tcp_keepalive_time) * kSecond;
}

void Arm(Tcb& t, Rtx kind, uint64_t deadline_ns) {
  t.rtx_kind = static_cast<uint32_t>(kind);
  t.rtx_deadline_ns = deadline_ns;
}

// RFC 5482: nothing waits beyond the time after which it is given up.
uint64_t NotAfterUserTimeout(const Tcb& t, uint64_t deadline_ns, const Host& h) {
  if (t.settings.user_timeout_ms == 0 || t.stalled_ns == 0) return deadline_ns;
  const uint64_t end_ns = t.stalled_ns + t.settings.user_timeout_ms * kMs;
  return std::min(deadline_ns, std::max(end_ns, h.now_ns + kMs));
}

//= rfc9293#3.8.6.1
//# The transmitting host SHOULD send the first zero-window probe when a zero window has existed for
// the # retransmission timeout period, and SHOULD increase exponentially the interval between
// successive # probes.
void ArmPersist(Tcb& t, Host& h) {
  uint64_t wait_ns = std::max(t.rtt.rto_ns, kRtoMinNs);
  const uint64_t most_ns = t.rtt.rto_max_ns;
  for (uint32_t i = 0; i < t.backoff && wait_ns < most_ns; i++) wait_ns *= 2;
  wait_ns = std::min(wait_ns, most_ns);
  Arm(t, Rtx::kPersist, NotAfterUserTimeout(t, h.now_ns + wait_ns, h));
}

//= rfc9293#3.8.6.1
//# As long as the receiving TCP peer continues to send acknowledgments in response to the probe
//# segments, the sending TCP implementation MUST allow the connection to stay open.
void PersistTimeout(Tcb& t, Host& h) {
  StopRtx(t);
  const uint64_t limit_ns = t.settings.user_timeout_ms * kMs;
  const bool out_of_time =
      limit_ns != 0 && t.stalled_ns != 0 && h.now_ns - t.stalled_ns >= limit_ns;
  const Sysctls& host = h.sysctls();
  const bool orphan = Has(t, kNoReader) && t.rtt.rto_ns >= t.rtt.rto_max_ns;
  const uint32_t most = orphan ? Or(host.tcp_orphan_retries, kOrphanRetries) : host.tcp_retries2;
  if (out_of_time || t.probes_out >= most) {
    Fail(t, t.soft_error != 0 ? static_cast<int>(t.soft_error) : ETIMEDOUT, h);
    return;
  }
  if (t.stalled_ns == 0) t.stalled_ns = h.now_ns;
  if (SendIntoWindow(t, h)) {
    RearmRto(t, h);
    return;
  }
  if (EmitProbe(t, h)) {
    t.probes_out++;
    t.backoff++;
  }
  ArmPersist(t, h);
}

//= rfc9293#3.8.4
//# Implementers MAY include "keep-alives" in their TCP implementations
void KeepaliveTimeout(Tcb& t, Host& h) {
  t.life_deadline_ns = 0;  // SetTimers sets it anew from received_ns, or what follows does
  if (!HasSetting(t, kSetKeepalive)) return;
  const uint64_t idle_ns = IdleNs(t, h);
  if (t.tx_head != kNone || Kind(t) == Rtx::kPersist) {
    t.life_deadline_ns = h.now_ns + idle_ns;  // something under way asks already
    return;
  }
  const uint64_t quiet_ns = h.now_ns - t.received_ns;
  if (quiet_ns < idle_ns) return;
  const uint32_t probes = Or(t.settings.keepalive_probes, h.sysctls().tcp_keepalive_probes);
  const uint64_t limit_ns = t.settings.user_timeout_ms * kMs;
  const bool over =
      limit_ns != 0 ? quiet_ns >= limit_ns && t.probes_out != 0 : t.probes_out >= probes;
  if (over) {
    SendReset(t, h);
    Fail(t, t.soft_error != 0 ? static_cast<int>(t.soft_error) : ETIMEDOUT, h);
    return;
  }
  if (EmitProbe(t, h)) t.probes_out++;
  const uint32_t pause_s = Or(t.settings.keepalive_interval_s, h.sysctls().tcp_keepalive_intvl);
  t.life_deadline_ns = h.now_ns + pause_s * kSecond;
}

void LifeTimeout(Tcb& t, Host& h) {
  switch (StateOf(t)) {
    case State::kTimeWait:
      EnterClosed(t, h);
      return;
    case State::kSynReceived:  // deferred: ask once more; what answers opens the connection
      t.life_deadline_ns = 0;
      t.flags &= ~kDeferred;
      SendSyn(t, h);
      return;
    case State::kFinWait2:
      if (Has(t, kNoReader)) {
        EnterClosed(t, h);
        return;
      }
      break;
    default:
      break;
  }
  KeepaliveTimeout(t, h);
}

// Linux: an end that was wrong about an answer of the program's being near waits for it longer.
void DelayedAckTimeout(Tcb& t) {
  t.ack_deadline_ns = 0;
  if (Has(t, kAckHeld)) {  // compressed: that says nothing of the program
    t.flags |= kAckNow;
    return;
  }
  if (!Has(t, kAckDelayed)) return;
  if (Has(t, kPingPong)) {
    t.flags &= ~kPingPong;
    t.answers = 0;
    t.ato_ns = static_cast<uint32_t>(kDelayedAckMinNs);
  } else {
    const uint64_t longer_ns = std::min<uint64_t>(uint64_t{t.ato_ns} * 2, t.rtt.rto_ns);
    t.ato_ns = static_cast<uint32_t>(std::min(longer_ns, kSecond));
  }
  t.flags |= kAckNow;
}

void RtxTimeout(Tcb& t, Host& h) {
  if (StateOf(t) == State::kSynSent || StateOf(t) == State::kSynReceived) {
    SynTimeout(t, h);
    return;
  }
  switch (Kind(t)) {
    case Rtx::kTlp:
      TlpSend(t, h);
      return;
    case Rtx::kReorder:
      ReorderTimeout(t, h);
      return;
    case Rtx::kPersist:
      PersistTimeout(t, h);
      return;
    case Rtx::kRto:
      RtoTimeout(t, h);
      return;
    case Rtx::kIdle:
      break;
  }
  StopRtx(t);
}

void SetLife(Tcb& t, Host& h) {
  const State s = StateOf(t);
  if (s == State::kTimeWait) return;
  if (s == State::kFinWait2 && Has(t, kNoReader)) {
    const uint32_t seconds = Or(t.settings.fin_wait2_s, h.sysctls().tcp_fin_timeout);
    if (t.life_deadline_ns == 0) t.life_deadline_ns = h.now_ns + seconds * kSecond;
    return;
  }
  if (!HasSetting(t, kSetKeepalive)) {
    t.life_deadline_ns = 0;
    return;
  }
  if (t.probes_out != 0 && t.life_deadline_ns != 0) return;
  // Only ever moved forward here: a deadline that is too early is looked at when it comes.
  const uint64_t due_ns = t.received_ns + IdleNs(t, h);
  if (t.life_deadline_ns == 0 || due_ns < t.life_deadline_ns)
    t.life_deadline_ns = std::max(due_ns, h.now_ns + 1);
}

}  // namespace

void StopRtx(Tcb& t) {
  t.rtx_kind = static_cast<uint32_t>(Rtx::kIdle);
  t.rtx_deadline_ns = 0;
}

void CountTimeout(Tcb& t, const Host& h) {
  if (t.rto_count++ == 0) {
    t.timeout_runs++;
    t.timeout_run_ns = h.now_ns;
  }
  t.timeouts++;
}

void TimeoutsOver(Tcb& t, const Host& h) {
  t.rto_count = 0;
  t.timeout_runs_ns += h.now_ns - t.timeout_run_ns;
}

//= rfc6298#5
//# (5.1) Every time a packet containing data is sent [...], if the timer is not running, start it
//# running so that it will expire after RTO seconds [...] (5.3) When an ACK is received that
//# acknowledges new data, restart the retransmission timer
void RearmRto(Tcb& t, Host& h) {
  if (t.tx_head == kNone) {
    StopRtx(t);
    return;
  }
  t.backoff = 0;
  uint64_t deadline_ns = 0;
  if (TlpDeadline(t, h, deadline_ns)) {
    Arm(t, Rtx::kTlp, deadline_ns);
  } else {
    Arm(t, Rtx::kRto, NotAfterUserTimeout(t, h.now_ns + t.rtt.rto_ns, h));
  }
}

void ArmReorder(Tcb& t, uint64_t deadline_ns) {
  if (t.tx_head != kNone) Arm(t, Rtx::kReorder, deadline_ns);
}

// What has to run in the state that the step has left behind.
void SetTimers(Tcb& t, Host& h) {
  switch (StateOf(t)) {
    case State::kClosed:
      return;
    case State::kSynSent:
    case State::kSynReceived:
      if (t.rtx_deadline_ns == 0 && !Has(t, kDeferred)) Arm(t, Rtx::kRto, h.now_ns + t.rtt.rto_ns);
      return;
    default:
      break;
  }
  if (t.tx_head == kNone) {
    const bool shut = MaySend(t) && t.blocked == static_cast<uint32_t>(Blocked::kWindow);
    if (shut && Kind(t) != Rtx::kPersist) {
      t.backoff = 0;
      ArmPersist(t, h);
    } else if (!shut && Kind(t) != Rtx::kIdle) {
      StopRtx(t);
      t.backoff = 0;
      t.stalled_ns = 0;
    }
  }
  SetLife(t, h);
}

uint64_t NextDeadline(const Tcb& t) {
  uint64_t next_ns = UINT64_MAX;
  const auto consider = [&](uint64_t deadline_ns) {
    if (deadline_ns != 0) next_ns = std::min(next_ns, deadline_ns);
  };
  consider(t.rtx_deadline_ns);
  consider(t.ack_deadline_ns);
  consider(t.life_deadline_ns);
  consider(t.retry_deadline_ns);
  consider(t.cork_deadline_ns);
  if (Has(t, kPaceWait)) consider(t.pace_next_ns - std::min(t.pace_next_ns, kPaceSlackNs));
  return next_ns;
}

void Timer(Tcb& t, Host& h) {
  if (StateOf(t) == State::kClosed) return;
  if (IsDue(t.rtx_deadline_ns, h)) RtxTimeout(t, h);
  if (StateOf(t) != State::kClosed && IsDue(t.life_deadline_ns, h)) LifeTimeout(t, h);
  if (StateOf(t) == State::kClosed) return;
  if (IsDue(t.ack_deadline_ns, h)) DelayedAckTimeout(t);
  if (IsDue(t.cork_deadline_ns, h)) {
    t.cork_deadline_ns = 0;
    if (MaySend(t)) SendIntoWindow(t, h);
  }
  if (IsDue(t.retry_deadline_ns, h)) t.retry_deadline_ns = 0;
  Send(t, h);
  SetTimers(t, h);
}

}  // namespace postern::tcp
