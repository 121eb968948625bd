// checksum.cc - sums in 64-bit lanes, so that no carry has to be looked after.
// SPDX-License-Identifier: Apache-2.0
//
// Each lane adds up 32-bit words: it could take 2^32 of them before it overflowed. A word of 64
// bits is two of them (mask, shift), which keeps 16-byte registers of SSE2 as busy as a chain of
// adc would keep the adder, at twice the bytes, and needs no assembly. Lanes are GCC's vectors:
// wider where the compiler may use AVX2, halves or scalars where there is less.
#include "wire/checksum.h"

namespace postern::wire {
namespace {

#ifdef __AVX2__
constexpr size_t kLaneBytes = 32;
#else
constexpr size_t kLaneBytes = 16;
#endif
constexpr size_t kBlockBytes = 64;
using Lanes = uint64_t __attribute__((vector_size(kLaneBytes)));

enum class Copying { kNo, kYes };

template <typename T, Copying kCopying>
T Load(uint8_t* to, const uint8_t* from) {
  T value;
  memcpy(&value, from, sizeof value);
  if constexpr (kCopying == Copying::kYes) memcpy(to, &value, sizeof value);
  return value;
}

uint64_t AddLanes(const Lanes& lanes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kLaneBytes / sizeof(uint64_t); i++) sum += lanes[i];
  return sum;
}

template <Copying kCopying>
uint32_t Run(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t before) {
  uint64_t sum = before;
  size_t at = 0;
  const auto dest = [&](size_t off) { return kCopying == Copying::kYes ? to + off : nullptr; };
  if (bytes >= kBlockBytes) {
    Lanes low{}, high{}, low2{}, high2{};  // two chains: more adders than one can keep busy
    for (; bytes - at >= kBlockBytes; at += kBlockBytes) {
      for (size_t i = 0; i < kBlockBytes; i += 2 * kLaneBytes) {
        const Lanes words = Load<Lanes, kCopying>(dest(at + i), from + at + i);
        const Lanes more =
            Load<Lanes, kCopying>(dest(at + i + kLaneBytes), from + at + i + kLaneBytes);
        low += words & 0xffffffff;
        high += words >> 32;
        low2 += more & 0xffffffff;
        high2 += more >> 32;
      }
    }
    sum += AddLanes(low + low2) + AddLanes(high + high2);
  }
  for (; bytes - at >= 8; at += 8) {
    const auto words = Load<uint64_t, kCopying>(dest(at), from + at);
    sum += words;
    sum += sum < words ? 1 : 0;  // the end-around carry
  }
  sum = (sum & 0xffffffff) + (sum >> 32);
  if ((bytes & 4) != 0) {
    sum += Load<uint32_t, kCopying>(dest(at), from + at);
    at += 4;
  }
  if ((bytes & 2) != 0) {
    sum += Load<uint16_t, kCopying>(dest(at), from + at);
    at += 2;
  }
  if ((bytes & 1) != 0)
    sum += SwapToBig(static_cast<uint16_t>(Load<uint8_t, kCopying>(dest(at), from + at) << 8));
  sum = (sum & 0xffffffff) + (sum >> 32);
  return static_cast<uint32_t>(sum + (sum >> 32));
}

}  // namespace

uint32_t Sum(const uint8_t* from, size_t bytes, uint32_t sum) {
  return Run<Copying::kNo>(nullptr, from, bytes, sum);
}

uint32_t CopySum(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t sum) {
  return Run<Copying::kYes>(to, from, bytes, sum);
}

}  // namespace postern::wire
