// SPDX-License-Identifier: Apache-2.0
// corked.cc - see corked.h.
//
// The kernel's TCP holds back what does not fill a segment. With TCP_CORK the whole segments of a
// write go out; with MSG_MORE alone the first of them brings an acknowledgement at once, and that
// sends the rest. A ring that is full is sent, too, as the kernel does before it waits for memory.
#include "stream/corked.h"

#include <sys/socket.h>

#include "base/ip_address.h"
#include "smcd/hold.h"

namespace postern {
namespace {

constexpr size_t kUsualSegment = 32768;
constexpr uint64_t kPlace = ~(PSTN_HOLD_BYTES << PSTN_HOLD_BYTES_SHIFT | PSTN_HOLD_EOR);

// A segment over the loopback is half of the peer's window: of its first one, which has no scale,
// until something has been acknowledged.
size_t SegmentBytes(const pstn_ep& ep) PSTN_REQUIRES(ep.tx.lock) {
  constexpr size_t kWhole4 = 65483, kWhole6 = 65464;
  const uint64_t held = LoadRelaxed(ep.hold) >> PSTN_HOLD_BYTES_SHIFT & PSTN_HOLD_BYTES;
  const bool fresh =
      LoadRelaxed(ep.side) == 0 && LoadRelaxed(ep.rx.bytes) == 0 && ep.tx.bytes <= held;
  return !fresh ? kUsualSegment : (AddrIsV4(LoadAddr(ep.peer)) ? kWhole4 : kWhole6) / 2;
}

// Of `left` more bytes those that are not held back.
size_t SentNow(const ConnEnd& e, size_t left, Corked corked) PSTN_REQUIRES(e.ep->tx.lock) {
  AssertHeld(e.ep->tx.lock);
  if (corked == Corked::kNo) return left;
  const size_t segment = SegmentBytes(*e.ep), held = HeldBytes(e);
  if (held + left < segment) return 0;
  return corked == Corked::kMore ? left : (held + left) / segment * segment - held;
}

}  // namespace

size_t WriteCorked(const ConnEnd& e, IovCursor& from, const CorkedWrite& how, uint32_t& told) {
  AssertHeld(e.ep->tx.lock);
  bool sent = false;
  const bool record = (LoadRelaxed(e.ep->hold) & PSTN_HOLD_EOR) != 0;
  // Nor is more added where the reader may have passed.
  if (record || HoldIsOver(LoadRelaxed(e.ctl().held))) sent = HoldRelease(e);
  size_t done = 0;
  // A record that goes out is acknowledged as a segment is.
  const size_t left = from.left(), ahead = from.ahead;
  const size_t now = record && how.corked == Corked::kMore ? left : SentNow(e, left, how.corked);
  if (now != 0) {
    from.SetAside(left - now);
    from.ahead += left - now;
    done = RingWrite(e, from, how.limits, how.growth);
    from.SetAside(0);
    from.ahead = ahead;
    sent = HoldRelease(e) || sent || done != 0;
  }
  const uint64_t hold = LoadRelaxed(e.ep->hold);
  if (done == now && now != left && !from.fault()) {
    from.held = ((MonotonicNs() + kHoldNs) & ~PSTN_HELD_CORK) |
                (how.corked == Corked::kCork ? PSTN_HELD_CORK : 0);
    done += RingWrite(e, from, how.limits, how.growth);
    if (done != left && !from.fault()) {  // a segment is to fit
      from.ahead += kUsualSegment;
      done += RingWrite(e, from, how.limits, how.growth);
      from.ahead = ahead;
    }
    from.held = 0;
    if (how.ends_record && done == left) HoldEndsRecord(e);
  }
  if (done != left) sent = HoldRelease(e) || sent;
  const uint64_t holds = LoadRelaxed(e.ep->hold);
  const bool begins = holds != 0 && ((hold ^ holds) & kPlace) != 0;
  told = (sent ? Told::kSent : 0u) | (begins ? Told::kHold : 0u);
  return done;
}

}  // namespace postern
