// SPDX-License-Identifier: Apache-2.0
// address_limit.cc - see address_limit.h.
#include "state/address_limit.h"

#include "base/space/room.h"
#include "base/space/spare.h"

namespace postern {
namespace {

// With so many link groups whose chunks are all in use, the room is taken.
constexpr uint64_t kFullLinks = 32;

}  // namespace

uint32_t ChunksIn(uint64_t room) {
  constexpr uint64_t kOneOfEach = uint64_t{kAreas} * kChunkBytes, kMost = kChunkAreas[2].count;
  const uint64_t chunks = room / (kFullLinks * kOneOfEach);
  return static_cast<uint32_t>(chunks == 0 ? 1 : chunks > kMost ? kMost : chunks);
}

void SayChunks(StackView& v, uint32_t idx) {
  const LgrHere at = LgrAt(v, LgrIndex(idx));
  if (at.base == nullptr) return;
  if (at.ref->remote != PSTN_LGR_SAME_USER) StoreRelaxed(OwnOfLgr(at.base).most, kOthersChunks);
  const uint64_t room = AddressRoom();
  if (room == kUnbounded) return;
  MakeSpare();
  const uint32_t here = ChunksIn(room);
  uint32_t said = LoadRelaxed(at.ref->chunks);
  while ((said == 0 || said > here) && !CompareExchange(at.ref->chunks, said, here)) {
  }
  StoreRelaxed(LgrHdr(at.base).chunks[at.ref->side & 1u], LoadRelaxed(at.ref->chunks));
}

void SayAllChunks(StackView& v) {
  if (AddressRoom() == kUnbounded) return;
  for (uint32_t i = 0; i < v.s->lgrs.count(); i++)
    if (LgrBase(v, i) != nullptr) SayChunks(v, i);
}

bool NoteRoom(StackMap& s, uint32_t slot) {
  const bool has = AddressesLeft().HoldALink();
  uint32_t mine = slot + 1;
  if (!has)
    StoreRelaxed(s.hdr.short_slot, mine);
  else if (LoadRelaxed(s.hdr.short_slot) == mine)
    (void)CompareExchange(s.hdr.short_slot, mine, 0u);
  return has;
}

}  // namespace postern
