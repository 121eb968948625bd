// SPDX-License-Identifier: Apache-2.0
// replay.h - main() of a fuzzer that is built without libFuzzer: inputs from random seeds.
//
//   FUZZER [SECONDS [FIRST_SEED]]   default 3 s from 1; a failure says which seed it was
//
// The seconds are of its own CPU time: what else the machine does takes no inputs away. One that
// waits ends after three times as long.
#pragma once
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace postern {

// splitmix64: small, seeded, the same everywhere.
class FuzzRandom {
 public:
  explicit FuzzRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_;
};

inline uint64_t g_fuzz_seed = 0;  // 0: libFuzzer keeps the input itself

[[noreturn]] inline void FuzzDie(const char* what, const char* more = "") {
  fprintf(stderr, "broken: %s %s (seed %llu)\n", what, more,
          static_cast<unsigned long long>(g_fuzz_seed));
  abort();
}
#define FUZZ_CHECK(cond) \
  if (!(cond)) postern::FuzzDie(#cond)

inline double CpuSeconds() {
  timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) / 1e9;
}

inline int FuzzReplay(int argc, char** argv, size_t bytes_max) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  const uint64_t first = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
  const uint64_t end_ns = MonotonicNs() + static_cast<uint64_t>(3 * seconds * 1e9);
  std::vector<uint8_t> input;
  for (g_fuzz_seed = first; CpuSeconds() < seconds && MonotonicNs() < end_ns; g_fuzz_seed++) {
    FuzzRandom random(g_fuzz_seed);
    input.resize(1 + random.Next() % bytes_max);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random.Next() >> 32);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  printf("%llu inputs, seeds from %llu\n", static_cast<unsigned long long>(g_fuzz_seed - first),
         static_cast<unsigned long long>(first));
  return 0;
}

}  // namespace postern
