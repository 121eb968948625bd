// SPDX-License-Identifier: Apache-2.0
// slab.h - rings and connection slots of a link group, as one side gives them out.
//
// What is given out is recorded in the giver's own stack (pstn_lgr_ref), never in the segment: the
// peer can write the segment. Rings come in three sizes; a descriptor packs generation, flags,
// class and page, so that one word says where a ring is.
#pragma once
#include "state/view.h"

namespace postern {

struct RingPlace {
  uint8_t* base;
  uint32_t bytes;
};

constexpr uint32_t RingBytes(uint32_t cls) {
  return cls == 0 ? PSTN_RING0_BYTES : cls == 1 ? PSTN_RING1_BYTES : PSTN_RING2_BYTES;
}
constexpr uint32_t RingCount(uint32_t cls) {
  return cls == 0 ? PSTN_RING0_COUNT : cls == 1 ? PSTN_RING1_COUNT : PSTN_RING2_COUNT;
}
// Byte offset of a class's area in a side's slab.
constexpr uint64_t ClassOff(uint32_t cls) {
  uint64_t off = 0;
  for (uint32_t c = 0; c < cls; c++) off += static_cast<uint64_t>(RingBytes(c)) * RingCount(c);
  return off;
}
constexpr uint32_t RingGen(uint64_t desc) {
  return static_cast<uint32_t>(desc >> PSTN_RING_GEN_SHIFT);
}
constexpr uint32_t RingClass(uint64_t desc) {
  return static_cast<uint32_t>(desc >> PSTN_RING_CLASS_SHIFT) & 0xfu;
}

// First page of a side's slab, counted from the segment's start.
constexpr uint64_t SlabPage(uint32_t side) {
  static_assert(PSTN_LGR_SLAB_OFF % 4096u == 0 && PSTN_SLAB_BYTES % 4096u == 0);
  return PSTN_LGR_SLAB_OFF / 4096u + (side & 1u) * (PSTN_SLAB_BYTES / 4096u);
}

// A class's rings, in pages: looked up for each record, so nothing is divided.
struct ClassPlace {
  uint64_t first_page, last;  // the last ring begins so many pages behind the first
  uint32_t pages_shift, count, bytes;
};
constexpr ClassPlace PlaceOf(uint32_t cls) {
  static_assert((PSTN_RING0_BYTES & (PSTN_RING0_BYTES - 1)) == 0 &&
                    (PSTN_RING1_BYTES & (PSTN_RING1_BYTES - 1)) == 0 &&
                    (PSTN_RING2_BYTES & (PSTN_RING2_BYTES - 1)) == 0,
                "ring sizes are powers of two");
  return {ClassOff(cls) / 4096u, (RingCount(cls) - 1) * uint64_t{RingBytes(cls) / 4096u},
          static_cast<uint32_t>(__builtin_ctz(RingBytes(cls) / 4096u)), RingCount(cls),
          RingBytes(cls)};
}
inline constexpr ClassPlace kPlaces[PSTN_SLAB_CLASSES] = {PlaceOf(0), PlaceOf(1), PlaceOf(2)};

// Whether `desc` is a ring of `side`'s slab. Used on words that the peer wrote: every bit of them
// is checked here.
inline bool IsRing(uint32_t side, uint64_t desc) {
  uint32_t cls = RingClass(desc);
  if (cls >= PSTN_SLAB_CLASSES) return false;
  const ClassPlace& c = kPlaces[cls];
  uint64_t beyond = (desc & PSTN_RING_PLACE) - (SlabPage(side) + c.first_page);  // huge before it
  return beyond <= c.last && (beyond & (c.bytes / 4096u - 1)) == 0;
}
// Where that ring is; {null, 0} for anything else, and where the ring can't be mapped.
inline RingPlace RingAt(uint8_t* lgr, uint32_t side, uint64_t desc) {
  if (!IsRing(side, desc)) return {nullptr, 0};
  uint8_t* const ring = RingPageOf(lgr, (desc & PSTN_RING_PLACE) - SlabPage(0));
  if (ring == nullptr) return {nullptr, 0};
  return {ring, kPlaces[RingClass(desc)].bytes};
}
// Of a word for which RingAt() has none: it is a ring, and there was no memory to map it.
bool IsUnmappedRing(uint8_t* lgr, uint32_t side, uint64_t desc);

// A ring of class `cls`, or of a smaller one, for our side: descriptor without generation; 0 =
// none. Of the larger classes, in the first `chunks` chunks alone (address_limit.h).
uint64_t TakeRing(pstn_lgr_ref& ref, uint32_t cls, uint32_t chunks = kChunks);
// One of this very class; without the lock, a moment's answer.
bool SlabHas(pstn_lgr_ref& ref, uint32_t cls, uint32_t chunks = kChunks);
// What becomes of the pages of a ring that is given back. kKeep: they stay for the next owner, if
// not too many do already. kDrop: the system gets them. Of another user's peer they stay
// in any case.
enum class Pages : uint8_t { kKeep, kDrop };
void GiveRing(pstn_lgr_ref& ref, uint8_t* lgr, uint64_t desc, Pages pages);
// Pages of free rings that can go to the system; a moment's answer. And what gives them to it.
uint64_t WarmBytes(const pstn_lgr_ref& ref);
void DropWarm(pstn_lgr_ref& ref, uint8_t* lgr);

// A free connection slot for the client side, or PSTN_NONE: then SweepZombies may find some.
uint32_t TakeConn(pstn_lgr_ref& ref, uint8_t* lgr);
// Slots that the client side may take: PSTN_CONNS, or fewer (address_limit.h).
uint32_t SlotsOf(const pstn_lgr_ref& ref, uint8_t* lgr);
// Our side has closed the connection; `ring` and the `old` one before it (or 0) are still in the
// peer's hands.
void MakeZombie(pstn_lgr_ref& ref, uint32_t conn, uint64_t ring, uint64_t old);
// As if MakeZombie had not been: gives the rings back, and leaves the slot taken.
void UnmakeZombie(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn);
// The peer has let go of the connection: takes back what our side still gave to it.
void BuryZombie(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn);
void GiveConn(pstn_lgr_ref& ref, uint32_t conn);
// Whether MakeZombie has been.
bool IsZombie(pstn_lgr_ref& ref, uint32_t conn);
// The client's side is the second to leave: the slot is free, and what it gave to it comes back. At
// once: from the state alone another thread would take the slot, and we take back what is that
// one's.
void FreeConn(pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn);
// Takes back what peers have let go of since. Looks at each zombie once.
void SweepZombies(pstn_lgr_ref& ref, uint8_t* lgr);

}  // namespace postern
