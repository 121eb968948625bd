// SPDX-License-Identifier: Apache-2.0
// ring.h - one direction of a connection: records in a ring, data and arrival mark in one line.
//
// A record is a header word (the payload's length) and the payload, at 64-byte alignment. The
// reader polls the header at its own read offset; there is no producer index, so a small message
// costs one cache-line transfer. The writer
//
//    1. copies the payload behind the header,
//    2. clears the header that comes next,
//    3. stores the header (release): only now is the record there,
//
// and may fill up to, never onto, the line at the reader's offset. The last line of the ring is
// kept free, so that there is always room for a mark: WRAP (go on at 0) or SWITCH (go on in the
// ring that ctl.ring names: rings grow by moving).
//
//       0                    read offset             write offset        size
//       |  free .............| unread record | record | 0 | free .......|mark|
//
// The reader returns space by storing its offset in pos.read, a line that the writer looks at only
// when it runs out of what it knows to be free. When it finds the ring drained, it wraps early:
// request/response traffic stays in the first lines of the ring and hence in L2.
//
// A drained ring can be taken away by the writer alone: it stores 0 in ctl.ring and gives the
// memory to another connection. A reader that polls the old place sees a hint at most, because it
// believes a header only if ctl.ring, loaded after it, is still the ring that it reads. (The store
// to ctl.ring precedes the first store of the memory's next user, so a header of that user implies
// that the later load sees the change.)
//
// A program may have asked for less than a ring holds (SO_SNDBUF, SO_RCVBUF, TCP_NOTSENT_LOWAT):
// then the writer leaves no more unread than its own buffer and the reader's would hold together
// (tx.budget, ctl.rcv_room).
//
// Reader and writer distrust each other: the reader checks every length against the ring and copies
// before use; the writer takes a returned offset only if it lies in what is unread.
#pragma once
#include "base/iov.h"
#include "state/slab.h"

namespace postern {

// An end of a connection, resolved for the duration of one call.
struct ConnEnd {
  pstn_ep* ep;
  pstn_lgr_ref* ref;
  uint8_t* lgr;
  pstn_conn* conn;
  uint32_t side;
  uint64_t which = 0;  // endpoint's and connection's generations: whether they still are the same

  pstn_conn_ctl& ctl() const { return conn->ctl[side]; }
  pstn_conn_ctl& peer_ctl() const { return conn->ctl[side ^ 1u]; }
  pstn_conn_pos& pos() const { return conn->pos[side]; }
  pstn_conn_pos& peer_pos() const { return conn->pos[side ^ 1u]; }
};

struct RingLimits {
  uint32_t class_min = 0;
  uint32_t class_max = 2;
};

// kNow: before the writer waits. A reader may not come before the writer has gone on (two programs
// that both write first), so it gets the room that the kernel's buffers would have.
enum class Growth : uint8_t { kWhenUseful, kNow };

// Writes as much of `from` as fits, under ep.tx.lock. 0: the ring is full, or there is none to be
// had, or the first record has met a fault (`from` knows).
size_t RingWrite(const ConnEnd& e, IovCursor& from, const RingLimits& limits,
                 Growth growth = Growth::kWhenUseful) PSTN_REQUIRES(e.ep->tx.lock);

// Bytes, of at most `want`, that the next write takes whole (`promised`), in two records at most.
// It has to come before the lock is released. The ring grows for them. 0: it is full, or none is to
// be had.
size_t RingMakeRoom(const ConnEnd& e, const RingLimits& limits, size_t want)
    PSTN_REQUIRES(e.ep->tx.lock);

// The line of `bytes` and those before it, as tx.budget and rcv_lines count them: not 0.
uint16_t RingLines(uint64_t bytes);
// Bytes that both programs let be unread, the reader's by what it says; 0: what the ring holds.
uint64_t RingBudget(const ConnEnd& e);

// Whether RingWrite would take at least one byte. Needs no lock; a moment's answer.
bool RingWritable(const ConnEnd& e);
// Whether it would with Growth::kNow, because the full ring would be followed by a larger one.
bool RingGrowable(const ConnEnd& e, const RingLimits& limits);

// kNoMemory: the ring that the peer writes to can't be mapped (state/chunks.h).
enum class ReadStatus : uint8_t { kOk, kEmpty, kViolation, kNoMemory };
struct ReadResult {
  size_t bytes;
  ReadStatus status;  // kEmpty only with bytes = 0
};
enum class ReadMode : uint8_t { kTake, kPeek, kDiscard };

// Reads up to `want` bytes into `to` (null with kDiscard), under ep.rx.lock. A fault ends it before
// the record that has met it (`to` knows).
ReadResult RingRead(const ConnEnd& e, IovCursor* to, size_t want, ReadMode mode)
    PSTN_REQUIRES(e.ep->rx.lock);

// Whether a read would find data. Needs no lock: the fields of ep.rx may be another thread's that
// reads at this moment, in which case the answer is as good as any.
bool RingReadable(const ConnEnd& e);

// The same, and remembers what it has found: a program is told of it.
bool RingTell(const ConnEnd& e);
// Whether the peer has taken back what RingTell has found, under ep.rx.lock. No honest peer can.
bool RingTakenBack(const ConnEnd& e) PSTN_REQUIRES(e.ep->rx.lock);

// Bytes that wait to be read, counted up to `limit` (FIONREAD). Needs no lock, either.
size_t RingQueued(const ConnEnd& e, size_t limit);

// Whether the reader has taken everything that was written, under ep.tx.lock.
bool RingDrained(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock);

// Gives a drained transmit ring back, under ep.tx.lock. False if it isn't drained or there is none.
bool RingDetach(const ConnEnd& e, Pages pages) PSTN_REQUIRES(e.ep->tx.lock);

}  // namespace postern
