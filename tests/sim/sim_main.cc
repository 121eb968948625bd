// SPDX-License-Identifier: Apache-2.0
// sim_main.cc - the arguments of the simulations.
//
//   postern_sim [--seed N] [--runs N] [Catch2's arguments]
//
// A failure prints its seed; `--seed N --runs 1 "name of the test"` plays it again, event by event.
#include <cstdlib>
#include <cstring>

#include "../unit/kit/own_arguments.h"
#include "seeds.h"

namespace postern::sim {
uint64_t first_seed = 1;
uint64_t seed_runs = 0;
}  // namespace postern::sim

int postern::test::TakeOwnArguments(int argc, char** argv) {
  int kept = 1;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      postern::sim::first_seed = strtoull(argv[++i], nullptr, 0);
    } else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc) {
      postern::sim::seed_runs = strtoull(argv[++i], nullptr, 0);
    } else {
      argv[kept++] = argv[i];
    }
  }
  return kept;
}
