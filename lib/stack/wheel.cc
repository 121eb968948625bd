// SPDX-License-Identifier: Apache-2.0
// wheel.cc - see wheel.h.
#include "stack/wheel.h"

#include <bit>
#include <cstring>

namespace postern::stack {

void WheelFormat(Wheel& wheel, uint64_t now_ns) {
  memset(&wheel, 0, sizeof wheel);
  memset(wheel.head, 0xff, sizeof wheel.head);  // PSTN_NONE
  wheel.fine_now = now_ns >> kFineShift;
  wheel.coarse_now = now_ns >> kCoarseShift;
}

namespace {

// The first slot behind `now` that has entries, as an absolute number; 0: none.
uint64_t FirstSlot(const uint64_t* map, uint64_t now) {
  for (uint64_t s = now + 1; s <= now + kWheelSlots;) {
    const uint32_t in = static_cast<uint32_t>(s % kWheelSlots);
    const uint64_t word = map[in / 64] >> (in % 64);
    if (word != 0) return s + static_cast<uint64_t>(std::countr_zero(word));
    s += 64 - in % 64;
  }
  return 0;
}

}  // namespace

uint64_t WheelNext(const Wheel& wheel) {
  if (wheel.count == 0) return kNoDeadline;
  const uint64_t fine = FirstSlot(wheel.map[0], wheel.fine_now);
  const uint64_t coarse = FirstSlot(wheel.map[1], wheel.coarse_now);
  const uint64_t fine_ns = fine != 0 ? fine << kFineShift : kNoDeadline;
  const uint64_t coarse_ns = coarse != 0 ? coarse << kCoarseShift : kNoDeadline;
  return fine_ns < coarse_ns ? fine_ns : coarse_ns;
}

}  // namespace postern::stack
