// SPDX-License-Identifier: Apache-2.0
// be.h - integers as they stand on the wire: big-endian, at any address.
//
// A struct of these can be laid over bytes: its size is the sum of its fields and its alignment
// is 1.
#pragma once
#include <cstddef>
#include <cstdint>

namespace postern {

template <typename T>
class Be {
 public:
  constexpr T get() const {
    T value = 0;
    for (uint8_t byte : bytes_) value = static_cast<T>(static_cast<uint64_t>(value) << 8 | byte);
    return value;
  }
  constexpr void set(T value) {
    for (size_t i = 0; i < sizeof(T); i++)
      bytes_[i] = static_cast<uint8_t>(value >> (8 * (sizeof(T) - 1 - i)));
  }

 private:
  uint8_t bytes_[sizeof(T)];
};

using Be16 = Be<uint16_t>;
using Be32 = Be<uint32_t>;
using Be64 = Be<uint64_t>;
static_assert(sizeof(Be64) == 8 && alignof(Be64) == 1);

}  // namespace postern
