// SPDX-License-Identifier: Apache-2.0
// txqueue.cc - the segments under way, in three chains, and the sums that recovery decides by.
//
// Each TxSeg is in the chain of sequence numbers (next, prev), and by the same pair of links
// (time_next, time_prev) in at most one of:
//
//   tx_time_*   kTxTimed   may have arrived: neither SACKed nor waiting to be sent again. In the
//                          order in which they were sent, so RACK stops at the first that is young
//   tx_lost_*   kTxToSend  lost, to be sent again; the lowest first (found by kSortMax steps)
//
//                 +------- sent again -------+
//                 v                          |
//   sent --> kTxTimed --- taken for lost --> kTxToSend
//                 |                          |
//                 +--> kTxSacked <-----------+          and from everywhere: acknowledged, gone
//
// Sums: sacked_bytes, lost_bytes (kTxLost) and retrans_bytes (kTxRetrans) of the sequence space,
// kept with each change of a flag. A segment is never SACKed and lost.
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

constexpr uint32_t kSortMax = 256;

uint32_t LengthOf(const TxSeg& s) { return static_cast<uint32_t>(EndOf(s) - s.seq); }

struct Chain {
  uint32_t& head;
  uint32_t& tail;
};
Chain TimeChain(Tcb& t) { return {t.tx_time_head, t.tx_time_tail}; }
Chain LostChain(Tcb& t) { return {t.tx_lost_head, t.tx_lost_tail}; }

void LinkLast(Chain c, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  s.time_next = kNone;
  s.time_prev = c.tail;
  if (c.tail != kNone) {
    h.TxSegAt(c.tail).time_next = idx;
  } else {
    c.head = idx;
  }
  c.tail = idx;
}

void LinkFirst(Chain c, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  s.time_prev = kNone;
  s.time_next = c.head;
  if (c.head != kNone) {
    h.TxSegAt(c.head).time_prev = idx;
  } else {
    c.tail = idx;
  }
  c.head = idx;
}

void LinkAfter(Chain c, uint32_t at, uint32_t idx, Host& h) {
  TxSeg& a = h.TxSegAt(at);
  if (a.time_next == kNone) {
    LinkLast(c, idx, h);
    return;
  }
  TxSeg& s = h.TxSegAt(idx);
  s.time_prev = at;
  s.time_next = a.time_next;
  h.TxSegAt(a.time_next).time_prev = idx;
  a.time_next = idx;
}

void Unlink(Chain c, uint32_t idx, Host& h) {
  const TxSeg& s = h.TxSegAt(idx);
  if (s.time_prev != kNone) {
    h.TxSegAt(s.time_prev).time_next = s.time_next;
  } else {
    c.head = s.time_next;
  }
  if (s.time_next != kNone) {
    h.TxSegAt(s.time_next).time_prev = s.time_prev;
  } else {
    c.tail = s.time_prev;
  }
}

// Out of whichever chain it is in.
void Detach(Tcb& t, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  if ((s.flags & kTxTimed) != 0) Unlink(TimeChain(t), idx, h);
  if ((s.flags & kTxToSend) != 0) Unlink(LostChain(t), idx, h);
  s.flags &= ~(kTxTimed | kTxToSend);
}

void ClearLost(Tcb& t, TxSeg& s) {
  if ((s.flags & kTxLost) != 0) t.lost_bytes -= LengthOf(s);
  s.flags &= ~kTxLost;
}
void ClearRetrans(Tcb& t, TxSeg& s) {
  if ((s.flags & kTxRetrans) != 0) t.retrans_bytes -= LengthOf(s);
  s.flags &= ~kTxRetrans;
}
void ClearSacked(Tcb& t, TxSeg& s) {
  if ((s.flags & kTxSacked) != 0) {
    t.sacked_bytes -= LengthOf(s);
    t.sacked_count--;
  }
  s.flags &= ~kTxSacked;
}

}  // namespace

void TxAppend(Tcb& t, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  s.next = kNone;
  s.prev = t.tx_tail;
  if (t.tx_tail != kNone) {
    h.TxSegAt(t.tx_tail).next = idx;
  } else {
    t.tx_head = idx;
  }
  t.tx_tail = idx;
  t.tx_count++;
  s.flags |= kTxTimed;
  LinkLast(TimeChain(t), idx, h);
}

void TxRemoveHead(Tcb& t, Host& h) {
  const uint32_t idx = t.tx_head;
  TxSeg& s = h.TxSegAt(idx);
  if ((s.flags & kTxSacked) == 0) t.delivered++;
  Detach(t, idx, h);
  ClearLost(t, s);
  ClearRetrans(t, s);
  ClearSacked(t, s);
  t.tx_head = s.next;
  if (t.tx_head != kNone) {
    h.TxSegAt(t.tx_head).prev = kNone;
  } else {
    t.tx_tail = kNone;
  }
  t.tx_count--;
  h.GiveTxSeg(idx);
}

// The first `bytes` of the head are acknowledged, and there are more.
void TxTrimHead(Tcb& t, uint32_t bytes, Host& h) {
  TxSeg& s = h.TxSegAt(t.tx_head);
  if ((s.flags & kTxLost) != 0) t.lost_bytes -= bytes;
  if ((s.flags & kTxRetrans) != 0) t.retrans_bytes -= bytes;
  if ((s.flags & kTxSacked) != 0) t.sacked_bytes -= bytes;
  const uint32_t of_stream = std::min(bytes, s.bytes);
  s.from = h.Skip(t, s.from, of_stream);
  s.seq += bytes;
  s.bytes -= of_stream;
}

bool TxSplit(Tcb& t, uint32_t idx, uint32_t bytes, Host& h) {
  const uint32_t other = h.TakeTxSeg();
  if (other == kNone) return false;
  TxSeg& s = h.TxSegAt(idx);
  TxSeg& rest = h.TxSegAt(other);
  rest = s;
  rest.from = h.Skip(t, s.from, bytes);
  rest.seq = s.seq + bytes;
  rest.bytes = s.bytes - bytes;
  s.bytes = bytes;
  s.flags &= ~(kTxFin | kTxPsh | kTxRecord);  // they are about the last byte
  rest.prev = idx;
  s.next = other;
  if (rest.next != kNone) {
    h.TxSegAt(rest.next).prev = other;
  } else {
    t.tx_tail = other;
  }
  t.tx_count++;
  if ((s.flags & kTxSacked) != 0) t.sacked_count++;
  if ((s.flags & kTxTimed) != 0) LinkAfter(TimeChain(t), idx, other, h);
  if ((s.flags & kTxToSend) != 0) LinkAfter(LostChain(t), idx, other, h);
  return true;
}

// What was sent before stays true of both: how often, and that no ACK tells which copy came.
bool TxMerge(Tcb& t, uint32_t idx, uint32_t bytes_max, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  const uint32_t other = s.next;
  if (other == kNone) return false;
  TxSeg& rest = h.TxSegAt(other);
  if ((s.flags & rest.flags & kTxToSend) == 0 || ((s.flags | rest.flags) & kTxPart) != 0)
    return false;
  if ((s.flags & kTxRecord) != 0) return false;
  if (s.bytes + rest.bytes > bytes_max) return false;
  Detach(t, other, h);  // the sums stay: both count as lost, neither as sent again
  s.bytes += rest.bytes;
  s.flags |= rest.flags & (kTxFin | kTxPsh | kTxRecord | kTxEverRetrans);
  s.tries = std::max(s.tries, rest.tries);
  s.next = rest.next;
  if (s.next != kNone) {
    h.TxSegAt(s.next).prev = idx;
  } else {
    t.tx_tail = idx;
  }
  t.tx_count--;
  for (SackMemory& m : t.sack_memory) {
    if (m.tx_idx == other) m.tx_idx = idx;
  }
  h.GiveTxSeg(other);
  return true;
}

void TxTouch(Tcb& t, uint32_t idx, Host& h) {
  Detach(t, idx, h);
  h.TxSegAt(idx).flags |= kTxTimed;
  LinkLast(TimeChain(t), idx, h);
}

void TxMarkSacked(Tcb& t, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  if ((s.flags & kTxSacked) != 0) return;
  Detach(t, idx, h);
  ClearLost(t, s);
  ClearRetrans(t, s);
  s.flags |= kTxSacked;
  t.sacked_bytes += LengthOf(s);
  t.sacked_count++;
  t.delivered++;
}

// Also one that was sent again and is lost once more.
void TxMarkLost(Tcb& t, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  if ((s.flags & (kTxSacked | kTxToSend)) != 0) return;
  Detach(t, idx, h);
  ClearRetrans(t, s);
  if ((s.flags & kTxLost) == 0) t.lost_bytes += LengthOf(s);
  s.flags |= kTxLost | kTxToSend;
  if (t.tx_lost_head == kNone || Before(s.seq, h.TxSegAt(t.tx_lost_head).seq)) {
    LinkFirst(LostChain(t), idx, h);
    return;
  }
  uint32_t at = t.tx_lost_tail;
  for (uint32_t steps = 0; steps < kSortMax && After(h.TxSegAt(at).seq, s.seq); steps++)
    at = h.TxSegAt(at).time_prev;  // the head, at last, is before it
  LinkAfter(LostChain(t), at, idx, h);
}

// In order, whatever it was before: what snd_una waits for has to be the first.
void TxMarkAllLost(Tcb& t, Host& h) {
  for (uint32_t i = t.tx_head; i != kNone; i = h.TxSegAt(i).next) {
    TxSeg& s = h.TxSegAt(i);
    if ((s.flags & kTxSacked) != 0) continue;
    Detach(t, i, h);
    ClearRetrans(t, s);
    if ((s.flags & kTxLost) == 0) t.lost_bytes += LengthOf(s);
    s.flags |= kTxLost | kTxToSend;
    LinkLast(LostChain(t), i, h);
  }
}

void TxMarkRetransmitted(Tcb& t, uint32_t idx, Host& h) {
  TxSeg& s = h.TxSegAt(idx);
  if ((s.flags & kTxRetrans) == 0) t.retrans_bytes += LengthOf(s);
  s.flags |= kTxRetrans | kTxEverRetrans;
  s.tries++;
  s.sent_ns = t.sent_ns;
  TxTouch(t, idx, h);
}

// All that was SACKed counts as under way again: the peer has dropped it.
void TxForgetSacks(Tcb& t, Host& h) {
  for (uint32_t i = t.tx_head; i != kNone; i = h.TxSegAt(i).next) {
    TxSeg& s = h.TxSegAt(i);
    if ((s.flags & kTxSacked) == 0) continue;
    ClearSacked(t, s);
    s.flags |= kTxTimed;
    LinkFirst(TimeChain(t), i, h);
  }
  for (SackMemory& m : t.sack_memory) m.used = 0;
}

// Nothing was lost after all.
void TxForgetLosses(Tcb& t, Host& h) {
  for (uint32_t i = t.tx_head; i != kNone; i = h.TxSegAt(i).next) {
    TxSeg& s = h.TxSegAt(i);
    ClearLost(t, s);
    if ((s.flags & kTxToSend) != 0) TxTouch(t, i, h);
  }
}

void TxFreeAll(Tcb& t, Host& h) {
  for (uint32_t i = t.tx_head; i != kNone;) {
    const uint32_t next = h.TxSegAt(i).next;
    h.GiveTxSeg(i);
    i = next;
  }
  t.tx_head = t.tx_tail = t.tx_time_head = t.tx_time_tail = kNone;
  t.tx_lost_head = t.tx_lost_tail = kNone;
  t.tx_count = t.sacked_count = 0;
  t.sacked_bytes = t.lost_bytes = t.retrans_bytes = 0;
  for (SackMemory& m : t.sack_memory) m.used = 0;
}

}  // namespace postern::tcp
