// SPDX-License-Identifier: Apache-2.0
// be.h - integers as they stand on the wire: big-endian, at any address.
//
// A struct of these can be laid over bytes: its size is the sum of its fields and its alignment
// is 1.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace postern {

template <typename T>
class Be {
 public:
  constexpr T get() const { return Swap(std::bit_cast<T>(bytes_)); }
  constexpr void set(T value) { bytes_ = std::bit_cast<Bytes>(Swap(value)); }

 private:
  using Bytes = std::array<uint8_t, sizeof(T)>;

  // One load or store, and one instruction: compilers don't see that in a loop over bytes.
  static constexpr T Swap(T value) {
    if constexpr (std::endian::native == std::endian::big) return value;
    if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  }

  Bytes bytes_;
};

using Be16 = Be<uint16_t>;
using Be32 = Be<uint32_t>;
using Be64 = Be<uint64_t>;
static_assert(sizeof(Be64) == 8 && alignof(Be64) == 1);

inline uint16_t LoadBe16(const uint8_t* at) { return reinterpret_cast<const Be16*>(at)->get(); }
inline uint32_t LoadBe32(const uint8_t* at) { return reinterpret_cast<const Be32*>(at)->get(); }

}  // namespace postern
