// SPDX-License-Identifier: Apache-2.0
// known_stream.h - a stream of bytes that are known from their positions, and random numbers by
// seed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace postern {

constexpr uint64_t kStreamStep = 0x9e3779b97f4a7c15u;

// The byte of a test stream at a position: no two nearby stretches are alike, and nobody has to
// remember what was sent.
inline uint8_t StreamByte(uint64_t seed, uint64_t pos) {
  return static_cast<uint8_t>((pos + seed) * kStreamStep >> 56);
}
// The same from byte to byte: tests are compiled without optimisation, and this is most of some.
inline void FillStream(uint8_t* at, size_t bytes, uint64_t seed, uint64_t pos) {
  uint64_t value = (pos + seed) * kStreamStep;
  for (size_t i = 0; i < bytes; i++) {
    at[i] = static_cast<uint8_t>(value >> 56);
    value += kStreamStep;
  }
}
// Index of the first wrong byte, or `bytes`.
inline size_t CheckStream(const uint8_t* at, size_t bytes, uint64_t seed, uint64_t pos) {
  uint64_t value = (pos + seed) * kStreamStep;
  for (size_t i = 0; i < bytes; i++) {
    if (at[i] != static_cast<uint8_t>(value >> 56)) return i;
    value += kStreamStep;
  }
  return bytes;
}

// splitmix64: small, seeded, the same everywhere.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  size_t Below(size_t limit) { return static_cast<size_t>(Next() % limit); }
  // Sizes as programs use them: mostly small, now and then large.
  size_t Size(size_t largest) {
    const size_t limit = size_t{1} << Below(64 - static_cast<size_t>(__builtin_clzll(largest)));
    return 1 + Below(limit < largest ? limit * 2 : largest) % largest;
  }

 private:
  uint64_t state_;
};

}  // namespace postern
