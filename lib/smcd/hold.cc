// SPDX-License-Identifier: Apache-2.0
// hold.cc - see hold.h.
#include "smcd/hold.h"

#include "base/lock.h"
#include "smcd/ring_record.h"

namespace postern {
namespace {

uint32_t LineOf(uint64_t hold) {
  return static_cast<uint32_t>(hold >> PSTN_HOLD_LINE_SHIFT & PSTN_HOLD_LINE);
}

// The ring of the held record: the one in use, or the one before it. 0: the reader has left it.
uint64_t RingOf(const pstn_tx& tx, uint64_t hold) PSTN_REQUIRES(tx.lock) {
  const auto gen = static_cast<uint32_t>(hold >> PSTN_HOLD_GEN_SHIFT), now = RingGen(tx.ring);
  if (tx.ring != 0 && gen == now) return tx.ring;
  return gen == ((now - 1u) & 0xffffu) ? tx.old_ring : 0;
}

void Forget(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock) {
  AssertHeld(e.ep->tx.lock);
  StoreRelease(e.ctl().held, 0u);  // [R7] behind the header that was stored
  StoreRelaxed(e.ep->hold, 0u);
  e.ep->tx.holds = 0;
}

}  // namespace

uint64_t HoldBack(const ConnEnd& e, uint32_t at, uint32_t len, uint64_t held) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  const uint64_t hold = LoadRelaxed(e.ep->hold);
  if (tx.holds != 0 && hold != 0) {  // no reader comes to this one before the first
    StoreRelaxed(e.ep->hold, hold + (uint64_t{len} << PSTN_HOLD_BYTES_SHIFT));
    return len;
  }
  StoreRelease(e.ctl().held, held);  // [R7]
  tx.holds = 1;
  StoreRelaxed(e.ep->hold, uint64_t{RingGen(tx.ring)} << PSTN_HOLD_GEN_SHIFT |
                               uint64_t{len} << PSTN_HOLD_BYTES_SHIFT |
                               uint64_t{at / kLine} << PSTN_HOLD_LINE_SHIFT | len);
  DeathFence();  // [Z1] the record is there after what is needed to send it
  return len | PSTN_REC_HELD;
}

void HoldPassed(const ConnEnd& e) {
  const pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  const uint64_t hold = LoadRelaxed(e.ep->hold);
  if (hold == 0) return;
  const uint32_t at = LineOf(hold) * kLine;
  const bool here = static_cast<uint32_t>(hold >> PSTN_HOLD_GEN_SHIFT) == RingGen(tx.ring);
  // Unread is what lies from the reader's offset to ours.
  const bool unread =
      tx.peer <= tx.off ? at >= tx.peer && at < tx.off : at >= tx.peer || at < tx.off;
  if (!here || !unread) Forget(e);
}

bool HoldRelease(const ConnEnd& e) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  if (tx.holds == 0) return false;
  const uint64_t hold = LoadRelaxed(e.ep->hold);
  if (hold != 0) {
    const RingPlace ring = RingAt(e.lgr, e.side, RingOf(tx, hold));
    const uint64_t len = hold & PSTN_HOLD_LEN;
    const uint32_t at = LineOf(hold) * kLine;
    if (ring.base != nullptr && at < ring.bytes)
      StoreRelease(HeaderAt(ring.base, at), len);  // [R3]
    DeathFence();                                  // [Z1]
  }
  Forget(e);
  return hold != 0;
}

void HoldDrop(const ConnEnd& e) {
  AssertHeld(e.ep->tx.lock);
  if (e.ep->tx.holds == 0) return;
  if (LoadRelaxed(e.ep->hold) == 0 || HoldIsOver(LoadRelaxed(e.ctl().held))) {
    (void)HoldRelease(e);
    return;
  }
  StoreRelease(e.ctl().held, PSTN_HELD_NEVER);  // [R7]
  StoreRelaxed(e.ep->hold, 0u);
  e.ep->tx.holds = 0;
}

void HoldEndsRecord(const ConnEnd& e) {
  AssertHeld(e.ep->tx.lock);
  const uint64_t hold = LoadRelaxed(e.ep->hold);
  if (hold != 0) StoreRelaxed(e.ep->hold, hold | PSTN_HOLD_EOR);
}

uint32_t HeldBytes(const ConnEnd& e) {
  const uint64_t hold = LoadRelaxed(e.ep->hold);
  const uint64_t held = LoadRelaxed(e.ctl().held);
  if (hold == 0 || held == 0 || HoldIsOver(held)) return 0;
  return static_cast<uint32_t>(hold >> PSTN_HOLD_BYTES_SHIFT & PSTN_HOLD_BYTES);
}

void HoldByCork(const ConnEnd& e) {
  AssertHeld(e.ep->tx.lock);
  if (e.ep->tx.holds != 0 && LoadRelaxed(e.ep->hold) != 0) FetchOr(e.ctl().held, PSTN_HELD_CORK);
}

void SendHeld(Bells& b, const ConnEnd& e) {
  NoteNews(b);
  Lock(e.ep->tx.lock);
  const bool some = HoldRelease(e);
  Unlock(e.ep->tx.lock);
  if (some) AnnounceData(b, e);
}

void EndPeersHold(Bells& b, const ConnEnd& e) {
  uint64_t held = LoadRelaxed(e.peer_ctl().held);
  if (held == 0 || (held & PSTN_HELD_CORK) != 0 || held == PSTN_HELD_OVER || IsEngines(e)) return;
  if (CompareExchange(e.peer_ctl().held, held, PSTN_HELD_OVER))
    PostHeldOver(b, e.lgr, e.side, e.ep->conn_idx);
}

uint64_t PeersHoldEnds(const ConnEnd& e) {
  const uint64_t held = LoadRelaxed(e.peer_ctl().held);
  if (held == 0 || held == PSTN_HELD_NEVER || IsEngines(e) || HoldIsOver(held)) return UINT64_MAX;
  return held & ~PSTN_HELD_CORK;
}

}  // namespace postern
