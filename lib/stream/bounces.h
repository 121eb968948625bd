// SPDX-License-Identifier: Apache-2.0
// bounces.h - memory of a process through which files go into rings (splice.cc).
#pragma once
#include <cstddef>
#include <cstdint>

namespace postern {

inline constexpr size_t kBounce = 32768;
inline constexpr uint32_t kBounces = 16;
struct Bounces {
  alignas(64) uint8_t buffers[kBounces][kBounce];
  uint32_t owners[kBounces];  // (a) process id; 0: free
};

}  // namespace postern
