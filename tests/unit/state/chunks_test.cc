// SPDX-License-Identifier: Apache-2.0
// chunks_test.cc - the rings of a link group are mapped when they are used, and no more of them.
#include "state/chunks.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"
#include "base/space/room.h"
#include "base/space/spare.h"
#include "state/address_limit.h"

namespace postern {
namespace {

constexpr size_t kUntilUsed = 16u << 20;
constexpr uint64_t kMiB = 1u << 20;

struct Links {
  size_t bytes = 0, mappings = 0;
};

// What this process has mapped of link groups.
Links MappedLinks() {
  std::ifstream maps("/proc/self/maps");
  Links links;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("postern-lgr") == std::string::npos) continue;
    size_t dash = 0;
    const uint64_t begin = std::stoull(line, &dash, 16);
    links.bytes += std::stoull(line.substr(dash + 1), nullptr, 16) - begin;
    links.mappings++;
  }
  return links;
}

class Link {
 public:
  Link() : fd(CreateLgr(id, id, id)), base(MapLgr(fd, &id)) { REQUIRE(base != nullptr); }
  ~Link() {
    UnmapLgr(base);
    close(fd);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A mark at the first and the last byte of each chunk, by the descriptor.
  void Mark() {
    for (uint32_t n = 0; n < kChunks; n++) {
      const uint16_t mark = MarkOf(n);
      REQUIRE(pwrite(fd, &mark, 2, static_cast<off_t>(kLgrTablesBytes + n * kMiB)) == 2);
      REQUIRE(pwrite(fd, &mark, 2, static_cast<off_t>(kLgrTablesBytes + (n + 1) * kMiB - 2)) == 2);
    }
  }
  bool IsRight(uint32_t n) {
    const uint8_t* const at = ChunkOf(base, n);
    uint16_t first = 0, last = 0;
    if (at == nullptr) return false;
    memcpy(&first, at, 2);
    memcpy(&last, at + kChunkBytes - 2, 2);
    return first == MarkOf(n) && last == MarkOf(n);
  }

  const pstn_uuid id = NewUuid();
  const int fd;
  uint8_t* const base;

 private:
  static uint16_t MarkOf(uint32_t n) { return static_cast<uint16_t>(n * 3 + 1000); }
};

TEST_CASE("chunks: a link group with a connection is less than 16 MiB of address space") {
  const size_t before = MappedLinks().bytes;
  {
    Link link;
    CHECK(MappedLinks().bytes - before < kUntilUsed / 2);
    REQUIRE(HasRings(link.base));
    CHECK(MappedLinks().bytes - before < kUntilUsed / 2);
    // One ring of each class of both sides.
    for (uint32_t side = 0; side < 2; side++)
      for (uint32_t cls = 0; cls < PSTN_SLAB_CLASSES; cls++)
        REQUIRE(RingPageOf(link.base, (side * PSTN_SLAB_BYTES + ClassOff(cls)) / 4096) != nullptr);
    CHECK(MappedLinks().bytes - before < kUntilUsed);
  }
  CHECK(MappedLinks().bytes == before);
}

TEST_CASE("chunks: each is what the segment has there, in whatever order they are mapped") {
  Link link;
  link.Mark();
  std::vector<uint32_t> order(kChunks);
  for (uint32_t n = 0; n < kChunks; n++) order[n] = n;
  const int way = GENERATE(0, 1, 2, 3);
  TestRandom random(7);
  if (way == 1) std::reverse(order.begin(), order.end());
  if (way >= 2)
    for (uint32_t n = kChunks; n > 1; n--) std::swap(order[n - 1], order[random.Below(n)]);
  for (const uint32_t n : order) REQUIRE(link.IsRight(n));
  for (const uint32_t n : order) CHECK(link.IsRight(n));
  const Links all = MappedLinks();
  CHECK(all.bytes <= PSTN_LGR_BYTES + kAreas * 4096);
  CHECK(all.mappings <= 150);  // a process may have 65530
}

TEST_CASE("chunks: a child of fork has those of before, and maps others by itself") {
  Link link;
  link.Mark();
  REQUIRE(HasRings(link.base));
  const pid_t pid = fork();
  if (pid == 0) {
    bool right = link.IsRight(0) && link.IsRight(kSideChunks);
    for (uint32_t n = 0; n < kChunks; n += 7) right = right && link.IsRight(n);
    ChunkOf(link.base, 81)[4096] = 77;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  CHECK(OwnOfLgr(link.base).chunk[81] == nullptr);  // it is not the parent's mapping
  CHECK(ChunkOf(link.base, 81)[4096] == 77);        // but the same memory
}

TEST_CASE("chunks: threads that come at once have the same mapping") {
  for (int round = 0; round < 20; round++) {
    Link link;
    link.Mark();
    std::atomic<int> ready{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
      threads.emplace_back([&] {
        ready++;
        while (ready.load() < 4) {
        }
        for (uint32_t n = 60; n < 140; n++) wrong += link.IsRight(n) ? 0 : 1;
      });
    for (std::thread& t : threads) t.join();
    CHECK(wrong.load() == 0);
  }
}

// In a child, whose limit it is: how many chunks it can map, and whether each is right.
template <typename Fn>
void InLimitedChild(uint64_t room, Fn fn) {
  const pid_t pid = fork();
  if (pid == 0) {
    const rlimit limit = {kUnbounded, kUnbounded};
    rlimit now = limit;
    now.rlim_cur = (kUnbounded >> 1) - AddressesIn(kUnbounded >> 1).room + room;
    _exit(setrlimit(RLIMIT_AS, &now) == 0 ? fn() : 99);
  }
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(WIFEXITED(status));
}

TEST_CASE("chunks: at the limit a chunk is refused, those of before stay, and spare room serves") {
  Link link;
  link.Mark();
  const bool spare = GENERATE(false, true);
  InLimitedChild(40 * kMiB, [&] {
    if (spare) MakeSpare();
    uint32_t mapped = 0;
    while (mapped < kChunks && ChunkOf(link.base, mapped) != nullptr) mapped++;
    if (mapped < 30 || mapped > 40) return 1;  // with the spare room as without it: all there was
    if (ChunkOf(link.base, mapped) != nullptr) return 2;
    for (uint32_t n = 0; n < mapped; n++)
      if (!link.IsRight(n)) return 3;
    return 0;
  });
  InLimitedChild(40 * kMiB, [&] {
    if (spare) MakeSpare();
    void* taken = nullptr;  // by the program, to the last page
    for (size_t bytes = 64 * kMiB; bytes >= 4096; bytes /= 2)
      while ((taken = sys::MapPrivate(bytes)) != nullptr) {
      }
    if (HasRings(link.base) != spare) return 1;
    if (!spare) return 0;
    for (uint32_t n : {0u, 16u, 80u, 208u, 224u, 288u})
      if (!link.IsRight(n)) return 2;
    return 0;
  });
}

// What a read says of the ring that the peer, which is side 0, names.
ReadStatus ReadFrom(RingWorld& world, uint64_t desc) PSTN_NO_THREAD_SAFETY_ANALYSIS {
  const ConnEnd e = world.End(1);
  e.peer_ctl().ring = uint64_t{1} << PSTN_RING_GEN_SHIFT | desc;
  return RingRead(e, nullptr, 10, ReadMode::kDiscard).status;
}

TEST_CASE("chunks: a ring that can't be mapped is no lie of the peer's, and a lie is one") {
  RingWorld world;
  REQUIRE(HasRings(world.lgr()));
  const uint64_t cls = 2,
                 ring = cls << PSTN_RING_CLASS_SHIFT | (SlabPage(0) + ClassOff(cls) / 4096);
  const uint64_t next = ring + PSTN_RING2_BYTES / 4096, lie = ring + 1;
  InLimitedChild(0, [&] {
    if (ReadFrom(world, next) != ReadStatus::kNoMemory) return 1;
    if (ReadFrom(world, lie) != ReadStatus::kViolation) return 2;
    // Beyond what the two have agreed on.
    OwnOfLgr(world.lgr()).most = 1;
    return ReadFrom(world, next) == ReadStatus::kViolation ? 0 : 3;
  });
  CHECK(ReadFrom(world, next) == ReadStatus::kEmpty);
}

TEST_CASE("chunks: another user's peer has no more mapped when little room is left") {
  Link link;
  link.Mark();
  const bool others = GENERATE(false, true);
  if (others) OwnOfLgr(link.base).most = kOthersChunks;
  InLimitedChild(150 * kMiB, [&] {
    MakeSpare();
    for (uint32_t n = 0; n < kChunks; n++)
      if (ChunkOf(link.base, n) != nullptr && !link.IsRight(n)) return 1;
    const Addresses left = AddressesLeft();
    return (left.room + 4 * kMiB > RoomKept(left.limit) / 2) == others ? 0 : 2;
  });
}

TEST_CASE("chunks: the less room, the fewer a process says that it maps, and the least holds") {
  CHECK(ChunksIn(0) == 1);
  CHECK(ChunksIn(512 * kMiB) <= 4);
  CHECK(ChunksIn(uint64_t{12} << 30) >= 16);  // as many small rings as there are connections
  CHECK(ChunksIn(uint64_t{64} << 30) == 128);
  RingWorld world;
  pstn_lgr_ref& client = world.ref(0);
  CHECK(ChunksOf(client, world.lgr()) == kChunks);
  CHECK(SlotsOf(client, world.lgr()) == PSTN_CONNS);
  LgrHdr(world.lgr()).chunks[1] = 2;
  CHECK(ChunksOf(client, world.lgr()) == 2);
  client.chunks = 1;
  CHECK(ChunksOf(client, world.lgr()) == 1);
  CHECK(ChunksOf(world.ref(1), world.lgr()) == kChunks);  // what the client's side says is not said
  LgrHdr(world.lgr()).chunks[1] = 0xffffffffu;            // by a peer that lies
  CHECK(ChunksOf(client, world.lgr()) == 1);
  client.chunks = 0;
  CHECK(ChunksOf(client, world.lgr()) == kChunks);
}

TEST_CASE("chunks: of a link group with another user no more than 96 MiB of rings are mapped") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  ref.remote = PSTN_LGR_OTHER_USER;
  OwnOfLgr(world.lgr()).most = kOthersChunks;
  CHECK(ChunksOf(ref, world.lgr()) == kOthersChunks);
  CHECK(SlotsOf(ref, world.lgr()) == PSTN_CONNS);
  LgrHdr(world.lgr()).chunks[1] = 100;  // by a peer that lies
  CHECK(ChunksOf(ref, world.lgr()) == kOthersChunks);
  uint32_t mapped = 0;
  for (uint32_t n = 0; n < kChunks; n++) mapped += ChunkOf(world.lgr(), n) != nullptr ? 1u : 0u;
  CHECK(mapped == kAreas * kOthersChunks);
  CHECK(MappedLinks().bytes < PSTN_LGR_SLAB_OFF + (mapped + 1) * kMiB);
  // What an honest writer gives out is what an honest reader has.
  uint32_t rings[PSTN_SLAB_CLASSES] = {};
  while (const uint64_t desc = TakeRing(ref, 2, ChunksOf(ref, world.lgr()))) {
    rings[RingClass(desc)]++;
    REQUIRE(RingAt(world.lgr(), 0, desc).base != nullptr);
  }
  CHECK(rings[0] == PSTN_CONNS);
  CHECK(rings[1] == 256);
  CHECK(rings[2] == 16);
}

TEST_CASE("chunks: where few are said, no slot and no larger ring is given out beyond them") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  ref.chunks = 2;
  uint32_t conns = 0, rings[PSTN_SLAB_CLASSES] = {};
  while (TakeConn(ref, world.lgr()) != PSTN_NONE) conns++;
  CHECK(conns == 512);
  const uint32_t chunks = ChunksOf(ref, world.lgr());
  CHECK(SlabHas(ref, 2, chunks));
  while (const uint64_t desc = TakeRing(ref, 2, chunks)) {
    rings[RingClass(desc)]++;
    if (RingClass(desc) == 0) continue;
    const uint64_t page = (desc & PSTN_RING_PLACE) - SlabPage(0);
    REQUIRE(page / kChunkPages < kChunkAreas[RingClass(desc)].first + 2);
  }
  CHECK(rings[2] == 2);
  CHECK(rings[1] == 32);
  CHECK(rings[0] == PSTN_CONNS);  // each connection can have one
  CHECK_FALSE(SlabHas(ref, 2, chunks));
  CHECK_FALSE(SlabHas(ref, 1, chunks));
}

}  // namespace
}  // namespace postern
