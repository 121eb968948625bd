// SPDX-License-Identifier: Apache-2.0
// address_limit.h - what a process maps of link groups: all; less of one with another user's peer,
// and less where its address space is limited (RLIMIT_AS).
//
// What another user's peer writes, and punches out, is at the expense of the process that reads it
// (ADR 22). So of such a link group both sides use the first kOthersChunks chunks of each class, 48
// MiB of rings a side in place of 208, and map no others.
//
// A process whose address space is limited tells its family and its peers how many chunks of each
// class it maps (pstn_lgr_ref.chunks, pstn_lgr_hdr.chunks): the more, the more room is left. Both
// sides give out larger rings in those alone, and a client takes as many slots as small rings lie
// in them, then one more link group. What a peer says binds only what that peer is to read. When
// little room is left, the family gets no more link groups (pstn_stack_hdr.short_slot), and new
// clients go through the kernel.
#pragma once
#include "state/view.h"

namespace postern {

// As many small rings as there are connections, 256 middle ones and 16 large ones. Part of
// PSTN_ABI_VERSION, since a reader takes a ring beyond for a lie.
inline constexpr uint32_t kOthersChunks = 16;
static_assert(kOthersChunks >= kChunkAreas[0].count, "each connection can have a ring");

// Chunks of each class that a process maps which may have `room` bytes of address space more.
uint32_t ChunksIn(uint64_t room);
// Bounds what is mapped of link group `idx`, which has just been mapped; where the process has a
// limit, says so, and sets spare room aside.
void SayChunks(StackView& v, uint32_t idx);
void SayAllChunks(StackView& v);  // of each that is mapped: the limit has changed
// Whether this process, which has slot `slot`, has room for one more link group; posternd is told.
bool NoteRoom(StackMap& s, uint32_t slot);

// Chunks of each class of the rings that side `ref.side` gives out, as both sides have said.
inline uint32_t ChunksOf(const pstn_lgr_ref& ref, uint8_t* lgr) {
  const uint32_t ours = LoadRelaxed(ref.chunks);
  const uint32_t theirs = LoadRelaxed(LgrHdr(lgr).chunks[(ref.side & 1u) ^ 1u]);
  const uint32_t least = ours != 0 && (theirs == 0 || ours < theirs) ? ours : theirs;
  const uint32_t most = ref.remote != PSTN_LGR_SAME_USER ? kOthersChunks : kChunks;
  return least == 0 || least > most ? most : least;
}

}  // namespace postern
