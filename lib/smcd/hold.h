// SPDX-License-Identifier: Apache-2.0
// hold.h - bytes that are in the ring and not to be read yet (MSG_MORE, TCP_CORK).
//
// The kernel's TCP holds less than a segment back until more is written, the program lets it go, or
// 200 ms have passed. Here the header of the first record that is held back says so, by a bit
// (PSTN_REC_HELD), and ctl.held says until when: the reader, which comes no further than that
// record, takes it for one that is not there before that time, and for any other after it.
//
//      | read | 4096 | HELD 100 | 20 | 300 | 0     the reader sees an empty ring at HELD
//
// To send what is held back is to store that header without the bit: one store, whatever follows.
// No process has to keep the time for that: a reader that sleeps knows ctl.held, and gets up then
// (event/held.h). A writer that dies has left it there; the one that ends its connection sends it.
//
// The writer keeps the place of that record in pstn_ep.hold. It must not write to it once the
// reader has passed, for the memory may be another record's. The reader passes after the time only,
// and the writer reuses no memory before it has seen where the reader is (HoldPassed).
//
// The writer may lie as always: a length is checked when the bit is taken off, and a time that is
// near again and again lets the reader look once in a millisecond.
#pragma once
#include "base/clock.h"
#include "smcd/notify.h"
#include "smcd/ring.h"

namespace postern {

// As the kernel's timer, whose least is 200 ms and a tick.
inline constexpr uint64_t kHoldNs = 204'000'000;

// Whether that time of ctl.held has come. 0: nothing is held, and a header that was seen is old.
inline bool HoldIsOver(uint64_t held) {
  if (held == 0 || held == PSTN_HELD_NEVER) return false;
  return (held & ~PSTN_HELD_CORK) <= MonotonicNs();
}

// ---- the writer's; under tx.lock.

// The header of a record at `at` that is to be held back until `held`, if it is the first.
uint64_t HoldBack(const ConnEnd& e, uint32_t at, uint32_t len, uint64_t held)
    PSTN_REQUIRES(e.ep->tx.lock);
// The reader has moved: perhaps past what was held back.
void HoldPassed(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock);
// Sends what is held back. True: there was some, and the peer is to be told (AnnounceData).
bool HoldRelease(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock);
// A connection is reset: what is held back is never sent.
void HoldDrop(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock);
// What is held back ends a record.
void HoldEndsRecord(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock);
// Bytes that are held back and whose time has not come. Without the lock a moment's answer.
uint32_t HeldBytes(const ConnEnd& e);
// The program sets TCP_CORK: what is held back stays so though the peer sends.
void HoldByCork(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock);
// Sends what is held back, and tells the peer.
void SendHeld(Bells& b, const ConnEnd& e) PSTN_EXCLUDES(e.ep->tx.lock);

// ---- the reader's.

// This side has sent something: the acknowledgement in it would have the peer send what it holds
// back, but for TCP_CORK.
void EndPeersHold(Bells& b, const ConnEnd& e);
// When a thread that waits for data has to look again; UINT64_MAX: when it is told. Asked before
// the last look.
uint64_t PeersHoldEnds(const ConnEnd& e);

}  // namespace postern
