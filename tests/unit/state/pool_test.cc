// pool_test.cc - the free list of indices: each is held once, under contention too.
// SPDX-License-Identifier: Apache-2.0
#include "state/pool.h"

#include <set>
#include <thread>
#include <vector>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"

namespace postern {
namespace {

constexpr uint32_t kLimit = 64;

struct Entry {
  uint32_t next = 0, hands = 0;
};

struct Pool {
  pstn_pool pool = {.head = PSTN_NONE, .hw = 0, .lock = {0}};
  Entry entries[kLimit];
  uint32_t mapped = kLimit;
  Table<Entry, ItemIndex> table{entries, kLimit, &mapped};
  uint32_t holder[kLimit] = {};

  uint32_t Take() { return PoolTake(pool, table); }
  void Give(uint32_t idx) { PoolGive(pool, table, idx); }
};

TEST_CASE("pool: all indices, then none, then those that came back, last first") {
  Pool t;
  std::set<uint32_t> taken;
  for (uint32_t i = 0; i < kLimit; i++) {
    const uint32_t idx = t.Take();
    REQUIRE(idx < kLimit);
    REQUIRE(taken.insert(idx).second);
  }
  CHECK(t.Take() == PSTN_NONE);
  CHECK(PoolUsed(t.pool) == kLimit);
  t.Give(3);
  t.Give(9);
  CHECK(t.Take() == 9);
  CHECK(t.Take() == 3);
  CHECK(t.Take() == PSTN_NONE);
  CHECK(PoolUsed(t.pool) == kLimit);
}

TEST_CASE("pool: a head beyond the limit counts as an empty list") {
  Pool t;
  t.pool.head = 5ull << 32 | kLimit;  // five are taken
  CHECK(t.Take() == 0);
  CHECK(t.pool.hw == 1);
}

TEST_CASE("pool: no index has two holders") {
  Pool t;
  std::vector<std::thread> threads;
  uint32_t twice = 0;
  for (uint32_t me = 1; me <= 4; me++) {
    threads.emplace_back([&t, &twice, me] {
      TestRandom random(me);
      std::vector<uint32_t> mine;
      for (int i = 0; i < 20000; i++) {
        if (mine.size() < 20 && random.Below(2) == 0) {
          const uint32_t idx = t.Take();
          if (idx == PSTN_NONE) continue;
          if (Exchange(t.holder[idx], me) != 0) FetchAdd(twice, 1u);
          mine.push_back(idx);
        } else if (!mine.empty()) {
          const uint32_t idx = mine.back();
          mine.pop_back();
          if (Exchange(t.holder[idx], 0u) != me) FetchAdd(twice, 1u);
          t.Give(idx);
        }
      }
      for (const uint32_t idx : mine) {
        Exchange(t.holder[idx], 0u);
        t.Give(idx);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(twice == 0);
  CHECK(PoolUsed(t.pool) == 0);
  std::set<uint32_t> taken;
  for (uint32_t idx = t.Take(); idx != PSTN_NONE; idx = t.Take()) REQUIRE(taken.insert(idx).second);
  CHECK(taken.size() == kLimit);  // none was lost either
}

TEST_CASE("pool: the stack's pools reach their limits") {
  RingWorld world;
  std::set<uint32_t> waiters;
  for (uint32_t idx = TakeWaiter(world.stack()); idx != PSTN_NONE; idx = TakeWaiter(world.stack()))
    waiters.insert(idx);
  CHECK(waiters.size() == PSTN_WAITERS - 6);
  for (int i = 0; i < 2; i++) {  // its keepers find room
    const uint32_t idx = TakeWaiter(world.stack(), For::kKeeper);
    CHECK(idx != PSTN_NONE);
    waiters.insert(idx);
  }
  CHECK(waiters.size() == PSTN_WAITERS - 4);
  CHECK(TakeWaiter(world.stack(), For::kKeeper) == PSTN_NONE);
  CHECK(waiters.count(PSTN_EVMAP_WIRE) == 0);
  CHECK(waiters.count(PSTN_EVMAP_SYN) == 0);
  CHECK(waiters.count(PSTN_EVMAP_HELD) == 0);
  const uint32_t ep = TakeEp(world.stack());
  CHECK(EpAt(world.stack(), ep) == &world.stack().eps.Own(EpIndex(ep)));
  CHECK(EpAt(world.stack(), kSockets.usual) == nullptr);
  CHECK(EpIdx(world.stack(), world.stack().eps.Own(EpIndex(ep))) == ep);
  GiveEp(world.stack(), ep);
  CHECK(TakeEp(world.stack()) == ep);
}

}  // namespace
}  // namespace postern
