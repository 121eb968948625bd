// SPDX-License-Identifier: Apache-2.0
// chunks.cc - see chunks.h.
#include "state/chunks.h"

#include <sys/mman.h>

#include "base/space/room.h"
#include "base/space/spare.h"
#include "base/sys.h"

namespace postern {
namespace {

constexpr size_t kMapPage = 4096;

// A shared mapping that is remapped from nothing (an old size of 0) is mapped once more, and may be
// longer than what it was made from. No descriptor is needed, so that none that was closed
// meanwhile is taken for this one; but a page that lies before the chunk in the segment has to be
// mapped. Before the first chunk of each area that is an anchor: the last page of the tables, or a
// page that is mapped for nothing else.
constexpr uint32_t kAnchors = kAreas - 1;
constexpr size_t kAnchorBytes = kAnchors * kMapPage;
constexpr size_t kLgrMappedBytes = kLgrOwnBytes + kLgrTablesBytes + kAnchorBytes;

uint8_t* AnchorOf(uint8_t* base, uint32_t area) {
  return base + kLgrTablesBytes + area * kMapPage - kMapPage;
}
uint64_t AnchorOff(uint32_t area) {
  return kLgrTablesBytes + uint64_t{kChunkAreas[area].first} * kChunkBytes - kMapPage;
}

uint8_t* At(long r) { return r < 0 && r > -4096 ? nullptr : reinterpret_cast<uint8_t*>(r); }

uint32_t AreaOf(uint32_t n) {
  uint32_t area = 0;
  while (n - kChunkAreas[area].first >= kChunkAreas[area].count) area++;
  return area;
}

bool IsMapped(uint8_t* base, uint32_t n) {
  return LoadAcquire(OwnOfLgr(base).chunk[n]) != nullptr;  // [V3]
}

// Another user's peer, which may lie about what it needs, has this process map no more when half of
// what it keeps for the program is left; but for what is set aside.
bool IsLowForOthers() {
  const Addresses left = AddressesLeft();
  return left.room < RoomKept(left.limit) / 2;
}

uint32_t MostOf(uint8_t* base) {
  const uint32_t most = LoadRelaxed(OwnOfLgr(base).most);
  return most != 0 ? most : kChunks;
}

// Chunks that are mapped at a time with chunk `n`: aligned, none of them mapped, and no more than
// the area has mapped by now.
ChunkArea RunOf(uint8_t* base, uint32_t n) {
  const ChunkArea& area = kChunkAreas[AreaOf(n)];
  uint32_t mapped = 0;
  for (uint32_t i = 0; i < area.count; i++) mapped += IsMapped(base, area.first + i) ? 1u : 0u;
  ChunkArea run = {n, 1};
  for (uint32_t count = 2; count <= mapped; count *= 2) {
    const uint32_t first = area.first + (n - area.first) / count * count;
    if (first + count > area.first + MostOf(base)) return run;
    for (uint32_t i = first; i < first + count; i++)
      if (IsMapped(base, i)) return run;
    run = {first, count};
  }
  return run;
}

// The nearest page that is mapped and lies before chunk `first` in the segment, and the pages from
// it to the chunk.
struct Before {
  uint8_t* page;
  size_t gap_bytes;
};
Before BeforeChunk(uint8_t* base, uint32_t first) {
  const uint32_t area = AreaOf(first);
  for (uint32_t n = first; n-- > kChunkAreas[area].first;) {
    uint8_t* const chunk = LoadAcquire(OwnOfLgr(base).chunk[n]);  // [V3]
    if (chunk == nullptr) continue;
    return {chunk + kChunkBytes - kMapPage, kMapPage + size_t{first - n - 1} * kChunkBytes};
  }
  return {AnchorOf(base, area), kMapPage + size_t{first - kChunkAreas[area].first} * kChunkBytes};
}

// Once more from its beginning, what lies between the two goes.
uint8_t* MapRun(uint8_t* base, const ChunkArea& run, bool may_spare) {
  const Before before = BeforeChunk(base, run.first);
  const size_t rings = size_t{run.count} * kChunkBytes, bytes = before.gap_bytes + rings;
  const auto map = [&] {
    return At(sys::Call(SYS_mremap, before.page, 0L, bytes, static_cast<long>(MREMAP_MAYMOVE), 0L));
  };
  uint8_t* at = map();
  while (at == nullptr && may_spare && GiveUpSpare(bytes)) at = map();
  if (at == nullptr) return nullptr;
  sys::Unmap(at, before.gap_bytes);
  return at + before.gap_bytes;
}

}  // namespace

bool IsAgreed(uint8_t* base, uint32_t n) { return n < kChunkAreas[AreaOf(n)].first + MostOf(base); }

uint8_t* MapChunk(uint8_t* base, uint32_t n) {
  if (!IsAgreed(base, n)) return nullptr;
  const bool is_low = LoadRelaxed(OwnOfLgr(base).most) != 0 && IsLowForOthers();
  if (is_low && !GiveUpSpare(kChunkBytes)) return nullptr;
  ChunkArea run = is_low ? ChunkArea{n, 1} : RunOf(base, n);
  uint8_t* at = MapRun(base, run, false);
  if (at == nullptr) {
    run = {n, 1};
    at = MapRun(base, run, true);
  }
  if (at == nullptr) return nullptr;
  for (uint32_t i = 0; i < run.count; i++) {
    uint8_t* const mine = at + size_t{i} * kChunkBytes;
    uint8_t* there = nullptr;
    if (!CompareExchange(OwnOfLgr(base).chunk[run.first + i], there, mine))  // [V3]
      sys::Unmap(mine, kChunkBytes);  // another thread was faster
  }
  return LoadAcquire(OwnOfLgr(base).chunk[n]);  // [V3]
}

bool MapFirstChunks(uint8_t* base) {
  for (uint32_t side = 0; side < 2; side++)
    if (ChunkOf(base, side * kSideChunks) == nullptr) return false;
  StoreRelease(OwnOfLgr(base).ready, 1u);  // [V3]
  return true;
}

void SetChunks(uint8_t* base, uint8_t* rings) {
  LgrOwn& own = OwnOfLgr(base);
  for (uint32_t n = 0; n < kChunks; n++)
    StoreRelease(own.chunk[n], rings + size_t{n} * kChunkBytes);  // [V3]
  StoreRelease(own.ready, 1u);                                    // [V3]
}

uint8_t* MapTables(int fd) {
  constexpr long kHow = PROT_READ | PROT_WRITE, kWhere = MAP_SHARED | MAP_FIXED;
  auto* own = static_cast<uint8_t*>(sys::MapPrivate(kLgrMappedBytes));
  while (own == nullptr && GiveUpSpare(kLgrMappedBytes))
    own = static_cast<uint8_t*>(sys::MapPrivate(kLgrMappedBytes));
  if (own == nullptr) return nullptr;
  uint8_t* const base = own + kLgrOwnBytes;
  bool good = true;
  const auto map = [&](uint8_t* at, size_t bytes, uint64_t off) {
    good = good && At(sys::Call(SYS_mmap, at, bytes, kHow, kWhere, fd, off)) == at;
  };
  map(base, kLgrTablesBytes, 0);
  for (uint32_t area = 1; area < kAreas; area++)
    map(AnchorOf(base, area), kMapPage, AnchorOff(area));
  if (good) return base;
  sys::Unmap(own, kLgrMappedBytes);
  return nullptr;
}

// The tables, the anchors, and then the chunks in runs.
bool NextPart(uint8_t* base, uint32_t& from, LgrPart& part) {
  const uint32_t turn = from;
  if (turn == 0) {
    part = {base, kLgrTablesBytes, 0};
    from++;
    return true;
  }
  if (turn < kAreas) {
    part = {AnchorOf(base, turn), kMapPage, AnchorOff(turn)};
    from++;
    return true;
  }
  uint32_t n = turn - kAreas;
  while (n < kChunks && !IsMapped(base, n)) n++;
  if (n == kChunks) return false;
  uint8_t* const at = LoadAcquire(OwnOfLgr(base).chunk[n]);  // [V3]
  uint32_t count = 1;
  while (n + count < kChunks &&
         LoadAcquire(OwnOfLgr(base).chunk[n + count]) == at + size_t{count} * kChunkBytes)  // [V3]
    count++;
  part = {at, size_t{count} * kChunkBytes, kLgrTablesBytes + uint64_t{n} * kChunkBytes};
  from = kAreas + n + count;
  return true;
}

void UnmapLgr(uint8_t* base) {
  LgrPart part;
  for (uint32_t from = kAreas; NextPart(base, from, part);) sys::Unmap(part.at, part.bytes);
  sys::Unmap(base - kLgrOwnBytes, kLgrMappedBytes);
}

}  // namespace postern
