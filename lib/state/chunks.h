// SPDX-License-Identifier: Apache-2.0
// chunks.h - where a process has a link group: its tables, and the chunks of its rings in use.
//
// A link group is mapped piece by piece. Its tables, which are header, event maps and connections,
// are there from MapLgr() on. Its rings, a hundred times as much, are mapped in chunks of 1 MiB,
// each when a ring in it is touched first: 256 small rings, 16 middle ones, or one large one. The
// first chunk of small rings of each side comes with the first connection (HasRings). A page of the
// process's own, just before the tables, says where each chunk is.
//
//   own page | tables ... | anchors        chunk        chunk   ...
//            ^ base, of the tables
//
// No chunk moves or goes before UnmapLgr(). Chunks that lie side by side are mapped together, twice
// as many each time, so that a link group whose rings are all in use is some fifty mappings and not
// four hundred.
#pragma once
#include <cstddef>
#include <cstdint>

#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern {

inline constexpr size_t kLgrTablesBytes = PSTN_LGR_SLAB_OFF;
inline constexpr size_t kLgrRingsBytes = PSTN_LGR_BYTES - PSTN_LGR_SLAB_OFF;
inline constexpr size_t kLgrOwnBytes = 4096;

inline constexpr uint32_t kChunkBytes = 1u << 20;
inline constexpr uint32_t kChunkPages = kChunkBytes / 4096;
inline constexpr uint32_t kChunks = kLgrRingsBytes / kChunkBytes;
inline constexpr uint32_t kSideChunks = PSTN_SLAB_BYTES / kChunkBytes;
static_assert(kChunkBytes == PSTN_RING2_BYTES, "no ring lies in two chunks");
static_assert(uint64_t{PSTN_RING0_BYTES} * PSTN_RING0_COUNT % kChunkBytes == 0 &&
                  uint64_t{PSTN_RING1_BYTES} * PSTN_RING1_COUNT % kChunkBytes == 0,
              "each class begins with a chunk");

// The rings of one class of one side.
inline constexpr uint32_t kAreas = 2 * PSTN_SLAB_CLASSES;
struct ChunkArea {
  uint32_t first, count;  // chunks
};
inline constexpr ChunkArea kChunkAreas[kAreas] = {{0, 16},   {16, 64},  {80, 128},
                                                  {208, 16}, {224, 64}, {288, 128}};
static_assert(kChunkAreas[kAreas - 1].first + kChunkAreas[kAreas - 1].count == kChunks &&
              16u * kChunkBytes == uint64_t{PSTN_RING0_BYTES} * PSTN_RING0_COUNT &&
              64u * kChunkBytes == uint64_t{PSTN_RING1_BYTES} * PSTN_RING1_COUNT);

struct LgrOwn {
  uint8_t* chunk[kChunks];  // (a) null: not mapped; else as it is until UnmapLgr()
  uint32_t ready;           // (a) 1: both sides' first chunk of small rings is mapped
  uint32_t most;            // (a) of each class, no chunk is mapped from this one on; 0: all
};
static_assert(sizeof(LgrOwn) <= kLgrOwnBytes);
inline LgrOwn& OwnOfLgr(uint8_t* base) { return *reinterpret_cast<LgrOwn*>(base - kLgrOwnBytes); }

// Whether the two sides have agreed on using it (LgrOwn.most).
bool IsAgreed(uint8_t* base, uint32_t n);
// Null: no memory, or not agreed on. Needs no descriptor, and asks no process.
uint8_t* MapChunk(uint8_t* base, uint32_t n);
inline uint8_t* ChunkOf(uint8_t* base, uint32_t n) {
  uint8_t* const at = LoadAcquire(OwnOfLgr(base).chunk[n]);  // [V3]
  return at != nullptr ? at : MapChunk(base, n);
}
// Where page `page` of the rings, counted from the first ring, is mapped.
inline uint8_t* RingPageOf(uint8_t* base, uint64_t page) {
  uint8_t* const chunk = ChunkOf(base, static_cast<uint32_t>(page / kChunkPages));
  return chunk != nullptr ? chunk + page % kChunkPages * 4096 : nullptr;
}
// A connection can have rings here; false: no memory.
bool MapFirstChunks(uint8_t* base);
inline bool HasRings(uint8_t* base) {
  return LoadAcquire(OwnOfLgr(base).ready) != 0 || MapFirstChunks(base);  // [V3]
}
// Of a link group that is mapped whole, in one piece (tests).
void SetChunks(uint8_t* base, uint8_t* rings);

// Maps the tables of `fd`, whose size has been checked; null: no memory.
uint8_t* MapTables(int fd);
// What is mapped of a link group, but for the own page.
struct LgrPart {
  uint8_t* at;
  size_t bytes;
  uint64_t off;  // in the segment
};
// The part that follows `from`, a number of parts' beginnings; false: there is none.
bool NextPart(uint8_t* base, uint32_t& from, LgrPart& part);

void UnmapLgr(uint8_t* base);  // with its rings

}  // namespace postern
