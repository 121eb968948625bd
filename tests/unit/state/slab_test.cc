// slab_test.cc - rings and connection slots are given out once each, and come back.
// SPDX-License-Identifier: Apache-2.0
#include "state/slab.h"

#include <sys/mman.h>

#include <cstring>
#include <initializer_list>
#include <set>
#include <vector>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"

namespace postern {
namespace {

// How far behind the first ring of the segment that place is; it is mapped.
uint64_t OffOf(RingWorld& world, const uint8_t* place) {
  const LgrOwn& own = OwnOfLgr(world.lgr());
  for (uint32_t n = 0; n < kChunks; n++)
    if (own.chunk[n] != nullptr && place >= own.chunk[n] && place < own.chunk[n] + kChunkBytes)
      return uint64_t{n} * kChunkBytes + static_cast<uint64_t>(place - own.chunk[n]);
  FAIL("not in a chunk");
  return 0;
}

TEST_CASE("slab: every ring of every class once, none overlaps, then smaller ones, then none") {
  RingWorld world;
  for (uint32_t side = 0; side < 2; side++) {
    pstn_lgr_ref& ref = world.ref(side);
    std::vector<uint64_t> all;
    std::set<uint8_t*> lines;
    uint32_t count[PSTN_SLAB_CLASSES] = {};
    const uint64_t begin = side * PSTN_SLAB_BYTES;
    while (const uint64_t desc = TakeRing(ref, PSTN_SLAB_CLASSES - 1)) {
      const RingPlace place = RingAt(world.lgr(), side, desc);
      REQUIRE(place.base != nullptr);
      const uint64_t off = OffOf(world, place.base);
      REQUIRE(off >= begin);
      REQUIRE(off + place.bytes <= begin + PSTN_SLAB_BYTES);
      REQUIRE(RingAt(world.lgr(), side ^ 1u, desc).base == nullptr);
      for (uint32_t at = 0; at < place.bytes; at += PSTN_RING0_BYTES)
        REQUIRE(lines.insert(place.base + at).second);
      count[RingClass(desc)]++;
      all.push_back(desc);
    }
    for (uint32_t cls = 0; cls < PSTN_SLAB_CLASSES; cls++) CHECK(count[cls] == RingCount(cls));
    CHECK(ref.rings == all.size());
    CHECK(TakeRing(ref, 0) == 0);
    for (const uint64_t desc : all) GiveRing(ref, world.lgr(), desc, Pages::kKeep);
    CHECK(ref.rings == 0);
    CHECK(TakeRing(ref, 0) != 0);
  }
}

TEST_CASE("slab: what is not a ring that was given out cannot be given back") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  const uint64_t mine = TakeRing(ref, 1);
  REQUIRE(mine != 0);
  const uint64_t never = mine + PSTN_RING1_BYTES / 4096;
  const uint64_t class_three = uint64_t{3} << PSTN_RING_CLASS_SHIFT;
  for (const uint64_t desc : {uint64_t{0}, ~uint64_t{0}, never, class_three, uint64_t{1}})
    GiveRing(ref, world.lgr(), desc, Pages::kKeep);
  CHECK(ref.rings == 1);
  GiveRing(ref, world.lgr(), mine, Pages::kKeep);
  GiveRing(ref, world.lgr(), mine, Pages::kKeep);
  CHECK(ref.rings == 0);
}

TEST_CASE("slab: any word is a ring of that side's slab or nothing") {
  RingWorld world;
  TestRandom random(5);
  int rings = 0;
  for (int i = 0; i < 400000; i++) {
    const uint64_t page =
        random.Below(4) != 0 ? random.Below(PSTN_LGR_BYTES / 4096 + 16) : random.Next();
    const uint64_t desc = random.Next() << PSTN_RING_CLASS_SHIFT | (page & ((1ull << 40) - 1));
    const uint32_t side = static_cast<uint32_t>(random.Below(2));
    const RingPlace place = RingAt(world.lgr(), side, desc);
    if (place.base == nullptr) continue;
    rings++;
    const uint32_t cls = RingClass(desc);
    REQUIRE(cls < PSTN_SLAB_CLASSES);
    REQUIRE(place.bytes == RingBytes(cls));
    const uint64_t off = OffOf(world, place.base);
    const uint64_t first = side * PSTN_SLAB_BYTES + ClassOff(cls);
    REQUIRE(off >= first);
    REQUIRE((off - first) % place.bytes == 0);
    REQUIRE((off - first) / place.bytes < RingCount(cls));
  }
  CHECK(rings > 100);
}

TEST_CASE("slab: the edges of each class") {
  RingWorld world;
  for (uint32_t side = 0; side < 2; side++) {
    for (uint32_t cls = 0; cls < PSTN_SLAB_CLASSES; cls++) {
      const uint64_t first = (PSTN_LGR_SLAB_OFF + side * PSTN_SLAB_BYTES + ClassOff(cls)) / 4096;
      const uint64_t pages = RingBytes(cls) / 4096, end = first + pages * RingCount(cls);
      const uint64_t tag = static_cast<uint64_t>(cls) << PSTN_RING_CLASS_SHIFT;
      CHECK(RingAt(world.lgr(), side, tag | first).base != nullptr);
      CHECK(RingAt(world.lgr(), side, tag | (end - pages)).base != nullptr);
      CHECK(RingAt(world.lgr(), side, tag | (first - 1)).base == nullptr);
      CHECK(RingAt(world.lgr(), side, tag | (first - pages)).base == nullptr);
      CHECK(RingAt(world.lgr(), side, tag | end).base == nullptr);
      if (cls != 0) CHECK(RingAt(world.lgr(), side, tag | (first + 1)).base == nullptr);
    }
  }
  CHECK(PSTN_LGR_SLAB_OFF + 2 * PSTN_SLAB_BYTES == PSTN_LGR_BYTES);
}

TEST_CASE("slab: connection slots") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  std::set<uint32_t> taken;
  for (uint32_t i = 0; i < PSTN_CONNS; i++) {
    const uint32_t conn = TakeConn(ref, world.lgr());
    REQUIRE(conn < PSTN_CONNS);
    REQUIRE(taken.insert(conn).second);
  }
  CHECK(ref.conns == PSTN_CONNS);
  CHECK(TakeConn(ref, world.lgr()) == PSTN_NONE);
  GiveConn(ref, 77);
  GiveConn(ref, 77);
  GiveConn(ref, PSTN_CONNS);
  CHECK(ref.conns == PSTN_CONNS - 1);
  CHECK(TakeConn(ref, world.lgr()) == 77);
}

TEST_CASE("slab: a zombie keeps its slot and its rings until the peer has let go") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  for (uint32_t i = 0; i < PSTN_CONNS; i++) REQUIRE(TakeConn(ref, world.lgr()) == i);
  const uint64_t ring = TakeRing(ref, 1), old = TakeRing(ref, 0);
  pstn_conn& conn = LgrConn(world.lgr(), 100);
  conn.setup.state = PSTN_CS_CLIENT_GONE;
  MakeZombie(ref, 100, ring, old);
  MakeZombie(ref, 100, 0, 0);  // once only
  MakeZombie(ref, PSTN_CONNS, 0, 0);
  CHECK(ref.zombies == 1);
  SweepZombies(ref, world.lgr());
  CHECK(TakeConn(ref, world.lgr()) == PSTN_NONE);
  CHECK(ref.rings == 2);
  conn.setup.state = PSTN_CS_FREE;
  SECTION("found by the one who needs a slot") {
    CHECK(TakeConn(ref, world.lgr()) == 100);
    CHECK(ref.conns == PSTN_CONNS);
  }
  SECTION("found by the sweep") {
    SweepZombies(ref, world.lgr());
    CHECK(ref.conns == PSTN_CONNS - 1);
  }
  SECTION("buried by name") {
    BuryZombie(ref, world.lgr(), 100);
    BuryZombie(ref, world.lgr(), 100);
    BuryZombie(ref, world.lgr(), PSTN_CONNS + 5);
    CHECK(ref.conns == PSTN_CONNS - 1);
  }
  SECTION("taken back into life") {
    UnmakeZombie(ref, world.lgr(), 100);
    CHECK(ref.conns == PSTN_CONNS);
  }
  CHECK(ref.rings == 0);
  CHECK(ref.zombies == 0);
}

TEST_CASE("slab: thousands of zombies cost a few looks, and each that is left is found") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  for (uint32_t i = 0; i < PSTN_CONNS; i++) REQUIRE(TakeConn(ref, world.lgr()) == i);
  for (uint32_t i = 0; i < PSTN_CONNS; i++) {
    LgrConn(world.lgr(), i).setup.state = PSTN_CS_CLIENT_GONE;
    MakeZombie(ref, i, 0, 0);
  }
  GiveConn(ref, 3000);  // free, behind more zombies than are looked at
  UnmakeZombie(ref, world.lgr(), 3000);
  CHECK(TakeConn(ref, world.lgr()) == 3000);
  std::set<uint32_t> left = {0, 1999, 2000, PSTN_CONNS - 1};
  for (const uint32_t i : left) LgrConn(world.lgr(), i).setup.state = PSTN_CS_FREE;
  for (uint32_t calls = 0; !left.empty(); calls++) {
    REQUIRE(calls < PSTN_CONNS / 8);
    const uint32_t conn = TakeConn(ref, world.lgr());
    if (conn == PSTN_NONE) continue;
    REQUIRE(left.erase(conn) == 1);
    LgrConn(world.lgr(), conn).setup.state = PSTN_CS_SYN;
  }
  CHECK(ref.zombies == PSTN_CONNS - 5);
  CHECK(ref.conns == PSTN_CONNS);
  LgrConn(world.lgr(), 777).setup.state = PSTN_CS_FREE;
  SweepZombies(ref, world.lgr());
  CHECK(TakeConn(ref, world.lgr()) == 777);
}

// Bytes of the link group that have pages.
size_t ResidentOf(RingWorld& world, uint32_t side) {
  unsigned char resident[kChunkPages];
  size_t pages = 0;
  for (uint32_t n = side * kSideChunks; n < (side + 1) * kSideChunks; n++) {
    uint8_t* const chunk = OwnOfLgr(world.lgr()).chunk[n];
    if (chunk == nullptr) continue;
    REQUIRE(mincore(chunk, kChunkBytes, resident) == 0);
    for (const unsigned char r : resident) pages += r & 1u;
  }
  return pages * 4096;
}

TEST_CASE("slab: a burst's rings go back to the system, some stay warm and are taken first") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  const uint32_t cls = static_cast<uint32_t>(GENERATE(0, 1, 2));
  const size_t before = ResidentOf(world, 0);
  std::vector<uint64_t> all;
  for (uint32_t i = 0; i < RingCount(cls) && i < 300; i++) {
    all.push_back(TakeRing(ref, cls));
    const RingPlace place = RingAt(world.lgr(), 0, all.back());
    memset(place.base, 1, place.bytes);
  }
  CHECK(ResidentOf(world, 0) - before == all.size() * RingBytes(cls));
  for (const uint64_t desc : all) GiveRing(ref, world.lgr(), desc, Pages::kKeep);
  const size_t warm = WarmBytes(ref);
  CHECK(warm <= 8u << 20);
  CHECK(ResidentOf(world, 0) - before == warm);
  const std::set<uint64_t> given(all.begin(), all.end());
  std::vector<uint64_t> again;
  while (WarmBytes(ref) != 0) {
    again.push_back(TakeRing(ref, cls));
    REQUIRE(given.count(again.back()) == 1);
    REQUIRE(LoadRelaxed(*RingAt(world.lgr(), 0, again.back()).base) == 1);  // with its pages
  }
  CHECK(again.size() * RingBytes(cls) == warm);
  CHECK(ref.rings == again.size());
  GiveRing(ref, world.lgr(), again[0], Pages::kDrop);
  for (const uint64_t desc : again) GiveRing(ref, world.lgr(), desc, Pages::kKeep);
  CHECK(WarmBytes(ref) == warm - RingBytes(cls));
  DropWarm(ref, world.lgr());
  CHECK(WarmBytes(ref) == 0);
  CHECK(ResidentOf(world, 0) == before);
  CHECK(ref.rings == 0);
}

}  // namespace
}  // namespace postern
