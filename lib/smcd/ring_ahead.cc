// SPDX-License-Identifier: Apache-2.0
// ring_ahead.cc - see ring_ahead.h.
#include "smcd/ring_ahead.h"

#include <algorithm>

#include "base/lock.h"
#include "smcd/ring_record.h"
#include "state/address_limit.h"

namespace postern {

RingCursor RingBegin(const ConnEnd& e) {
  const ReaderPlace p = ReaderAt(e.ep->rx);
  return {p.ring, p.off, p.rec_done};
}

uint32_t RingPiece(const ConnEnd& e, RingCursor& at, uint32_t want, const uint8_t** data) {
  ReadPlace p = {at.ring, at.off};
  uint64_t len = 0;
  RingPlace ring;
  if (want == 0 || LookAt(e, p, len, ring) != Look::kRecord) return 0;
  const bool same = p.ring == at.ring && p.off == at.off;
  const uint32_t done = same ? at.done : 0;
  if (done >= len) return 0;  // it shrank: a writer of ours does not do that
  const uint64_t left = len - done;
  const uint32_t n = left < want ? static_cast<uint32_t>(left) : want;
  *data = ring.base + p.off + PayloadOff(len) + done;
  at = done + n == len ? RingCursor{p.ring, p.off + RecordBytes(len), 0}
                       : RingCursor{p.ring, p.off, done + n};
  return n;
}

uint32_t RingAhead(const ConnEnd& e, RingCursor at, uint32_t limit) {
  uint32_t total = 0;
  const uint8_t* data;
  while (total < limit) {
    const uint32_t n = RingPiece(e, at, limit - total, &data);
    if (n == 0) break;
    total += n;
  }
  return total;
}

void RingSkip(const ConnEnd& e, RingCursor& at, uint32_t bytes) {
  const uint8_t* data;
  while (bytes != 0) {
    const uint32_t n = RingPiece(e, at, bytes, &data);
    if (n == 0) return;
    bytes -= n;
  }
}

namespace {

// Of `bytes` of ring, the payload that surely fits in records of `piece`: the last line is a
// mark's, and what is left over before the end of the ring, or of the free part, may be a record's.
uint32_t PayloadOf(uint32_t bytes, uint32_t piece) {
  const uint32_t record = RecordBytes(piece);
  const uint32_t waste = record + 2 * PSTN_REC_ALIGN;
  return bytes <= waste ? 0 : (bytes - waste) / record * piece;
}

// The largest ring that a stream of this class can still get.
uint32_t LargestClass(const ConnEnd& e, uint32_t from, const RingLimits& limits) {
  const uint32_t chunks = ChunksOf(*e.ref, e.lgr);
  for (uint32_t cls = limits.class_max; cls > from; cls--)
    if (SlabHas(*e.ref, cls, chunks)) return cls;
  return from;
}

// What the reader's program lets be unread, of what fits in `bytes` of ring. At least an eighth of
// the ring, of which the reader tells by sixteenths (ReturnSpace).
uint32_t Most(const ConnEnd& e, uint32_t bytes, uint32_t piece) {
  const uint32_t said = LoadRelaxed(e.peer_ctl().rcv_room);
  const uint32_t fits = PayloadOf(bytes, piece);
  if (said == 0) return fits;
  return std::min(fits, std::max(RingPayloadFor(said), PayloadOf(bytes / 8, piece)));
}

}  // namespace

uint32_t RingPayloadFor(uint32_t rcvbuf) { return rcvbuf / 2; }

RingLimits RingLimitsFor(const ConnEnd& e, RingLimits limits) {
  const uint32_t said = LoadRelaxed(e.peer_ctl().rcv_room);
  if (said == 0) return limits;
  // A ring of 4 KiB would have room for a piece at its start alone.
  uint32_t cls = std::min(std::max(limits.class_min, 1u), limits.class_max);
  while (cls < limits.class_max && RingBytes(cls) < RingPayloadFor(said)) cls++;
  limits.class_max = cls;
  return limits;
}

uint32_t RingRoom(const ConnEnd& e, const RingLimits& limits, uint32_t piece) {
  const pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  if (tx.ring == 0) return RingRoomMax(e, limits, piece);
  const uint32_t cls = RingClass(tx.ring) % PSTN_SLAB_CLASSES, bytes = RingBytes(cls);
  // Not moved twice before the reader has followed.
  const uint64_t read = LoadAcquire(e.peer_pos().read);  // [R1]
  const bool followed = static_cast<uint32_t>(read >> 32) == RingGen(tx.ring);
  if (followed || tx.old_ring == 0) {
    const uint32_t larger = LargestClass(e, cls, limits);
    if (larger > cls) return Most(e, RingBytes(larger), piece);
  }
  const uint32_t reader = followed ? static_cast<uint32_t>(read) : tx.peer;
  if (reader >= bytes || tx.off >= bytes) return 0;
  const uint32_t used = tx.off >= reader ? tx.off - reader : bytes - reader + tx.off;
  // Two pieces of room, at the end and at the start: each has its own waste.
  const uint32_t end = tx.off >= reader ? bytes - tx.off : bytes - used;
  const uint32_t start = tx.off >= reader ? reader : 0;
  const uint32_t free = PayloadOf(end, piece) + PayloadOf(start, piece);
  const uint32_t most = Most(e, bytes, piece);
  const auto unread = static_cast<uint32_t>(uint64_t{used} * piece / RecordBytes(piece));
  return most > unread ? std::min(free, most - unread) : 0;
}

uint32_t RingRoomMax(const ConnEnd& e, const RingLimits& limits, uint32_t piece) {
  const uint64_t ring = LoadRelaxed(e.ep->tx.ring);
  const uint32_t cls = ring == 0 ? limits.class_min : RingClass(ring) % PSTN_SLAB_CLASSES;
  return Most(e, RingBytes(LargestClass(e, cls, limits)), piece);
}

}  // namespace postern
