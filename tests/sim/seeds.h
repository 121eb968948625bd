// SPDX-License-Identifier: Apache-2.0
// seeds.h - which seeds a run of the simulations uses: --seed N for one of them, --runs N for more.
#pragma once
#include <cstdint>

namespace postern::sim {

extern uint64_t first_seed;  // 1 unless --seed says something else
extern uint64_t seed_runs;   // how many; 0: as many as the test thinks right

template <typename Body>
void Seeds(uint64_t count, Body body) {
  const uint64_t runs = seed_runs != 0 ? seed_runs : count;
  for (uint64_t i = 0; i < runs; i++) body(first_seed + i);
}

}  // namespace postern::sim
