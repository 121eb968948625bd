// SPDX-License-Identifier: Apache-2.0
// start_time.h - when a thread began: what tells it from a later one that got its number.
#pragma once
#include <cstdint>

namespace postern {

// Field 22 of /proc/TID/task/TID/stat, in ticks of a hundredth of a second; a process's is its
// first thread's. 0: not known, which is so without a /proc of this PID namespace, and in a time
// namespace of a process's own, whose clock begins elsewhere.
uint64_t StartTimeOf(uint32_t tid);

// `tid` is the number of another thread than that which began at `start`. No, where either is not
// known.
inline bool IsLaterThread(uint32_t tid, uint64_t start) {
  if (start == 0) return false;
  const uint64_t now = StartTimeOf(tid);
  return now != 0 && now != start;
}

}  // namespace postern
