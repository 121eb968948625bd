// SPDX-License-Identifier: Apache-2.0
// sack.cc - the sender's scoreboard: which segments behind snd_una have arrived (RFC 2018, 2883).
//
// The blocks of one acknowledgement repeat those of the last ones but for the first, so what was
// read is remembered: a block that is the same is passed over, one that has grown is read on from
// where its last byte was, and a new one is looked for from the nearest block before it. A peer
// that sends other blocks each time costs kSackWalkMax steps at most for each segment; what was not
// reached stays unknown, which costs a retransmission, nothing else.
//
// Only segments that lie in a block as a whole count. A peer acknowledges segments as they came, so
// there are others only behind a box that cuts them anew; there the cumulative acknowledgement
// does.
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// RFC 2883, 4: the first block is one if it lies below the cumulative acknowledgement, or in the
// second block.
bool IsDsack(const SegmentIn& s) {
  const SegmentOptions& o = s.options;
  const SackBlock& first = o.sack[0];
  if (AtOrBefore(first.right, s.ack)) return true;
  if (o.sack_count < 2) return false;
  const SackBlock& next = o.sack[1];
  return AtOrAfter(first.left, next.left) && AtOrBefore(first.right, next.right);
}

void TakeDsack(Tcb& t, const SegmentIn& s, AckNews& news) {
  const SackBlock& b = s.options.sack[0];
  const int32_t bytes = b.right - b.left;
  if (bytes <= 0 || static_cast<uint32_t>(bytes) > t.snd_wnd_max) return;
  if (After(b.right, t.snd_nxt)) return;
  news.dsack = true;
  news.dsack_block = b;
  t.dsack_dups++;
  // A retransmission of this recovery was for nothing; when all were, so was the reduction.
  if (Has(t, kUndo) && AtOrBefore(b.right, news.prior_una) && After(b.right, t.undo_marker) &&
      t.undo_retrans_bytes != kNone)
    t.undo_retrans_bytes -= std::min(t.undo_retrans_bytes, static_cast<uint32_t>(bytes));
}

void TakeSegment(Tcb& t, uint32_t idx, const SegmentIn& s, AckNews& news, Host& h) {
  const TxSeg& seg = h.TxSegAt(idx);
  if ((seg.flags & kTxSacked) != 0) return;
  if ((seg.flags & kTxEverRetrans) == 0) {
    if (news.sack_rtt_ns == 0) news.sack_rtt_ns = SinceNs(seg.sent_ns, h);
    if (AtOrBefore(EndOf(seg), t.recover)) news.original_arrived = true;
  }
  RackArrived(t, seg, s, h);
  t.high_sacked = t.sacked_bytes == 0 ? EndOf(seg) : Later(t.high_sacked, EndOf(seg));
  news.sacked_bytes += static_cast<uint32_t>(EndOf(seg) - seg.seq);
  TxMarkSacked(t, idx, h);
}

// Where to begin looking for `b`; kNone: there is nothing in it that is not known.
uint32_t StartOf(const Tcb& t, const SackBlock& b) {
  uint32_t idx = t.tx_head;
  Seq best = t.snd_una;
  for (const SackMemory& m : t.sack_memory) {
    if (m.used == 0) continue;
    if (m.left == b.left && m.right == b.right) return kNone;
    const bool grown = m.left == b.left && Before(m.right, b.right);
    if (grown) return m.tx_idx;
    if (AtOrBefore(m.right, b.left) && AtOrAfter(m.right, best)) {
      best = m.right;
      idx = m.tx_idx;
    }
  }
  return idx;
}

// The segment that the block's last byte lies in, to be remembered; kNone: not reached.
uint32_t TakeBlock(Tcb& t, const SackBlock& b, uint32_t from, uint32_t& steps, const SegmentIn& s,
                   AckNews& news, Host& h) {
  uint32_t last = kNone;
  uint32_t i = from;
  for (; i != kNone; i = h.TxSegAt(i).next) {
    const TxSeg& seg = h.TxSegAt(i);
    if (AtOrAfter(seg.seq, b.right)) break;
    if (steps == 0) return kNone;
    steps--;
    last = i;
    if (AtOrAfter(seg.seq, b.left) && AtOrBefore(EndOf(seg), b.right))
      TakeSegment(t, i, s, news, h);
  }
  return last;
}

}  // namespace

void TakeSack(Tcb& t, const SegmentIn& s, AckNews& news, Host& h) {
  for (SackMemory& m : t.sack_memory) {
    if (m.used != 0 && AtOrBefore(m.right, t.snd_una)) m.used = 0;
  }
  const uint32_t count = std::min(s.options.sack_count, kSackBlocksMax);
  if (count == 0) return;
  const bool dsack = IsDsack(s);
  if (dsack) TakeDsack(t, s, news);
  uint32_t steps = kSackWalkMax;
  SackMemory now[kRxRangesMax] = {};
  for (uint32_t i = dsack ? 1 : 0; i < count; i++) {
    SackBlock b = s.options.sack[i];
    // What can't be: empty, not sent, or acknowledged already.
    if (!Before(b.left, b.right) || After(b.right, t.snd_nxt)) continue;
    if (Before(b.left, t.snd_una)) continue;
    const uint32_t from = StartOf(t, b);
    if (from == kNone) {
      for (const SackMemory& m : t.sack_memory) {
        if (m.used != 0 && m.left == b.left && m.right == b.right) now[i] = m;
      }
      continue;
    }
    const uint32_t last = TakeBlock(t, b, from, steps, s, news, h);
    if (last != kNone) now[i] = {b.left, b.right, last, 1};
  }
  for (uint32_t i = 0; i < kRxRangesMax; i++) t.sack_memory[i] = now[i];
}

// RFC 6582 has no scoreboard: each duplicate acknowledgement stands for one segment that arrived.
void NewRenoDuplicate(Tcb& t) {
  const uint32_t most = InFlight(t) - t.lost_bytes;
  t.sacked_bytes = std::min(t.sacked_bytes + t.mss_bytes, most);
}

}  // namespace postern::tcp
