// SPDX-License-Identifier: Apache-2.0
// ring_ahead.h - reads a ring further than it is released: what TCP has sent stays in the ring
// until it is acknowledged, and may be sent again.
//
// A RingCursor is a place in the stream. It stays good until what it points to has been released
// (RingRead with kDiscard): a writer can neither overwrite nor take away what is not. It may point
// behind the last record, to where the next one will be.
#pragma once
#include "smcd/ring.h"

namespace postern {

struct RingCursor {
  uint64_t ring = 0;
  uint32_t off = 0, done = 0;  // of the record, and in it
};

// The first byte that is not released. Under ep.rx.lock, or where no other thread reads.
RingCursor RingBegin(const ConnEnd& e);
// The next piece in one run, at most `want` bytes; the cursor moves behind it. 0: there is no more
// now, or the writer has lied.
uint32_t RingPiece(const ConnEnd& e, RingCursor& at, uint32_t want, const uint8_t** data);
// Bytes from `at` on that are there, counted up to `limit`.
uint32_t RingAhead(const ConnEnd& e, RingCursor at, uint32_t limit);
// Moves `at` on by so many bytes, which are there.
void RingSkip(const ConnEnd& e, RingCursor& at, uint32_t bytes);

// Of a receive buffer of this size (SO_RCVBUF as getsockopt says it: doubled, since segments take
// more than their payload), what may be unread.
uint32_t RingPayloadFor(uint32_t rcvbuf);
// `limits` for a ring whose reader's program has set its receive buffer (ctl.rcv_room): no larger
// than that needs.
RingLimits RingLimitsFor(const ConnEnd& e, RingLimits limits);

// Payload that RingWrite is sure to take if it comes in pieces of `piece` bytes: what a receiver
// may promise, of a receive buffer that its program has set. 0 when there is no ring to be had.
// Under ep.tx.lock.
uint32_t RingRoom(const ConnEnd& e, const RingLimits& limits, uint32_t piece)
    PSTN_REQUIRES(e.ep->tx.lock);
// The same of a drained ring. Needs no lock.
uint32_t RingRoomMax(const ConnEnd& e, const RingLimits& limits, uint32_t piece);

}  // namespace postern
