// SPDX-License-Identifier: Apache-2.0
// moved_clock.h - the clock of a fuzzer's process, g_ahead_ns ahead of the host's. A definition,
// for the fuzzer's one source.
#pragma once
#include "posternd_world.h"

extern "C" int clock_gettime(clockid_t id, timespec* out) {
  const int r = postern::RealClock(id, out);
  if (id == CLOCK_REALTIME) return r;  // libFuzzer's, which sees to it that a run has an end
  const uint64_t ns = static_cast<uint64_t>(out->tv_nsec) + postern::g_ahead_ns;
  out->tv_sec += static_cast<time_t>(ns / 1'000'000'000);
  out->tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return r;
}
