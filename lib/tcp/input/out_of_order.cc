// SPDX-License-Identifier: Apache-2.0
// out_of_order.cc - what came too early: kept as packets until the hole before it is filled, and
// told to the peer by SACK.
//
// The chain is in order of seq and without overlaps: of what comes twice, the part that is there
// stays, and a segment that covers others whole replaces them. Bounded by kRxSegsMax, by what the
// Host keeps (Keep), and by the window. What is refused is lost for the peer, as if on the way; a
// segment that is in order never needs a place here, so it always gets through.
//
// A peer may send its segments in the order that makes us walk furthest. So about one in kLaneGap
// of them, by a choice that the peer can't foresee, is also in a chain of its own, the lane: a
// search goes along the lane, then along what is between two of it, some 130 steps of 4096 segments
// where there is no better guess.
//
//   rx_lane_head ------------------> s -----------------> s
//   rx_head -> s <-> s <-> s <-> s <-> s <-> s <-> s <-> s <-> s <- rx_tail
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

constexpr uint32_t kNeighboursMax = 64;
constexpr uint32_t kLaneGap = 64;      // the square root of kRxSegsMax
constexpr uint32_t kNearTheLast = 16;  // steps from the segment that came last
static_assert(kLaneGap * kLaneGap == kRxSegsMax);

// The last of the lane that lies before `seq`, and is not `idx`; kNone: none does.
uint32_t LaneBefore(const Tcb& t, Seq seq, uint32_t idx, Host& h) {
  uint32_t before = kNone;
  for (uint32_t i = t.rx_lane_head; i != kNone && i != idx; i = h.RxSegAt(i).lane) {
    if (!Before(h.RxSegAt(i).seq, seq)) break;
    before = i;
  }
  return before;
}

void EnterLane(Tcb& t, uint32_t idx, Host& h) {
  RxSeg& r = h.RxSegAt(idx);
  const uint32_t before = LaneBefore(t, r.seq, idx, h);
  uint32_t& link = before != kNone ? h.RxSegAt(before).lane : t.rx_lane_head;
  r.flags |= kRxLane;
  r.lane = link;
  link = idx;
}

void LeaveLane(Tcb& t, uint32_t idx, Host& h) {
  const RxSeg& r = h.RxSegAt(idx);
  const uint32_t before = LaneBefore(t, r.seq, idx, h);
  (before != kNone ? h.RxSegAt(before).lane : t.rx_lane_head) = r.lane;
}

void Unlink(Tcb& t, uint32_t idx, Host& h) {
  const RxSeg& r = h.RxSegAt(idx);
  if ((r.flags & kRxLane) != 0) LeaveLane(t, idx, h);
  if (r.prev != kNone) {
    h.RxSegAt(r.prev).next = r.next;
  } else {
    t.rx_head = r.next;
  }
  if (r.next != kNone) {
    h.RxSegAt(r.next).prev = r.prev;
  } else {
    t.rx_tail = r.prev;
  }
  if (t.rx_last_idx == idx) t.rx_last_idx = r.prev;
  t.rx_count--;
  t.rx_bytes -= r.bytes;
  if (r.packet != kNone) h.Drop(r.packet);
  h.GiveRxSeg(idx);
}

// Whether `i`, or the head for kNone, is where a segment that begins at `seq` comes behind.
bool IsPlace(const Tcb& t, uint32_t i, Seq seq, Host& h) {
  if (i != kNone && After(h.RxSegAt(i).seq, seq)) return false;
  const uint32_t next = i != kNone ? h.RxSegAt(i).next : t.rx_head;
  return next == kNone || After(h.RxSegAt(next).seq, seq);
}

// A hole that is filled is most often the one behind the last that was. False: it is not near.
bool FindNear(const Tcb& t, Seq seq, Host& h, uint32_t& place) {
  uint32_t i = t.rx_last_idx;
  for (uint32_t n = 0; i != kNone && n < kNearTheLast; n++) {
    if (IsPlace(t, i, seq, h)) return place = i, true;
    i = After(h.RxSegAt(i).seq, seq) ? h.RxSegAt(i).prev : h.RxSegAt(i).next;
  }
  return false;
}

// The last segment that begins at `seq` or before; kNone: all are behind it.
uint32_t FindBefore(const Tcb& t, Seq seq, Host& h) {
  uint32_t i = t.rx_tail;
  if (IsPlace(t, i, seq, h) || FindNear(t, seq, h, i)) return i;
  i = LaneBefore(t, seq, kNone, h);
  while (!IsPlace(t, i, seq, h)) i = i != kNone ? h.RxSegAt(i).next : t.rx_head;
  return i;
}

void Link(Tcb& t, uint32_t idx, uint32_t before, Host& h) {
  RxSeg& r = h.RxSegAt(idx);
  r.prev = before;
  r.next = before != kNone ? h.RxSegAt(before).next : t.rx_head;
  if (before != kNone) {
    h.RxSegAt(before).next = idx;
  } else {
    t.rx_head = idx;
  }
  if (r.next != kNone) {
    h.RxSegAt(r.next).prev = idx;
  } else {
    t.rx_tail = idx;
  }
  t.rx_count++;
  t.rx_bytes += r.bytes;
  t.rx_last_idx = idx;
  if (h.Random() >> 32 < (uint64_t{1} << 32) / kLaneGap) EnterLane(t, idx, h);
}

void RemoveSackOut(Tcb& t, uint32_t at) {
  for (uint32_t i = at; i + 1 < t.sack_out_count; i++) t.sack_out[i] = t.sack_out[i + 1];
  t.sack_out_count--;
}

//= rfc2018#4
//# The first SACK block (i.e., the one immediately following the kind and length fields in the
//# option) MUST specify the contiguous block of data containing the segment which triggered this
// ACK
// Blocks that have been reported and touch it become one with it; those that were forgotten are
// found again by a look at the neighbours, not too far.
void AddSackOut(Tcb& t, uint32_t idx, Host& h) {
  SackBlock b = {h.RxSegAt(idx).seq, EndOf(h.RxSegAt(idx))};
  for (uint32_t i = 0; i < t.sack_out_count;) {
    const SackBlock& o = t.sack_out[i];
    if (AtOrBefore(o.left, b.right) && AtOrBefore(b.left, o.right)) {
      if (i >= kBlocksExpected && Has(t, kAckHeld)) t.flags |= kAckNow;
      if (Before(o.left, b.left)) b.left = o.left;
      b.right = Later(b.right, o.right);
      RemoveSackOut(t, i);
    } else {
      i++;
    }
  }
  uint32_t steps = kNeighboursMax;
  for (uint32_t i = h.RxSegAt(idx).prev; i != kNone && steps != 0; i = h.RxSegAt(i).prev, steps--) {
    if (Before(EndOf(h.RxSegAt(i)), b.left)) break;
    if (Before(h.RxSegAt(i).seq, b.left)) b.left = h.RxSegAt(i).seq;
  }
  for (uint32_t i = h.RxSegAt(idx).next; i != kNone && steps != 0; i = h.RxSegAt(i).next, steps--) {
    if (After(h.RxSegAt(i).seq, b.right)) break;
    b.right = Later(b.right, EndOf(h.RxSegAt(i)));
  }
  if (t.sack_out_count >= kRxRangesMax && Has(t, kAckHeld)) t.flags |= kAckNow;
  t.sack_out_count = std::min(t.sack_out_count, kRxRangesMax - 1);
  for (uint32_t i = t.sack_out_count; i != 0; i--) t.sack_out[i] = t.sack_out[i - 1];
  t.sack_out[0] = b;
  t.sack_out_count++;
}

//= rfc2883#4
//# (4) If the D-SACK block reports a duplicate contiguous sequence from a (possibly larger) block
//# of data in the receiver's data queue above the cumulative acknowledgement, then the second SACK
//# block in that SACK option should specify that (possibly larger) block of data.
// `idx` is in it. (Linux: tcp_sack_new_ofo_skb() for what comes twice, too.)
void ReportAround(Tcb& t, uint32_t idx, Host& h) {
  if (idx != kNone && Has(t, kDsackOut)) AddSackOut(t, idx, h);
}

}  // namespace

void RxInsert(Tcb& t, const SegmentIn& s, Seq seq, uint32_t off, uint32_t bytes, bool fin,
              Host& h) {
  const uint32_t before = FindBefore(t, seq, h);
  if (before != kNone) {
    const RxSeg& p = h.RxSegAt(before);
    if ((p.flags & kRxFin) != 0 && AtOrAfter(seq + bytes, EndOf(p))) return;  // behind a FIN
    if (After(EndOf(p), seq)) {
      const uint32_t known = std::min(static_cast<uint32_t>(EndOf(p) - seq), bytes);
      NoteDuplicate(t, seq, seq + known);
      seq += known;
      off += known;
      bytes -= known;
      if (Before(seq, EndOf(p))) return ReportAround(t, before, h);  // nothing of it is new
    }
  }
  Seq end = seq + bytes;
  uint32_t next = before != kNone ? h.RxSegAt(before).next : t.rx_head;
  while (next != kNone && AtOrBefore(EndOf(h.RxSegAt(next)), end)) {
    const RxSeg& n = h.RxSegAt(next);
    const uint32_t after = n.next;
    NoteDuplicate(t, n.seq, EndOf(n));
    Unlink(t, next, h);
    next = after;
  }
  if (next != kNone) {
    const RxSeg& n = h.RxSegAt(next);
    if (Before(n.seq, end)) {
      NoteDuplicate(t, n.seq, end);
      bytes -= std::min(static_cast<uint32_t>(end - n.seq), bytes);
      end = seq + bytes;
    }
    fin = false;  // there is something behind it: it can't be the last
  }
  if (bytes == 0 && !fin) return ReportAround(t, before, h);
  if (t.rx_count >= kRxSegsMax) return;
  const uint32_t idx = h.TakeRxSeg();
  if (idx == kNone) return;
  if (bytes != 0 && !h.Keep(s.packet)) {
    h.GiveRxSeg(idx);
    return;
  }
  RxSeg& r = h.RxSegAt(idx);
  r = RxSeg{};
  r.packet = bytes != 0 ? s.packet : kNone;
  r.off = off;
  r.seq = seq;
  r.bytes = bytes;
  r.flags = fin ? kRxFin : 0;
  r.lane = kNone;
  Link(t, idx, before, h);
  if (Has(t, kSackOk)) AddSackOut(t, idx, h);
}

bool RxDrain(Tcb& t, Host& h) {
  while (t.rx_head != kNone) {
    RxSeg& r = h.RxSegAt(t.rx_head);
    if (After(r.seq, t.rcv_nxt)) return false;
    if (Before(r.seq, t.rcv_nxt)) {
      NoteDuplicate(t, r.seq, Earlier(r.seq + r.bytes, t.rcv_nxt));
      const uint32_t known = std::min(static_cast<uint32_t>(t.rcv_nxt - r.seq), r.bytes);
      r.seq += known;
      r.off += known;
      r.bytes -= known;
      t.rx_bytes -= known;
    }
    if (r.bytes != 0) {
      const uint8_t* data = h.PacketAt(r.packet, r.off);
      const uint32_t taken = data != nullptr ? std::min(h.Deliver(t, data, r.bytes), r.bytes) : 0;
      t.rcv_nxt += taken;
      t.bytes_received += taken;
      if (taken != r.bytes) {  // the peer sends it again; nothing is kept behind rcv_nxt
        r.seq += taken;
        r.off += taken;
        r.bytes -= taken;
        t.rx_bytes -= taken;
        Unlink(t, t.rx_head, h);
        return false;
      }
    }
    const bool fin = (r.flags & kRxFin) != 0 && r.seq + r.bytes == t.rcv_nxt;
    Unlink(t, t.rx_head, h);
    if (fin) return true;
  }
  return false;
}

void RxFreeAll(Tcb& t, Host& h) {
  while (t.rx_head != kNone) Unlink(t, t.rx_head, h);
  t.rx_last_idx = kNone;
  t.sack_out_count = 0;
}

//= rfc2883#4
//# (1) A D-SACK block is only used to report a duplicate contiguous sequence of data received by
//# the receiver in the most recent packet.
// Of several ranges in one segment the first one stays, and grows by what touches it
// (RFC 2883, 4.2.3; Linux: tcp_dsack_extend()).
void NoteDuplicate(Tcb& t, Seq left, Seq right) {
  if (!Has(t, kSackOk) || !Before(left, right)) return;
  if (Has(t, kDsackOut)) {
    if (After(left, t.dsack.right) || Before(right, t.dsack.left)) return;
    left = Earlier(left, t.dsack.left);
    right = Later(right, t.dsack.right);
  }
  t.dsack = {left, right};
  t.flags |= kDsackOut;
}

void TrimSackOut(Tcb& t) {
  for (uint32_t i = 0; i < t.sack_out_count;) {
    if (AtOrBefore(t.sack_out[i].right, t.rcv_nxt)) {
      RemoveSackOut(t, i);
    } else {
      if (Before(t.sack_out[i].left, t.rcv_nxt)) t.sack_out[i].left = t.rcv_nxt;
      i++;
    }
  }
}

void FillSack(Tcb& t, SegmentOptions& o, uint32_t blocks_max) {
  blocks_max = std::min(blocks_max, kSackBlocksMax);
  if (Has(t, kDsackOut) && blocks_max != 0) o.sack[o.sack_count++] = t.dsack;
  for (uint32_t i = 0; i < t.sack_out_count && o.sack_count < blocks_max; i++)
    o.sack[o.sack_count++] = t.sack_out[i];
}

}  // namespace postern::tcp
