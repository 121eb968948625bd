// SPDX-License-Identifier: Apache-2.0
// bits_test.cc - looks at an event map: each bit once, and no look longer than its budget.
#include "state/bits.h"

#include <memory>
#include <vector>

#include "../kit/catch.h"

namespace postern {
namespace {

TEST_CASE("bits: every bit is taken once, in looks that end") {
  auto map = std::make_unique<pstn_evmap>();
  for (uint64_t& leaf : map->leaf) leaf = ~uint64_t{0};
  map->summary = ~uint64_t{0};
  uint32_t hand = GENERATE(0u, 17u, 63u, 4000000000u);
  const uint32_t cost = GENERATE(1u, 64u, 100000u);
  std::vector<int> seen(PSTN_CONNS);
  int looks = 0;
  for (; map->summary != 0; looks++) {
    REQUIRE(looks < 5000);
    uint64_t spent = 0;
    TakeBits(*map, hand, [&](uint32_t conn) {
      CHECK(spent <= kLookBudget);
      spent += cost;
      seen[conn]++;
      return cost;
    });
  }
  CHECK(seen == std::vector<int>(PSTN_CONNS, 1));
  CHECK(looks > 4);
  CHECK(hand == 0);
}

TEST_CASE("bits: those who are set again and again do not starve the others") {
  auto map = std::make_unique<pstn_evmap>();
  uint32_t hand = 0;
  std::vector<int> seen(PSTN_CONNS);
  for (int look = 0; look < 64; look++) {
    for (uint64_t& leaf : map->leaf) leaf = ~uint64_t{0};
    map->summary = ~uint64_t{0};
    TakeBits(*map, hand, [&](uint32_t conn) {
      seen[conn]++;
      return 1u;
    });
  }
  for (const int n : seen) REQUIRE(n > 0);
}

TEST_CASE("bits: what can't be had now stays") {
  auto map = std::make_unique<pstn_evmap>();
  map->leaf[3] = 0b1011;
  map->leaf[9] = 1;
  map->summary = 1u << 3 | 1u << 9;
  uint32_t hand = 0, calls = 0;
  TakeBits(*map, hand, [&](uint32_t) { return ++calls == 2 ? kPutBack : 1u; });
  CHECK(map->leaf[3] == 0b1010);
  CHECK(map->leaf[9] == 1);
  CHECK(map->summary == (1u << 3 | 1u << 9));
  CHECK(hand == 3);
}

}  // namespace
}  // namespace postern
