// SPDX-License-Identifier: Apache-2.0
// validate.cc - the invariants of a connection, each as a sentence.
#include "tcp/validate.h"

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

uint32_t Length(const TxSeg& s) { return static_cast<uint32_t>(EndOf(s) - s.seq); }

struct TxSums {
  uint32_t count = 0, sacked = 0, sacked_count = 0, lost = 0, retrans = 0;
  uint32_t timed = 0, to_send = 0;
};

const char* TxChain(const Tcb& t, Host& h, TxSums& sums) {
  Seq at = t.snd_una;
  uint32_t prev = kNone;
  for (uint32_t i = t.tx_head; i != kNone; i = h.TxSegAt(i).next) {
    const TxSeg& s = h.TxSegAt(i);
    if (++sums.count > 2 * kTxSegsMax) return "the chain of segments under way has no end";
    if (s.prev != prev) return "a segment under way does not know its predecessor";
    if (s.seq != at) return "segments under way leave a hole, or overlap";
    if (Length(s) == 0) return "a segment under way is empty";
    const uint32_t f = s.flags;
    if ((f & kTxSacked) != 0 && (f & (kTxLost | kTxRetrans | kTxTimed | kTxToSend)) != 0)
      return "a segment is SACKed and something else";
    if ((f & kTxTimed) != 0 && (f & kTxToSend) != 0) return "a segment is in two chains";
    if ((f & (kTxTimed | kTxToSend | kTxSacked)) == 0) return "a segment is in no chain";
    if ((f & kTxToSend) != 0 && (f & kTxLost) == 0) return "a segment is sent again, but not lost";
    if ((f & kTxFin) != 0 && s.next != kNone) return "something follows our FIN";
    if ((f & kTxFin) != 0 && !Has(t, kFinSent)) return "a FIN that was not sent is under way";
    if ((f & kTxSacked) != 0) sums.sacked += Length(s), sums.sacked_count++;
    if ((f & kTxLost) != 0) sums.lost += Length(s);
    if ((f & kTxRetrans) != 0) sums.retrans += Length(s);
    if ((f & kTxTimed) != 0) sums.timed++;
    if ((f & kTxToSend) != 0) sums.to_send++;
    at = EndOf(s);
    prev = i;
  }
  if (t.tx_tail != prev) return "the last segment under way is not tx_tail";
  if (at != t.snd_nxt) return "the segments under way do not end at snd_nxt";
  return nullptr;
}

const char* TimeChain(uint32_t head, uint32_t tail, uint32_t flag, uint32_t count, Host& h) {
  uint32_t prev = kNone, n = 0;
  for (uint32_t i = head; i != kNone; i = h.TxSegAt(i).time_next) {
    if (++n > count) return "a chain of times is longer than its members are many";
    if (h.TxSegAt(i).time_prev != prev) return "a chain of times has lost a predecessor";
    if ((h.TxSegAt(i).flags & flag) == 0) return "a chain of times has a stranger in it";
    prev = i;
  }
  if (tail != prev) return "a chain of times has another end";
  return n == count ? nullptr : "a chain of times has lost members";
}

const char* Sender(const Tcb& t, Host& h) {
  TxSums sums;
  const State s = StateOf(t);
  if (s == State::kSynSent || s == State::kSynReceived || s == State::kTimeWait)
    return t.tx_head == kNone ? nullptr : "data under way where there can be none";
  if (const char* wrong = TxChain(t, h, sums)) return wrong;
  if (sums.count != t.tx_count) return "tx_count is wrong";
  if (sums.lost != t.lost_bytes) return "lost_bytes is wrong";
  if (sums.retrans != t.retrans_bytes) return "retrans_bytes is wrong";
  if (sums.sacked_count != t.sacked_count) return "sacked_count is wrong";
  if (Has(t, kSackOk) && sums.sacked != t.sacked_bytes) return "sacked_bytes is wrong";
  if (uint64_t{t.sacked_bytes} + t.lost_bytes > InFlight(t)) return "more is gone than was sent";
  if (const char* wrong = TimeChain(t.tx_time_head, t.tx_time_tail, kTxTimed, sums.timed, h))
    return wrong;
  if (const char* wrong = TimeChain(t.tx_lost_head, t.tx_lost_tail, kTxToSend, sums.to_send, h))
    return wrong;
  if (t.tx_head != kNone && t.rtx_deadline_ns == 0) return "data under way, and no timer";
  if (Has(t, kUrgentOut) && !Before(t.snd_una, t.snd_up)) return "urgent data behind snd_una";
  if (t.record_ends > kRecordEndsMax) return "more records end than there is room for";
  if (Has(t, kRecordOut) != (t.record_ends != 0)) return "kRecordOut is wrong";
  if (t.record_ends != 0 && !After(t.record_end[0], t.snd_nxt)) return "a record ended long ago";
  if (t.cc.cwnd_bytes == 0) return "a congestion window of nothing";
  return nullptr;
}

const char* Receiver(const Tcb& t, Host& h) {
  uint32_t count = 0, bytes = 0, prev = kNone, lane = t.rx_lane_head;
  Seq at = t.rcv_nxt;
  for (uint32_t i = t.rx_head; i != kNone; i = h.RxSegAt(i).next) {
    const RxSeg& r = h.RxSegAt(i);
    if (++count > kRxSegsMax) return "the chain of early segments has no end";
    if (r.prev != prev) return "an early segment does not know its predecessor";
    if (Before(r.seq, at)) return "early segments overlap, or are not early";
    if (EndOf(r) == r.seq) return "an early segment is empty";
    if (r.bytes != 0 && After(r.seq + r.bytes, t.rcv_adv)) return "more was kept than was offered";
    if ((r.packet == kNone) != (r.bytes == 0)) return "an early segment without a packet";
    if ((r.flags & kRxLane) != 0) {
      if (lane != i) return "the lane of early segments leaves one out";
      lane = r.lane;
    }
    bytes += r.bytes;
    at = EndOf(r);
    prev = i;
  }
  if (lane != kNone) return "the lane of early segments has one too many";
  if (t.rx_head != kNone && h.RxSegAt(t.rx_head).seq == t.rcv_nxt)
    return "an early segment is in order";
  if (t.rx_tail != prev) return "the last early segment is not rx_tail";
  if (count != t.rx_count || bytes != t.rx_bytes) return "rx_count or rx_bytes is wrong";
  if (t.sack_out_count > kRxRangesMax) return "more blocks to report than there is room for";
  for (uint32_t i = 0; i < t.sack_out_count; i++) {
    if (!Before(t.sack_out[i].left, t.sack_out[i].right)) return "an empty block is reported";
    if (AtOrBefore(t.sack_out[i].right, t.rcv_nxt)) return "a block is reported that is in order";
  }
  return nullptr;
}

bool IsKnownState(uint32_t s) {
  return s <= static_cast<uint32_t>(State::kClosing) && s != 7 && s != 10;
}

}  // namespace

const char* Validate(const Tcb& t, Host& h) {
  if (!IsKnownState(t.state)) return "no such state";
  if (StateOf(t) == State::kClosed) {
    if (t.state == 0 && t.flags == 0 && t.tx_count == 0) return nullptr;  // never opened
    return t.tx_count == 0 && t.rx_count == 0 && NextDeadline(t) == UINT64_MAX
               ? nullptr
               : "closed, but not empty";
  }
  if (t.snd_wscale > 14 || t.rcv_wscale > 14) return "a shift beyond 14";
  if (t.mss_bytes < kMssMin) return "an MSS of almost nothing";
  if (InFlight(t) > kWindowMax + 0xffffu) return "more under way than any window";
  if (const char* wrong = Sender(t, h)) return wrong;
  if (StateOf(t) == State::kSynSent) return nullptr;
  const int32_t window = t.rcv_adv - t.rcv_nxt;
  if (window < -1) return "more was taken than was offered";  // -1: a FIN takes no room
  if (window > static_cast<int32_t>(kWindowMax)) return "a window beyond 2^30";
  return Receiver(t, h);
}

}  // namespace postern::tcp
