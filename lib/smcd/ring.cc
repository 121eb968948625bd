// SPDX-License-Identifier: Apache-2.0
// ring.cc - the writer of a ring. ring.h has the protocol and why it is safe.
#include "smcd/ring.h"

#include "base/check.h"
#include "base/copy.h"
#include "base/lock.h"
#include "base/sys.h"
#include "base/tsan.h"
#include "smcd/hold.h"
#include "smcd/notify.h"
#include "smcd/ring_record.h"
#include "state/address_limit.h"

namespace postern {
namespace {

constexpr uint32_t kWindow = 512;   // look for an early wrap each so many bytes, at first
constexpr uint32_t kAhead = 1024;   // lines so far before the write offset are fetched
constexpr uint32_t kChunk = 16384;  // longer writes become several records: the reader
                                    // copies one while the writer fills the next
constexpr uint64_t kPlaceMask = (1ull << 44) - 1;  // class and page of a descriptor

// Takes over the reader's offset, if it is one that an honest reader could have: 64-byte aligned
// and within what is unread, between the last known offset and the write offset.
void LearnReadOffset(const ConnEnd& e, uint32_t ring_bytes) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  uint64_t read = LoadAcquire(e.peer_pos().read);                     // [R1]: its copies are done
  if (static_cast<uint32_t>(read >> 32) != RingGen(tx.ring)) return;  // still in the ring before
  uint32_t r = static_cast<uint32_t>(read);
  bool unread_is_straight = tx.peer <= tx.off;
  bool inside = unread_is_straight ? (r >= tx.peer && r <= tx.off) : (r >= tx.peer || r <= tx.off);
  if (r % kLine == 0 && r < ring_bytes && inside) {
    StoreRelaxed(tx.peer, r);
    if (tx.holds != 0) [[unlikely]]
      HoldPassed(e);
  }
}

// Of a reader that has not set SO_RCVBUF: tcp_rmem's default, which the kernel fills whole.
constexpr uint32_t kRcvRoom = 131072;

uint64_t BudgetOf(const ConnEnd& e, uint32_t lines) {
  const uint32_t said = LoadRelaxed(e.peer_ctl().rcv_room);
  return uint64_t{lines} * kLine + (said != 0 ? said : kRcvRoom) / kLine * kLine;
}

// Ring bytes that a program with a budget lets be unread. At least an eighth of the ring: the
// reader announces space when a sixteenth has come back (ReturnSpace), so a writer that waits for
// it has to have more than that before it.
uint64_t Allowed(const ConnEnd& e, uint32_t budget, uint32_t ring_bytes) {
  const uint64_t all = BudgetOf(e, budget);
  return all < ring_bytes / 8 ? ring_bytes / 8 : all;
}

// Ring bytes that the reader has not given back, as far as the writer knows; with those in the ring
// before, if the reader is still there.
uint32_t Unread(const ConnEnd& e, const pstn_tx& tx, uint32_t ring_bytes) PSTN_REQUIRES(tx.lock) {
  const uint32_t here = tx.off >= tx.peer ? tx.off - tx.peer : ring_bytes - tx.peer + tx.off;
  const uint64_t old = LoadRelaxed(tx.old_ring);
  if (old == 0) return here;
  const uint64_t read = LoadAcquire(e.peer_pos().read);  // [R1]
  const auto gen = static_cast<uint32_t>(read >> 32);
  if (gen == RingGen(LoadRelaxed(tx.ring))) return here;
  const uint32_t bytes = RingBytes(RingClass(old) % PSTN_SLAB_CLASSES);
  const auto mark = static_cast<uint32_t>((old >> PSTN_RING_OLD_MARK_SHIFT) * kLine % bytes);
  const bool begun = gen == ((RingGen(LoadRelaxed(tx.ring)) - 1u) & 0xffffu);
  const uint32_t at = begun ? static_cast<uint32_t>(read) % bytes : 0;
  return here + (mark >= at ? mark - at : bytes - at + mark);
}

// How much of `want` the budget lets be written; 0: the reader has to read first.
size_t Within(const ConnEnd& e, uint32_t ring_bytes, size_t want) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  const uint64_t allowed = Allowed(e, LoadRelaxed(tx.budget), ring_bytes);
  if (Unread(e, tx, ring_bytes) + RecordBytes(want) > allowed) LearnReadOffset(e, ring_bytes);
  const uint32_t unread = Unread(e, tx, ring_bytes);
  const uint64_t left = unread < allowed ? allowed - unread : 0;
  if (RecordBytes(want) <= left) return want;
  return left >= 2 * kLine ? left - kLine : 0;
}

// What a writer that died in the middle left behind: a record is published before tx.off moves.
void RepairWriter(const ConnEnd& e, const RingPlace& ring) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  for (uint32_t guard = 0; guard < ring.bytes / kLine; guard++) {
    uint64_t h = LoadAcquire(HeaderAt(ring.base, tx.off));  // [R3]
    if (h == 0) return;
    if (h < PSTN_REC_WRAP) h &= ~PSTN_REC_HELD;
    if (h == PSTN_REC_WRAP) {
      StoreRelaxed(tx.off, 0u);
    } else if (h <= ring.bytes && tx.off + RecordBytes(h) < ring.bytes) {
      StoreRelaxed(tx.off, tx.off + RecordBytes(h));
      tx.bytes += h;
    } else {
      return;  // not ours
    }
  }
}

uint32_t ClassFor(size_t bytes, const RingLimits& limits) {
  uint32_t cls = limits.class_min;
  while (cls < limits.class_max && bytes * 2 > RingBytes(cls)) cls++;
  return cls;
}

// Gives the memory of the ring before back once the reader has left it.
void DropOldRing(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  if (tx.old_ring == 0) return;
  if (((tx.old_ring ^ tx.ring) & kPlaceMask) == 0) {  // a writer died before the move began
    StoreRelaxed(tx.old_ring, 0u);
    return;
  }
  uint64_t read = LoadAcquire(e.peer_pos().read);  // [R1]
  if (static_cast<uint32_t>(read >> 32) != RingGen(tx.ring)) return;
  const uint64_t old = tx.old_ring;
  StoreRelaxed(tx.old_ring, 0u);  // first: after a death in between it must not be given back twice
  GiveRing(*e.ref, e.lgr, old, Pages::kKeep);
}

// Where the next ring starts. Its first header is cleared before anyone is told of it.
bool TakeNextRing(const ConnEnd& e, uint32_t cls, uint64_t before, uint64_t flags, uint64_t* desc) {
  const uint32_t chunks = ChunksOf(*e.ref, e.lgr);
  uint64_t place = TakeRing(*e.ref, cls, chunks);
  RingPlace r = RingAt(e.lgr, e.side, place);
  while (place != 0 && r.base == nullptr) {  // no memory: a smaller one
    GiveRing(*e.ref, e.lgr, place, Pages::kKeep);
    place = RingClass(place) != 0 ? TakeRing(*e.ref, RingClass(place) - 1, chunks) : 0;
    r = RingAt(e.lgr, e.side, place);
  }
  if (place == 0) return false;
  StoreRelaxed(HeaderAt(r.base, 0), 0u);
  uint64_t gen = (RingGen(before) + 1u) & 0xffffu;
  *desc = gen << PSTN_RING_GEN_SHIFT | flags | place;
  return true;
}

// A ring comes into use by one store, of tx.ring with PSTN_RING_F_PENDING. What follows from it is
// here, and may be done again: by the next writer, if this one dies.
//
//   tx.old_ring  the ring before, and where its mark will be   -- dies here: the move never was
//   tx.ring      the new one, pending                          -- from here on it is finished
//   tx.off ...   its first line
//   ctl          prev_ring, ring, the mark in the old ring: now the reader is told
//   tx.ring      not pending
void FinishMove(const ConnEnd& e) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  const uint64_t desc = tx.ring & ~PSTN_RING_F_PENDING, old = tx.old_ring;
  const RingPlace before = RingAt(e.lgr, e.side, old);
  const uint64_t mark = (old >> PSTN_RING_OLD_MARK_SHIFT) * kLine;
  const bool moves = old != 0 && before.base != nullptr && mark < before.bytes;
  StoreRelaxed(tx.off, 0u);
  StoreRelaxed(tx.peer, 0u);
  tx.window = tx.step = kWindow;
  tx.blocked = 0;
  if (moves) {
    const uint64_t gen = (RingGen(desc) - 1u) & 0xffffu;
    StoreRelaxed(e.ctl().prev_ring, gen << PSTN_RING_GEN_SHIFT | (old & kPlaceMask));
  }
  StoreRelease(e.ctl().ring, desc);  // [R2]: the first header is 0
  // [R3]
  if (moves) StoreRelease(HeaderAt(before.base, static_cast<uint32_t>(mark)), PSTN_REC_SWITCH);
  DeathFence();  // [Z1]
  StoreRelaxed(tx.ring, desc);
}

void BeginMove(const ConnEnd& e, uint64_t desc) PSTN_REQUIRES(e.ep->tx.lock) {
  DeathFence();  // [Z1]
  StoreRelaxed(e.ep->tx.ring, desc | PSTN_RING_F_PENDING);
  DeathFence();  // [Z1]
  FinishMove(e);
}

bool Attach(const ConnEnd& e, uint32_t cls) PSTN_REQUIRES(e.ep->tx.lock) {
  uint64_t desc;
  if (!TakeNextRing(e, cls, LoadRelaxed(e.ctl().ring), 0, &desc)) return false;
  BeginMove(e, desc);
  return true;
}

// Moves the stream to a larger ring. The old one is given back when the reader has left it.
bool Grow(const ConnEnd& e, uint32_t cls) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  DropOldRing(e);
  if (tx.old_ring != 0) return false;
  uint64_t desc;
  if (!TakeNextRing(e, cls, tx.ring, PSTN_RING_F_SWITCH, &desc)) return false;
  if (RingClass(desc) <= RingClass(tx.ring)) {  // only a smaller one was left
    GiveRing(*e.ref, e.lgr, desc & kPlaceMask, Pages::kKeep);
    return false;
  }
  StoreRelaxed(tx.old_ring, static_cast<uint64_t>(tx.off / kLine) << PSTN_RING_OLD_MARK_SHIFT |
                                (tx.ring & kPlaceMask));
  BeginMove(e, desc);
  return true;
}

// Room for one record (header included) at the write offset, leaving a line for the next header.
uint32_t RoomAt(const pstn_tx& tx, uint32_t ring_bytes) PSTN_REQUIRES(tx.lock) {
  uint32_t end = tx.off >= tx.peer ? ring_bytes : tx.peer;
  return end - tx.off - kLine;
}
uint32_t RoomAtStart(const pstn_tx& tx) PSTN_REQUIRES(tx.lock) {
  return tx.off >= tx.peer && tx.peer >= 2 * kLine ? tx.peer - kLine : 0;
}

void FetchToWrite(const void* at) {
#if defined(__x86_64__)
  // For any x86-64 the compiler would have it fetched for reading, and the first store ask again.
  __asm__ volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}
// The next records' lines were last read by the other core, and are its to give. To ask for them
// while this call goes on takes their way out of the next calls, whose locked instructions wait for
// stores. Only what is known to be free: the reader needs the rest.
void FetchAhead(const pstn_tx& tx, const RingPlace& ring, uint32_t bytes) PSTN_REQUIRES(tx.lock) {
  if (bytes > kAhead || RoomAt(tx, ring.bytes) < kAhead + bytes) return;
  const uint8_t* at = ring.base + tx.off + kAhead;
  for (uint32_t i = 0; i < bytes; i += kLine) FetchToWrite(at + i);
}

// Puts one record of `len` bytes at `at` (not the write offset: a wrap) or at the write offset.
// False: the program's memory is not there; nothing has happened.
[[gnu::always_inline]] inline bool Put(const ConnEnd& e, const RingPlace& ring, IovCursor& from,
                                       uint32_t len, bool wrap) PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  uint32_t at = wrap ? 0 : tx.off;
  uint32_t next = at + RecordBytes(len);
  uint8_t* payload = ring.base + at + PayloadOff(len);
  if (len >= kLargeCopy && t_copy_chooser.Next(len) == CopyWay::kPastCache) {
    from.StreamOut(payload, len);
  } else {
    from.CopyOut(payload, len);
  }
  if (from.fault()) [[unlikely]]
    return false;
  if (LoadRelaxed(HeaderAt(ring.base, next)) != 0) StoreRelaxed(HeaderAt(ring.base, next), 0u);
  uint64_t header = len;
  if (from.held != 0) [[unlikely]]
    header = HoldBack(e, at, len, from.held);
  StoreRelease(HeaderAt(ring.base, at), header);  // [R3]
  if (wrap) {
    StoreRelease(HeaderAt(ring.base, tx.off), PSTN_REC_WRAP);  // [R3]
    tx.window = tx.step;
  }
  StoreRelaxed(tx.off, next);
  FetchAhead(tx, ring, RecordBytes(len));
  tx.since += RecordBytes(len);
  tx.bytes += len;
  return true;
}

// A record to be written: so long, and where. Of no bytes: the ring is full.
struct NextRecord {
  uint32_t len = 0;
  bool wrap = false;
};

NextRecord PlanRecord(const ConnEnd& e, const RingPlace& ring, const IovCursor& from)
    PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  size_t want = from.left() < kChunk ? from.left() : kChunk;
  if (LoadRelaxed(tx.budget) != 0 && !from.promised) [[unlikely]] {
    want = Within(e, ring.bytes, want);
    if (want == 0) return {};
  }
  const uint32_t all = static_cast<uint32_t>(want), need = RecordBytes(want);
  bool looked = false;
  if (tx.off >= tx.window) {
    LearnReadOffset(e, ring.bytes);
    looked = true;
    bool drained = tx.peer == tx.off;
    // A look takes the line from the reader: seldom while it lags.
    tx.step = drained ? kWindow : tx.step < ring.bytes / 16 ? tx.step * 2 : tx.step;
    if (drained) {
      tx.burst = tx.since > tx.burst - tx.burst / 8 ? tx.since : tx.burst - tx.burst / 8;
      tx.since = 0;
      // Start again at 0, to stay in few lines, if what is usually written at a time fits twice:
      // the rest of the ring is out of reach until the reader has followed. Not below a quarter, so
      // that a reader that drains what blocks us has taken enough to think of us.
      // Nor with a budget, which what is skipped counts against.
      if (tx.off >= ring.bytes / 4 && RoomAtStart(tx) >= need + 2 * tx.burst &&
          LoadRelaxed(tx.budget) == 0)
        return {all, true};
    }
    tx.window = tx.off + tx.step;
  }
  for (;;) {
    if (RoomAt(tx, ring.bytes) >= need) return {all, false};
    if (RoomAtStart(tx) >= need) return {all, true};
    if (looked) break;
    LearnReadOffset(e, ring.bytes);
    looked = true;
  }
  // Not all of it: fill what is there, if that is worth a record.
  const uint32_t end = RoomAt(tx, ring.bytes), start = RoomAtStart(tx);
  const uint32_t room = end >= start ? end : start;
  if (room < kLine || (room < 512 && room < ring.bytes / 8)) return {};
  return {room - (room < kLongRecord ? PSTN_REC_HDR : kLine), end < start};
}

// The class of the ring that follows a full one of class `cls`; `cls` itself: stay. A stream that
// keeps filling its ring gets a larger one, at once if it is far too small.
uint32_t NextClass(uint32_t cls, uint32_t blocked, size_t left, const RingLimits& limits,
                   Growth growth) {
  if (cls >= limits.class_max) return cls;
  if (growth == Growth::kNow) return limits.class_max;
  uint32_t fits = ClassFor(left, limits);
  if (fits > cls) return fits;
  return blocked < 3 ? cls : cls + 1;
}

// Our own memory says that the ring is where no ring is: nothing more is written, and the peer is
// told that this end is over. The next send() reports it (CheckSend).
size_t Broken(const ConnEnd& e) {
  FetchOr(e.ep->flags, PSTN_EPF_HUNG | PSTN_EPF_SHUT_WR);
  FetchOr(e.ctl().flags, PSTN_CF_RST);
  return 0;
}

// The ring to write to, which is a new one of the class for `bytes` if there was none. Null base:
// there is none to be had.
[[gnu::always_inline]] inline RingPlace BeginWrite(const ConnEnd& e, size_t bytes,
                                                   const RingLimits& limits)
    PSTN_REQUIRES(e.ep->tx.lock) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  if (tx.ring == 0 && !Attach(e, ClassFor(bytes, limits))) return {};
  if ((tx.ring & PSTN_RING_F_PENDING) != 0) [[unlikely]]
    FinishMove(e);
  if (LoadRelaxed(tx.old_ring) != 0) DropOldRing(e);
  const RingPlace ring = RingAt(e.lgr, e.side, tx.ring);
  if (!PSTN_CHECK(ring.base != nullptr && tx.off < ring.bytes)) {
    (void)Broken(e);
    return {};
  }
  if (LoadRelaxed(HeaderAt(ring.base, tx.off)) != 0) RepairWriter(e, ring);
  return ring;
}

}  // namespace

size_t RingMakeRoom(const ConnEnd& e, const RingLimits& limits, size_t want) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  // Headers and padding of two records, and the next header. They are next to each other, or the
  // first wraps early: where at least a quarter of the ring is free.
  constexpr uint32_t kWaste = 5 * kLine;
  RingPlace ring = BeginWrite(e, want, limits);
  if (want > kChunk) want = kChunk;
  while (ring.base != nullptr) {
    LearnReadOffset(e, ring.bytes);
    if (LoadRelaxed(tx.budget) != 0) want = Within(e, ring.bytes, want);
    if (want == 0) return 0;
    const uint32_t end = RoomAt(tx, ring.bytes), start = RoomAtStart(tx);
    const uint32_t room = end >= start ? end : start;
    const uint32_t most = room < ring.bytes / 8 + kWaste ? room - kWaste : ring.bytes / 8;
    if (room > kWaste) return want < most ? want : most;
    const uint32_t cls = RingClass(tx.ring);
    const uint32_t next = NextClass(cls, tx.blocked, want, limits, Growth::kNow);
    if (next == cls || !Grow(e, next)) return 0;
    ring = RingAt(e.lgr, e.side, tx.ring);
  }
  return 0;
}

size_t RingWrite(const ConnEnd& e, IovCursor& from, const RingLimits& limits, Growth growth) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  RingPlace ring = BeginWrite(e, from.left() + from.ahead, limits);
  if (ring.base == nullptr) return 0;
  size_t done = 0;
  while (from.left() != 0) {
    const NextRecord next = PlanRecord(e, ring, from);
    if (next.len != 0) [[likely]] {
      if (!Put(e, ring, from, next.len, next.wrap)) break;
      done += next.len;
      continue;
    }
    if (LoadRelaxed(tx.budget) != 0 && Within(e, ring.bytes, 1) == 0) break;
    uint32_t cls = RingClass(tx.ring);
    if (tx.blocked < UINT8_MAX) tx.blocked++;
    const uint32_t larger = NextClass(cls, tx.blocked, from.left() + from.ahead, limits, growth);
    if (larger == cls || !Grow(e, larger)) break;
    ring = RingAt(e.lgr, e.side, tx.ring);
  }
  tx.records++;
  TsanLeave(e.ref);  // the ring may be another connection's next, through a process of the family
  return done;
}

uint16_t RingLines(uint64_t bytes) {
  const uint64_t lines = (bytes + kLine - 1) / kLine;
  return lines == 0 ? 1 : lines > UINT16_MAX ? UINT16_MAX : static_cast<uint16_t>(lines);
}

uint64_t RingBudget(const ConnEnd& e) {
  const uint32_t lines = LoadRelaxed(e.ep->tx.budget);
  return lines != 0 ? BudgetOf(e, lines) : 0;
}

namespace {

// As the kernel's sk_stream_is_writeable(): a third of it is free. Over a VI that is a third of the
// writer's own, since what is under way counts with TCP_NOTSENT_LOWAT as what the reader has room
// for; and what Within() asks for.
bool HasBudget(const ConnEnd& e, const pstn_tx& tx, uint32_t budget, uint32_t ring_bytes)
    PSTN_REQUIRES(tx.lock) {
  if (budget == 0) return true;
  const uint64_t unread = Unread(e, tx, ring_bytes), all = Allowed(e, budget, ring_bytes);
  if (!PeerIsEngine(e)) return unread * 3 <= all * 2;
  const uint64_t third = uint64_t{budget} * kLine / 3;
  return unread + (third > 2 * kLine ? third : 2 * kLine) <= all;
}

// `fn` gets what is known of a ring in use, and if that is false once more, with what the reader
// says by now.
template <typename Fn>
bool LookAtRing(const ConnEnd& e, uint64_t desc, Fn fn) {
  const pstn_tx& tx = e.ep->tx;
  pstn_tx copy = {};
  AssertHeld(copy.lock);  // no other thread sees it
  copy.off = LoadRelaxed(tx.off);
  copy.peer = LoadRelaxed(tx.peer);
  copy.ring = desc;
  copy.old_ring = LoadRelaxed(tx.old_ring);
  const uint32_t bytes = RingBytes(RingClass(desc) % PSTN_SLAB_CLASSES);
  if (fn(copy, bytes)) return true;
  const uint64_t read = LoadAcquire(e.peer_pos().read);  // [R1]
  if (static_cast<uint32_t>(read >> 32) != RingGen(desc)) return false;
  copy.peer = static_cast<uint32_t>(read);
  return copy.peer < bytes && copy.peer % kLine == 0 && fn(copy, bytes);
}

}  // namespace

bool RingWritable(const ConnEnd& e) {
  const pstn_tx& tx = e.ep->tx;
  uint64_t desc = LoadRelaxed(tx.ring);
  if (desc == 0 || (desc & PSTN_RING_F_PENDING) != 0) return true;
  const uint32_t budget = LoadRelaxed(tx.budget);
  return LookAtRing(e, desc, [&](const pstn_tx& at, uint32_t bytes) {
    AssertHeld(at.lock);
    // An eighth of the ring in one piece: no wake-up for each freed line.
    const uint32_t end = RoomAt(at, bytes), start = RoomAtStart(at);
    return (end >= start ? end : start) >= bytes / 8 && HasBudget(e, at, budget, bytes);
  });
}

bool RingGrowable(const ConnEnd& e, const RingLimits& limits) {
  const pstn_tx& tx = e.ep->tx;
  uint64_t desc = LoadRelaxed(tx.ring);
  if (desc == 0 || RingClass(desc) >= limits.class_max) return false;
  const uint32_t budget = LoadRelaxed(tx.budget);
  if (budget != 0 && !LookAtRing(e, desc, [&](const pstn_tx& at, uint32_t bytes) {
        AssertHeld(at.lock);
        return HasBudget(e, at, budget, bytes);
      }))
    return false;
  if (LoadRelaxed(tx.old_ring) != 0 &&
      static_cast<uint32_t>(LoadAcquire(e.peer_pos().read) >> 32) != RingGen(desc))  // [R1]
    return false;
  const uint32_t chunks = ChunksOf(*e.ref, e.lgr);
  for (uint32_t cls = RingClass(desc) + 1; cls <= limits.class_max; cls++) {
    if (SlabHas(*e.ref, cls, chunks)) return true;
  }
  return false;
}

bool RingDrained(const ConnEnd& e) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  if (tx.ring == 0) return true;
  if ((tx.ring & PSTN_RING_F_PENDING) != 0) [[unlikely]]
    FinishMove(e);
  if (tx.old_ring != 0) {
    DropOldRing(e);
    if (tx.old_ring != 0) return false;
  }
  LearnReadOffset(e, RingBytes(RingClass(tx.ring)));
  uint64_t read = LoadAcquire(e.peer_pos().read);  // [R1]
  return tx.peer == tx.off && static_cast<uint32_t>(read >> 32) == RingGen(tx.ring);
}

bool RingDetach(const ConnEnd& e, Pages pages) {
  pstn_tx& tx = e.ep->tx;
  AssertHeld(tx.lock);
  if (tx.ring == 0 || !RingDrained(e)) return false;
  uint64_t desc = tx.ring;
  StoreRelaxed(tx.ring, 0u);
  // The generation stays, so that the next ring's differs.
  StoreRelease(e.ctl().ring, desc & ~((1ull << PSTN_RING_GEN_SHIFT) - 1));  // [R2]
  GiveRing(*e.ref, e.lgr, desc & kPlaceMask, pages);
  return true;
}

}  // namespace postern
