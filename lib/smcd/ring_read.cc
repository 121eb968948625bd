// SPDX-License-Identifier: Apache-2.0
// ring_read.cc - the reader of a ring. ring.h has the protocol and why it is safe.
#include "base/check.h"
#include "base/copy.h"
#include "base/lock.h"
#include "smcd/hold.h"
#include "smcd/ring.h"
#include "smcd/ring_record.h"

namespace postern {
namespace {

constexpr uint32_t kPublishBytes = 8192;  // return space at least so often within one read

// The memory may have become another connection's, whose payload is no atomic: the one formal race
// of the protocol (docs/concurrency.md). What is loaded counts only if ctl.ring, loaded after it,
// is still the same, and then no other can have it: ThreadSanitizer, which is kept from the first
// load, sees a second.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#if defined(__clang__)  // to which no_sanitize says nothing of atomics
#define PSTN_UNSEEN __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define PSTN_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#endif
PSTN_UNSEEN uint64_t LoadHint(const uint64_t& header) {  // [R3]
  return __atomic_load_n(&header, __ATOMIC_ACQUIRE);     // [R3]
}
#else
constexpr bool kThreadSanitizer = false;
uint64_t LoadHint(const uint64_t& header) { return LoadAcquire(header); }  // [R3]
#endif

// Whether the ring that is being read still is the connection's, when `desc` is the writer's word.
bool IsValid(uint64_t reading, uint64_t desc) {
  return desc == reading ||
         ((desc & PSTN_RING_F_SWITCH) != 0 && RingGen(desc) == ((RingGen(reading) + 1u) & 0xffffu));
}

// The peer's word for where its ring is. What of it would mean something in rx.ring is not the
// peer's to say.
uint64_t PeerRing(const ConnEnd& e) {
  return LoadAcquire(e.peer_ctl().ring) & ~(PSTN_RING_F_PENDING | PSTN_RING_F_FRESH);  // [R2]
}

// The peer's ring is nowhere here: whose fault that is.
Look Nowhere(const ConnEnd& e, uint64_t desc) {
  return IsUnmappedRing(e.lgr, e.side ^ 1u, desc) ? Look::kNoMemory : Look::kViolation;
}

// Inlined where each message is read.
[[gnu::always_inline]] inline Look LookHere(const ConnEnd& e, ReadPlace& p, uint64_t& len,
                                            RingPlace& ring) {
  for (int steps = 0; steps < 6; steps++) {
    if ((p.ring & PSTN_RING_PLACE) == 0) {
      uint64_t desc = PeerRing(e);  // [R2]
      if ((desc & PSTN_RING_PLACE) == 0) return Look::kEmpty;
      // It has grown before we came to read the ring that it began in: that one is first.
      if ((desc & PSTN_RING_F_SWITCH) != 0)
        desc = LoadRelaxed(e.peer_ctl().prev_ring) & ~(PSTN_RING_F_PENDING | PSTN_RING_F_FRESH);
      if (RingAt(e.lgr, e.side ^ 1u, desc).base == nullptr) return Nowhere(e, desc);
      p = {desc, 0};
      continue;
    }
    ring = RingAt(e.lgr, e.side ^ 1u, p.ring);
    if (ring.base == nullptr) return Nowhere(e, p.ring);
    // A ring that is known to be gone is not looked at: that would give it pages again.
    uint64_t desc = PeerRing(e);
    uint64_t h = 0;
    if (IsValid(p.ring, desc)) {
      h = LoadHint(HeaderAt(ring.base, p.off));  // [R3]
      desc = PeerRing(e);                        // after the header, see ring.h
    }
    if (!IsValid(p.ring, desc)) {  // it was drained and taken away
      p = {0, 0};
      continue;
    }
    if (h == 0) return Look::kEmpty;
    if (kThreadSanitizer) h = LoadAcquire(HeaderAt(ring.base, p.off));  // [R3]
    if (h == PSTN_REC_WRAP) {
      if (p.off == 0) return Look::kViolation;
      p.off = 0;
      continue;
    }
    if (h == PSTN_REC_SWITCH) {
      if (desc == p.ring) return Look::kViolation;
      if (RingAt(e.lgr, e.side ^ 1u, desc).base == nullptr) return Nowhere(e, desc);
      p = {desc, 0};
      continue;
    }
    if ((h & PSTN_REC_HELD) != 0 && h < PSTN_REC_WRAP) [[unlikely]] {
      if (!HoldIsOver(LoadAcquire(e.peer_ctl().held))) {                        // [R7]
        if (LoadAcquire(HeaderAt(ring.base, p.off)) == h) return Look::kEmpty;  // [R3]
        continue;  // it has just been sent, and the time is that of others
      }
      h &= ~PSTN_REC_HELD;
    }
    if (h > ring.bytes || p.off + RecordBytes(h) > ring.bytes - kLine) return Look::kViolation;
    len = h;
    return Look::kRecord;
  }
  return Look::kViolation;
}

}  // namespace

Look LookAt(const ConnEnd& e, ReadPlace& p, uint64_t& len, RingPlace& ring) {
  return LookHere(e, p, len, ring);
}

namespace {

void Publish(const ConnEnd& e, const pstn_rx& rx) PSTN_REQUIRES(rx.lock) {
  uint64_t word = static_cast<uint64_t>(RingGen(rx.ring)) << 32 | rx.off;
  if (LoadRelaxed(e.pos().read) != word)
    StoreRelease(e.pos().read, word);  // [R1]: its copies are done
}

// The reader's place in its ring, in one store: what it was or what it is, if it dies.
void StorePlace(pstn_rx& rx, uint32_t off, uint32_t rec_done) PSTN_REQUIRES(rx.lock) {
  StoreRelaxed(rx.at, static_cast<uint64_t>(rec_done) << 32 | off);
}

// To the ring's first record: what is between comes back as well, and a writer that is bound to a
// budget has counted it.
void SkipTo(pstn_rx& rx, uint32_t off, uint32_t ring_bytes) PSTN_REQUIRES(rx.lock) {
  if (rx.off < ring_bytes) rx.unreturned += ring_bytes - rx.off;
  StorePlace(rx, off, 0);
}

// To the first record of another ring. A reader that dies in between has arrived (ReaderAt).
void GoToRing(pstn_rx& rx, uint64_t ring) PSTN_REQUIRES(rx.lock) {
  StoreRelaxed(rx.ring, ring | PSTN_RING_F_FRESH);
  DeathFence();                      // [Z1]
  StoreRelease(rx.at, uint64_t{0});  // [R6]
  DeathFence();                      // [Z1]
  StoreRelease(rx.ring, ring);       // [R6]
}

}  // namespace

ReadResult RingRead(const ConnEnd& e, IovCursor* to, size_t want, ReadMode mode) {
  pstn_rx& rx = e.ep->rx;
  AssertHeld(rx.lock);
  if ((rx.ring & PSTN_RING_F_FRESH) != 0) [[unlikely]]
    GoToRing(rx, rx.ring & ~PSTN_RING_F_FRESH);
  ReadPlace p = {rx.ring, rx.off};
  uint32_t rec_done = rx.rec_done;
  size_t done = 0, unpublished = 0;
  ReadStatus status = ReadStatus::kOk;
  while (done < want) {
    uint64_t len = rx.rec_len;
    RingPlace ring = {nullptr, 0};
    if (rec_done == 0 || mode == ReadMode::kPeek) {
      ReadPlace before = p;
      Look look = LookHere(e, p, len, ring);
      if (mode != ReadMode::kPeek && before.ring != p.ring)
        GoToRing(rx, p.ring);  // each ring begins at 0
      else if (mode != ReadMode::kPeek && before.off != p.off)
        SkipTo(rx, p.off, ring.bytes);
      if (look != Look::kRecord) {
        if (look == Look::kViolation)
          status = ReadStatus::kViolation;
        else if (look == Look::kNoMemory)
          status = ReadStatus::kNoMemory;
        else if (done == 0)
          status = ReadStatus::kEmpty;
        break;
      }
      if (rec_done >= len) return {done, ReadStatus::kViolation};  // it shrank under a peek
    }
    if (ring.base == nullptr) ring = RingAt(e.lgr, e.side ^ 1u, p.ring);
    if (ring.base == nullptr && Nowhere(e, p.ring) == Look::kNoMemory)
      return {done, ReadStatus::kNoMemory};
    if (!PSTN_CHECK(ring.base != nullptr && p.off + RecordBytes(len) <= ring.bytes &&
                    rec_done < len))
      return {done, ReadStatus::kViolation};
    size_t n = len - rec_done < want - done ? len - rec_done : want - done;
    if (to != nullptr) {
      to->CopyIn(ring.base + p.off + PayloadOff(len) + rec_done, n);
      if (to->fault()) [[unlikely]]
        break;
    }
    done += n;
    rec_done += static_cast<uint32_t>(n);
    bool whole = rec_done == len;
    if (whole) {
      p.off += RecordBytes(len);
      rec_done = 0;
    }
    if (mode == ReadMode::kPeek) continue;
    // What the ring gets back, which is much more than the payload when records are short: a writer
    // that waits for room is told by this count (lib/stream/io.cc), and by nothing else.
    if (whole) rx.unreturned += RecordBytes(len);
    rx.rec_len = static_cast<uint32_t>(len);
    if (LoadRelaxed(rx.told) != 0) StoreRelaxed(rx.told, 0u);
    DeathFence();  // [Z1]
    StorePlace(rx, p.off, rec_done);
    StoreRelaxed(rx.bytes, rx.bytes + n);  // RingTell() reads it without the lock
    if (!whole) break;
    unpublished += RecordBytes(len);
    if (unpublished >= kPublishBytes) {
      Publish(e, rx);
      unpublished = 0;
    }
  }
  if (mode != ReadMode::kPeek && rx.ring != 0) Publish(e, rx);
  const bool ends = status == ReadStatus::kViolation || status == ReadStatus::kNoMemory;
  return {done, done != 0 && !ends ? ReadStatus::kOk : status};
}

namespace {

// Whether the reader still is where a look without its lock began. If it moved meanwhile, the look
// may have been at the offset of the one ring in the memory of the other, where nothing is.
bool IsSteady(const pstn_rx& rx, const ReaderPlace& began) {
  std::atomic_thread_fence(std::memory_order_acquire);  // [R6] after all that the look has loaded
  const ReaderPlace now = ReaderAt(rx);
  return now.ring == began.ring && now.off == began.off && now.rec_done == began.rec_done;
}

// Each look after the first means that another thread has read. A stack may lie, so there is an
// end.
constexpr int kLooks = 1000;

bool FindsSome(const ConnEnd& e, const ReaderPlace& at) {
  if (at.rec_done != 0) return true;
  ReadPlace p = {at.ring, at.off};
  uint64_t len;
  RingPlace ring;
  return LookAt(e, p, len, ring) != Look::kEmpty;
}

}  // namespace

bool RingReadable(const ConnEnd& e) {
  const pstn_rx& rx = e.ep->rx;
  for (int i = 0; i < kLooks; i++) {
    const ReaderPlace at = ReaderAt(rx);
    if (FindsSome(e, at)) return true;
    if (IsSteady(rx, at)) return false;
  }
  return true;  // the next reader finds out
}

namespace {

uint32_t ToldHere(const pstn_rx& rx) { return static_cast<uint32_t>(LoadRelaxed(rx.bytes)) + 1; }

}  // namespace

bool RingTell(const ConnEnd& e) {
  pstn_rx& rx = e.ep->rx;
  const uint32_t here = ToldHere(rx);
  const ReaderPlace at = ReaderAt(rx);
  if (!FindsSome(e, at)) return RingReadable(e);
  // A reader that moves counts what it takes after that: `here` is not its place any more.
  if (LoadRelaxed(rx.told) != here && IsSteady(rx, at) && ToldHere(rx) == here)
    StoreRelaxed(rx.told, here);
  return true;
}

bool RingTakenBack(const ConnEnd& e) {
  const pstn_rx& rx = e.ep->rx;
  const uint32_t told = LoadRelaxed(rx.told);
  return told != 0 && told == ToldHere(rx) && !RingReadable(e);
}

namespace {

size_t CountFrom(const ConnEnd& e, const ReaderPlace& at, size_t limit) {
  ReadPlace p = {at.ring, at.off};
  size_t total = 0;
  uint64_t len = 0;
  RingPlace ring;
  uint32_t rec_done = at.rec_done;
  // A liar can make a circle of records; no honest ring and the one before it hold more than this.
  constexpr size_t kMost = 2 * PSTN_RING2_BYTES;
  if (limit > kMost) limit = kMost;
  for (uint32_t guard = kMost / kLine; guard != 0 && total < limit; guard--) {
    if (LookAt(e, p, len, ring) != Look::kRecord || rec_done >= len) break;
    total += len - rec_done;
    rec_done = 0;
    p.off += RecordBytes(len);
  }
  return total < kMost ? total : kMost;
}

}  // namespace

size_t RingQueued(const ConnEnd& e, size_t limit) {
  for (int i = 0;; i++) {
    const ReaderPlace at = ReaderAt(e.ep->rx);
    const size_t total = CountFrom(e, at, limit);
    if (total >= limit || i == kLooks || IsSteady(e.ep->rx, at)) return total;
  }
}

}  // namespace postern
