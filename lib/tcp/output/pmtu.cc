// SPDX-License-Identifier: Apache-2.0
// pmtu.cc - the path takes less than it did: told by ICMP (RFC 1191, 8201), or guessed since large
// segments vanish (RFC 4821); and other errors that ICMP reports (RFC 5461, 5927).
#include <initializer_list>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// What was sent too large is lost for certain: sent again at once, and no sign of congestion
// (Linux's simple retransmit). The phase is that of a time-out without its reduction.
void ResendLarge(Tcb& t, Host& h) {
  bool any = false;
  for (uint32_t i = t.tx_head; i != kNone; i = h.TxSegAt(i).next) {
    const TxSeg& seg = h.TxSegAt(i);
    if (seg.bytes <= t.mss_bytes || (seg.flags & kTxSacked) != 0) continue;
    TxMarkLost(t, i, h);
    any = true;
  }
  if (!any) return;
  if (!Has(t, kSackOk)) t.sacked_bytes = std::min(t.sacked_bytes, InFlight(t) - t.lost_bytes);
  if (static_cast<Recovery>(t.recovery) > Recovery::kDisorder) return;
  t.recovery = static_cast<uint32_t>(Recovery::kLoss);
  t.recover = t.snd_nxt;
  t.flags &= ~(kUndo | kFrto | kTlpOut);
}

}  // namespace

void PathMtu(Tcb& t, uint32_t mss_max, Host& h) {
  if (StateOf(t) == State::kClosed) return;
  const uint32_t before = t.mss_bytes;
  SetMss(t, std::max(mss_max, kMssMin));
  t.flags &= ~kBackedOffMss;
  if (!IsSynchronized(t) || t.mss_bytes == before) return;
  CongestionSetMss(t.cc, t.mss_bytes);
  if (t.mss_bytes < before) ResendLarge(t, h);
  Output(t, h);
}

// At a time-out, before all is sent again. As Linux with tcp_mtu_probing = 1: after tcp_retries1 in
// a row tcp_base_mss bytes, then half of it; small segments get through a black hole, large ones
// never would.
void SuspectBlackHole(Tcb& t, Host& h) {
  const Sysctls& host = h.sysctls();
  if (host.tcp_mtu_probing == 0 || t.rto_count < host.tcp_retries1 || t.tx_head == kNone) return;
  const uint32_t base = std::min(t.mss_bytes, host.tcp_base_mss);
  const uint32_t lower = Has(t, kBackedOffMss) ? t.mss_bytes / 2 : base;
  const uint32_t mss = std::max({lower, host.tcp_mtu_probe_floor, host.tcp_min_snd_mss, kMssMin});
  if (mss >= t.mss_bytes || h.TxSegAt(t.tx_head).bytes <= mss) return;
  t.flags |= kBackedOffMss;
  SetMss(t, mss + (Has(t, kTimestamps) ? 12 : 0));
  CongestionSetMss(t.cc, t.mss_bytes);
}

void SoftError(Tcb& t, Seq seq, int error, bool hard, Host& h) {
  const State s = StateOf(t);
  //= rfc5927#4.1
  //# TCP SHOULD check that the TCP sequence number contained in the payload of the ICMP error
  // message # is within the range SND.UNA =< SEG.SEQ < SND.NXT
  if (s == State::kClosed || !InWindow(seq, t.snd_una, InFlight(t))) return;
  // RFC 5461, 4.1: a hard error is a soft one in the synchronized states.
  if (hard && (s == State::kSynSent || s == State::kSynReceived)) {
    Fail(t, error, h);
    return;
  }
  t.soft_error = static_cast<uint32_t>(error);
  h.Report(t, Event::kSoftError, error);
}

}  // namespace postern::tcp
