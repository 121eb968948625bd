// SPDX-License-Identifier: Apache-2.0
// wheel_test.cc - no timer is early, none is lost, and WheelNext() never sleeps too long.
#include "stack/wheel.h"

#include <memory>
#include <random>
#include <vector>

#include "../kit/catch.h"

namespace postern::stack {

TEST_CASE("wheel: against a list, with deadlines that move") {
  constexpr uint32_t kTimers = 500;
  constexpr uint64_t kFineNs = 1u << kFineShift, kCoarseNs = 1u << kCoarseShift;
  std::mt19937_64 rng(42);
  auto wheel = std::make_unique<Wheel>();
  std::vector<WheelLink> links(kTimers);
  std::vector<uint64_t> deadline(kTimers, kNoDeadline);
  uint64_t now = 5'000'000'000;
  WheelFormat(*wheel, now);
  WheelView view(*wheel, [&](uint32_t i) -> WheelLink& { return links[i]; });
  uint64_t fired = 0;
  for (int round = 0; round < 20000; round++) {
    const uint32_t i = static_cast<uint32_t>(rng() % kTimers);
    static constexpr uint64_t kScale[] = {1'000, 1'000'000, 200'000'000, 10'000'000'000,
                                          400'000'000'000};
    switch (rng() % 4) {
      case 0:
      case 1:
        deadline[i] = now + rng() % kScale[rng() % 5];
        view.Set(i, deadline[i]);
        break;
      case 2:
        deadline[i] = kNoDeadline;
        if (rng() % 2 == 0) view.Remove(i);
        break;
      default:
        now += rng() % kScale[rng() % 4];
    }
    const uint64_t next = WheelNext(*wheel);
    if (rng() % 8 == 0 && next != kNoDeadline && next > now) now = next;
    while (view.Run(now, 7, [&](uint32_t idx) {
      if (deadline[idx] > now) return deadline[idx];
      fired++;
      deadline[idx] = kNoDeadline;
      return kNoDeadline;
    })) {
    }
    for (uint32_t t = 0; t < kTimers; t++) {
      if (deadline[t] == kNoDeadline) continue;
      REQUIRE(deadline[t] + 2 * kFineNs > now);  // else it is late
      REQUIRE(links[t].slot != 0);
      REQUIRE(WheelNext(*wheel) <=
              deadline[t] + 2 * kFineNs + (deadline[t] > now + kCoarseNs ? kCoarseNs : 0));
    }
  }
  CHECK(fired > 1000);
}

}  // namespace postern::stack
