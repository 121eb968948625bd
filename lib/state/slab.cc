// SPDX-License-Identifier: Apache-2.0
// slab.cc - see slab.h.
#include "state/slab.h"

#include "base/lock.h"
#include "base/tsan.h"

namespace postern {
namespace {

uint64_t* ClassMap(pstn_lgr_ref& ref, uint32_t cls) {
  return cls == 0 ? ref.ring0_map : cls == 1 ? ref.ring1_map : ref.ring2_map;
}

// First zero bit at or after the word of `hint`, wrapping once; PSTN_NONE when all are set.
uint32_t FindClear(const uint64_t* map, uint32_t bits, uint32_t hint) {
  uint32_t words = bits / 64, start = hint / 64 % words;
  for (uint32_t i = 0; i < words; i++) {
    uint32_t w = (start + i) % words;
    if (~map[w] != 0) return w * 64 + static_cast<uint32_t>(__builtin_ctzll(~map[w]));
  }
  return PSTN_NONE;
}

bool TestBit(const uint64_t* map, uint32_t i) { return (map[i / 64] >> (i % 64) & 1u) != 0; }
// Under ref.lock; atomic for those who look without it.
void SetBit(uint64_t* map, uint32_t i) {
  StoreRelaxed(map[i / 64], map[i / 64] | 1ull << (i % 64));
}
void ClearBit(uint64_t* map, uint32_t i) {
  StoreRelaxed(map[i / 64], map[i / 64] & ~(1ull << (i % 64)));
}

void GiveRingLocked(pstn_lgr_ref& ref, uint64_t desc) {
  uint32_t cls = RingClass(desc);
  if (desc == 0 || cls >= PSTN_SLAB_CLASSES) return;
  uint64_t page = desc & ((1ull << 40) - 1);
  uint64_t first = SlabPage(ref.side) + ClassOff(cls) / 4096u;
  if (page < first) return;
  uint64_t i = (page - first) / (RingBytes(cls) / 4096u);
  if (i >= RingCount(cls) || !TestBit(ClassMap(ref, cls), static_cast<uint32_t>(i))) return;
  ClearBit(ClassMap(ref, cls), static_cast<uint32_t>(i));
  ref.slab_hint[cls] = static_cast<uint32_t>(i);  // last used first: it is warm
  StoreRelaxed(ref.rings, ref.rings - 1);
}

bool UnmakeLocked(pstn_lgr_ref& ref, uint32_t conn) {
  if (!TestBit(ref.zombie_map, conn)) return false;
  ClearBit(ref.zombie_map, conn);
  StoreRelaxed(ref.zombies, ref.zombies - 1);
  GiveRingLocked(ref, ref.zombie_ring[conn]);
  GiveRingLocked(ref, ref.zombie_old[conn]);
  ref.zombie_ring[conn] = ref.zombie_old[conn] = 0;
  return true;
}

void BuryLocked(pstn_lgr_ref& ref, uint32_t conn) {
  if (!UnmakeLocked(ref, conn)) return;
  if (ref.side == 0 && TestBit(ref.conn_map, conn)) {
    ClearBit(ref.conn_map, conn);
    StoreRelaxed(ref.conns, ref.conns - 1);
  }
}

// Slots that we have closed and the peer perhaps not: so many are looked at for one that is wanted.
// Each look is at a line that the peer may have written last; a storm of closes leaves thousands.
constexpr uint32_t kLooks = 16;

bool IsLeft(uint8_t* lgr, uint32_t conn) {
  return LoadAcquire(LgrConn(lgr, conn).setup.state) == PSTN_CS_FREE;
}

uint32_t UseLocked(pstn_lgr_ref& ref, uint32_t conn) {
  SetBit(ref.conn_map, conn);
  StoreRelaxed(ref.conns, ref.conns + 1);
  return conn;
}

// All are given out: one that the peer has left meanwhile. The next call looks at the next ones.
uint32_t TakeLeftLocked(pstn_lgr_ref& ref, uint8_t* lgr) {
  constexpr uint32_t kWords = PSTN_CONNS / 64;
  const uint32_t start = ref.conn_hint % PSTN_CONNS;
  uint32_t looks = kLooks;
  for (uint32_t n = 0; n <= kWords; n++) {
    uint32_t w = (start / 64 + n) % kWords;
    uint64_t bits = ref.zombie_map[w] & (n == 0 ? ~uint64_t{0} << (start % 64) : ~uint64_t{0});
    for (; bits != 0; bits &= bits - 1) {
      if (looks-- == 0) return PSTN_NONE;
      uint32_t i = w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      ref.conn_hint = i + 1;
      if (!IsLeft(lgr, i)) continue;
      BuryLocked(ref, i);
      return UseLocked(ref, i);
    }
  }
  return PSTN_NONE;
}

}  // namespace

bool SlabHas(pstn_lgr_ref& ref, uint32_t cls) {
  const uint64_t* map = ClassMap(ref, cls);
  for (uint32_t i = 0; i < RingCount(cls) / 64; i++) {
    if (LoadRelaxed(map[i]) != ~uint64_t{0}) return true;
  }
  return false;
}

uint64_t TakeRing(pstn_lgr_ref& ref, uint32_t cls) {
  Guard g(ref.lock);
  TsanCome(&ref);
  for (uint32_t c = cls + 1; c-- > 0;) {
    uint64_t* map = ClassMap(ref, c);
    uint32_t i = FindClear(map, RingCount(c), ref.slab_hint[c]);
    if (i == PSTN_NONE) continue;
    SetBit(map, i);
    ref.slab_hint[c] = i;
    StoreRelaxed(ref.rings, ref.rings + 1);
    uint64_t page = SlabPage(ref.side) + ClassOff(c) / 4096u +
                    static_cast<uint64_t>(i) * (RingBytes(c) / 4096u);
    return static_cast<uint64_t>(c) << PSTN_RING_CLASS_SHIFT | page;
  }
  return 0;
}

void GiveRing(pstn_lgr_ref& ref, uint64_t desc) {
  Guard g(ref.lock);
  GiveRingLocked(ref, desc);
}

uint32_t TakeConn(pstn_lgr_ref& ref, uint8_t* lgr) {
  Guard g(ref.lock);
  uint32_t looks = kLooks;
  for (uint32_t w = 0; w < PSTN_CONNS / 64; w++) {
    uint64_t candidates = ~ref.conn_map[w] | (looks != 0 ? ref.zombie_map[w] : 0);
    for (; candidates != 0; candidates &= candidates - 1) {
      uint32_t i = w * 64 + static_cast<uint32_t>(__builtin_ctzll(candidates));
      if (TestBit(ref.zombie_map, i)) {
        if (looks == 0 || (looks--, !IsLeft(lgr, i))) continue;
        BuryLocked(ref, i);
      }
      return UseLocked(ref, i);
    }
  }
  return TakeLeftLocked(ref, lgr);
}

void MakeZombie(pstn_lgr_ref& ref, uint32_t conn, uint64_t ring, uint64_t old) {
  Guard g(ref.lock);
  if (conn >= PSTN_CONNS || TestBit(ref.zombie_map, conn)) return;
  SetBit(ref.zombie_map, conn);
  StoreRelaxed(ref.zombies, ref.zombies + 1);
  ref.zombie_ring[conn] = ring;
  ref.zombie_old[conn] = old;
}

void UnmakeZombie(pstn_lgr_ref& ref, uint32_t conn) {
  Guard g(ref.lock);
  if (conn < PSTN_CONNS) (void)UnmakeLocked(ref, conn);
}

void BuryZombie(pstn_lgr_ref& ref, uint32_t conn) {
  Guard g(ref.lock);
  if (conn < PSTN_CONNS) BuryLocked(ref, conn);
}

void GiveConn(pstn_lgr_ref& ref, uint32_t conn) {
  Guard g(ref.lock);
  if (conn >= PSTN_CONNS || !TestBit(ref.conn_map, conn)) return;
  ClearBit(ref.conn_map, conn);
  StoreRelaxed(ref.conns, ref.conns - 1);
}

void SweepZombies(pstn_lgr_ref& ref, uint8_t* lgr) {
  Guard g(ref.lock);
  for (uint32_t w = 0; w < PSTN_CONNS / 64 && ref.zombies != 0; w++) {
    uint64_t bits = ref.zombie_map[w];
    while (bits != 0) {
      uint32_t i = w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      if (IsLeft(lgr, i)) BuryLocked(ref, i);
    }
  }
}

}  // namespace postern
