// SPDX-License-Identifier: Apache-2.0
// slab.cc - see slab.h.
#include "state/slab.h"

#include <sys/mman.h>

#include "base/lock.h"
#include "base/sys.h"
#include "base/tsan.h"
#include "state/address_limit.h"

namespace postern {
namespace {

// A ring that is given back keeps its pages, so that the next owner faults none in, if no
// more of its class lie about than these: 1 MiB, 4 MiB and 8 MiB of a side. What a storm or a
// burst has used beyond goes back to the system at once.
constexpr uint32_t kWarmMax[PSTN_SLAB_CLASSES] = {256, 64, 8};

uint64_t* ClassMap(pstn_lgr_ref& ref, uint32_t cls) {
  return cls == 0 ? ref.ring0_map : cls == 1 ? ref.ring1_map : ref.ring2_map;
}
uint64_t* WarmMap(pstn_lgr_ref& ref, uint32_t cls) {
  return cls == 0 ? ref.ring0_warm : cls == 1 ? ref.ring1_warm : ref.ring2_warm;
}

// A bit that differs from `skip`'s: in the word of `hint`, or the first one there is, so that what
// is in use lies in few chunks. PSTN_NONE: none.
uint32_t FindBit(const uint64_t* map, uint64_t skip, uint32_t bits, uint32_t hint) {
  const uint32_t words = (bits + 63) / 64;
  uint32_t w = hint / 64;
  for (uint32_t next = 0; next <= words; w = next++) {
    if (w >= words) continue;
    const uint64_t found = map[w] ^ skip;
    if (found == 0) continue;
    const uint32_t bit = w * 64 + static_cast<uint32_t>(__builtin_ctzll(found));
    if (bit < bits) return bit;
  }
  return PSTN_NONE;
}
uint32_t FindClear(const uint64_t* map, uint32_t bits, uint32_t hint) {
  return FindBit(map, ~uint64_t{0}, bits, hint);
}
uint32_t FindSet(const uint64_t* map, uint32_t bits, uint32_t hint) {
  return FindBit(map, 0, bits, hint);
}

bool TestBit(const uint64_t* map, uint32_t i) { return (map[i / 64] >> (i % 64) & 1u) != 0; }
// Under ref.lock; atomic for looks without it.
void SetBit(uint64_t* map, uint32_t i) {
  StoreRelaxed(map[i / 64], map[i / 64] | 1ull << (i % 64));
}
void ClearBit(uint64_t* map, uint32_t i) {
  StoreRelaxed(map[i / 64], map[i / 64] & ~(1ull << (i % 64)));
}

uint64_t PageOf(const pstn_lgr_ref& ref, uint32_t cls, uint32_t i) {
  return SlabPage(ref.side) + ClassOff(cls) / 4096u +
         static_cast<uint64_t>(i) * (RingBytes(cls) / 4096u);
}

// Whether pages may go back to the system. Not those of memory that another user has, too: to punch
// a hole waits for the inode's lock, which a write() of that user's holds for as long as the page
// that it writes from does not come (a file system of its own).
bool MayDrop(const pstn_lgr_ref& ref) { return ref.remote == PSTN_LGR_SAME_USER; }

void DropPages(const pstn_lgr_ref& ref, uint8_t* lgr, uint32_t cls, uint32_t i) {
  uint8_t* const ring = RingPageOf(lgr, PageOf(ref, cls, i) - SlabPage(0));
  if (ring == nullptr) return;
  (void)sys::Call(SYS_madvise, ring, static_cast<long>(RingBytes(cls)),
                  static_cast<long>(MADV_REMOVE));
}

// A process may die between a bit and its count, which is then one short until the side ends.
void CountDown(uint32_t& count) {
  if (LoadRelaxed(count) != 0) StoreRelaxed(count, LoadRelaxed(count) - 1);
}

// A warm ring is free at each instruction: a death in between leaves pages behind at worst.
void SetWarm(pstn_lgr_ref& ref, uint32_t cls, uint32_t i) PSTN_REQUIRES(ref.lock) {
  SetBit(WarmMap(ref, cls), i);
  StoreRelaxed(ref.warm[cls], ref.warm[cls] + 1);
}
void ClearWarm(pstn_lgr_ref& ref, uint32_t cls, uint32_t i) PSTN_REQUIRES(ref.lock) {
  if (!TestBit(WarmMap(ref, cls), i)) return;
  ClearBit(WarmMap(ref, cls), i);
  CountDown(ref.warm[cls]);
}

// Pages go before anyone else can be given the ring.
void GiveRingLocked(pstn_lgr_ref& ref, uint8_t* lgr, uint64_t desc, Pages pages)
    PSTN_REQUIRES(ref.lock) {
  uint32_t cls = RingClass(desc);
  if (desc == 0 || cls >= PSTN_SLAB_CLASSES) return;
  uint64_t page = desc & ((1ull << 40) - 1);
  const ClassPlace& place = kPlaces[cls];
  // Huge if it is before the first.
  uint64_t nth = (page - (SlabPage(ref.side) + place.first_page)) >> place.pages_shift;
  if (nth >= place.count) return;
  uint32_t i = static_cast<uint32_t>(nth);
  if (!TestBit(ClassMap(ref, cls), i)) return;
  const bool warm = !MayDrop(ref) || (pages == Pages::kKeep && ref.warm[cls] < kWarmMax[cls]);
  if (!warm) DropPages(ref, lgr, cls, i);
  ClearBit(ClassMap(ref, cls), i);
  if (warm) SetWarm(ref, cls, i);
  ref.slab_hint[cls] = i;  // last used first
  CountDown(ref.rings);
}

bool UnmakeLocked(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn) PSTN_REQUIRES(ref.lock) {
  if (!TestBit(ref.zombie_map, conn)) return false;
  ClearBit(ref.zombie_map, conn);
  CountDown(ref.zombies);
  GiveRingLocked(ref, lgr, ref.zombie_ring[conn], Pages::kKeep);
  GiveRingLocked(ref, lgr, ref.zombie_old[conn], Pages::kKeep);
  ref.zombie_ring[conn] = ref.zombie_old[conn] = 0;
  return true;
}

void BuryLocked(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn) PSTN_REQUIRES(ref.lock) {
  if (!UnmakeLocked(ref, lgr, conn)) return;
  if (ref.side == 0 && TestBit(ref.conn_map, conn)) {
    ClearBit(ref.conn_map, conn);
    CountDown(ref.conns);
  }
}

// Slots that we have closed and the peer perhaps not: so many are looked at for one that is wanted.
// Each look is at a line that the peer may have written last; a storm of closes leaves thousands.
constexpr uint32_t kLooks = 16;

bool IsLeft(uint8_t* lgr, uint32_t conn) {
  return LoadAcquire(LgrConn(lgr, conn).setup.state) == PSTN_CS_FREE;  // [C1]
}

// Rings of a class that may be given out. Of the smallest there is one for each connection, however
// it has come to its slot.
uint32_t RingsIn(uint32_t cls, uint32_t chunks) {
  const uint64_t rings = uint64_t{chunks} * (kChunkBytes / RingBytes(cls));
  return cls == 0 || rings > RingCount(cls) ? RingCount(cls) : static_cast<uint32_t>(rings);
}

uint32_t UseLocked(pstn_lgr_ref& ref, uint32_t conn) PSTN_REQUIRES(ref.lock) {
  SetBit(ref.conn_map, conn);
  StoreRelaxed(ref.conns, ref.conns + 1);
  return conn;
}

// All are given out: one that the peer has left meanwhile. The next call looks at the next ones.
uint32_t TakeLeftLocked(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t slots) PSTN_REQUIRES(ref.lock) {
  const uint32_t words = slots / 64, start = ref.conn_hint % slots;
  uint32_t looks = kLooks;
  for (uint32_t n = 0; n <= words; n++) {
    uint32_t w = (start / 64 + n) % words;
    uint64_t bits = ref.zombie_map[w] & (n == 0 ? ~uint64_t{0} << (start % 64) : ~uint64_t{0});
    for (; bits != 0; bits &= bits - 1) {
      if (looks-- == 0) return PSTN_NONE;
      uint32_t i = w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      ref.conn_hint = i + 1;
      if (!IsLeft(lgr, i)) continue;
      BuryLocked(ref, lgr, i);
      return UseLocked(ref, i);
    }
  }
  return PSTN_NONE;
}

}  // namespace

bool SlabHas(pstn_lgr_ref& ref, uint32_t cls, uint32_t chunks) {
  const uint64_t* map = ClassMap(ref, cls);
  const uint32_t count = RingsIn(cls, chunks);
  for (uint32_t i = 0; i < count; i += 64) {
    const uint64_t beyond = count - i < 64 ? ~uint64_t{0} << (count - i) : 0;
    if ((LoadRelaxed(map[i / 64]) | beyond) != ~uint64_t{0}) return true;
  }
  return false;
}

bool IsUnmappedRing(uint8_t* lgr, uint32_t side, uint64_t desc) {
  if (!IsRing(side, desc)) return false;
  const uint64_t page = (desc & PSTN_RING_PLACE) - SlabPage(0);
  return IsAgreed(lgr, static_cast<uint32_t>(page / kChunkPages));
}

uint64_t TakeRing(pstn_lgr_ref& ref, uint32_t cls, uint32_t chunks) {
  Guard g(ref.lock);
  TsanCome(&ref);
  for (uint32_t c = cls + 1; c-- > 0;) {
    const uint32_t hint = ref.slab_hint[c], count = RingsIn(c, chunks);
    uint32_t i = ref.warm[c] != 0 ? FindSet(WarmMap(ref, c), count, hint) : PSTN_NONE;
    if (i == PSTN_NONE) i = FindClear(ClassMap(ref, c), count, hint);
    if (i == PSTN_NONE) continue;
    ClearWarm(ref, c, i);
    SetBit(ClassMap(ref, c), i);
    ref.slab_hint[c] = i;
    StoreRelaxed(ref.rings, ref.rings + 1);
    return static_cast<uint64_t>(c) << PSTN_RING_CLASS_SHIFT | PageOf(ref, c, i);
  }
  return 0;
}

void GiveRing(pstn_lgr_ref& ref, uint8_t* lgr, uint64_t desc, Pages pages) {
  Guard g(ref.lock);
  GiveRingLocked(ref, lgr, desc, pages);
}

uint64_t WarmBytes(const pstn_lgr_ref& ref) {
  uint64_t bytes = 0;
  if (!MayDrop(ref)) return 0;
  for (uint32_t c = 0; c < PSTN_SLAB_CLASSES; c++)
    bytes += static_cast<uint64_t>(LoadRelaxed(ref.warm[c])) * RingBytes(c);
  return bytes;
}

// One at a time, so that no thread waits for the lock for long.
void DropWarm(pstn_lgr_ref& ref, uint8_t* lgr) {
  if (!MayDrop(ref)) return;
  for (uint32_t c = 0; c < PSTN_SLAB_CLASSES; c++) {
    for (uint32_t n = 0; n < kWarmMax[c]; n++) {
      Guard g(ref.lock);
      uint32_t i = ref.warm[c] != 0 ? FindSet(WarmMap(ref, c), RingCount(c), 0) : PSTN_NONE;
      if (i == PSTN_NONE) break;
      DropPages(ref, lgr, c, i);
      ClearWarm(ref, c, i);
    }
  }
}

uint32_t SlotsOf(const pstn_lgr_ref& ref, uint8_t* lgr) {
  constexpr uint32_t kInChunk = kChunkBytes / PSTN_RING0_BYTES;
  const uint32_t chunks = ChunksOf(ref, lgr);
  return chunks < PSTN_CONNS / kInChunk ? chunks * kInChunk : PSTN_CONNS;
}

uint32_t TakeConn(pstn_lgr_ref& ref, uint8_t* lgr) {
  Guard g(ref.lock);
  uint32_t looks = kLooks;
  const uint32_t slots = SlotsOf(ref, lgr);
  for (uint32_t w = 0; w < slots / 64; w++) {
    uint64_t candidates = ~ref.conn_map[w] | (looks != 0 ? ref.zombie_map[w] : 0);
    for (; candidates != 0; candidates &= candidates - 1) {
      uint32_t i = w * 64 + static_cast<uint32_t>(__builtin_ctzll(candidates));
      if (TestBit(ref.zombie_map, i)) {
        if (looks == 0 || (looks--, !IsLeft(lgr, i))) continue;
        BuryLocked(ref, lgr, i);
      }
      return UseLocked(ref, i);
    }
  }
  return TakeLeftLocked(ref, lgr, slots);
}

void MakeZombie(pstn_lgr_ref& ref, uint32_t conn, uint64_t ring, uint64_t old) {
  Guard g(ref.lock);
  if (conn >= PSTN_CONNS || TestBit(ref.zombie_map, conn)) return;
  ref.zombie_ring[conn] = ring;
  ref.zombie_old[conn] = old;
  DeathFence();  // [Z1]
  SetBit(ref.zombie_map, conn);
  StoreRelaxed(ref.zombies, ref.zombies + 1);
}

void UnmakeZombie(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn) {
  Guard g(ref.lock);
  if (conn < PSTN_CONNS) (void)UnmakeLocked(ref, lgr, conn);
}

void BuryZombie(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn) {
  Guard g(ref.lock);
  if (conn < PSTN_CONNS) BuryLocked(ref, lgr, conn);
}

void GiveConn(pstn_lgr_ref& ref, uint32_t conn) {
  Guard g(ref.lock);
  if (conn >= PSTN_CONNS || !TestBit(ref.conn_map, conn)) return;
  ClearBit(ref.conn_map, conn);
  CountDown(ref.conns);
}

bool IsZombie(pstn_lgr_ref& ref, uint32_t conn) {
  Guard g(ref.lock);
  return TestBit(ref.zombie_map, conn % PSTN_CONNS);
}

void FreeConn(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn) {
  Guard g(ref.lock);
  StoreRelease(LgrConn(lgr, conn).setup.state, PSTN_CS_FREE);  // [C1] a sweep finds it, if we die
  DeathFence();                                                // [Z1]
  BuryLocked(ref, lgr, conn % PSTN_CONNS);
}

void SweepZombies(pstn_lgr_ref& ref, uint8_t* lgr) {
  Guard g(ref.lock);
  for (uint32_t w = 0; w < PSTN_CONNS / 64 && ref.zombies != 0; w++) {
    uint64_t bits = ref.zombie_map[w];
    while (bits != 0) {
      uint32_t i = w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      if (IsLeft(lgr, i)) BuryLocked(ref, lgr, i);
    }
  }
}

}  // namespace postern
