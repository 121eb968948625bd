// SPDX-License-Identifier: Apache-2.0
// table.h - a table in shared memory, and the only way from an index to an entry of it.
//
// Base and count are private copies, which were checked when the stack was mapped (stack_map.h):
// nothing that a process writes into the stack afterwards changes where a table ends. A look-up
// loads nothing of shared memory. It compares, and gives null for what is beyond the end.
#pragma once
#include <cstddef>

#include "state/index.h"

namespace postern {

template <typename T, typename I>
class Table {
 public:
  constexpr Table(T* base, uint32_t count) : base_(base), count_(count) {}

  [[nodiscard]] uint32_t count() const { return count_; }

  // The entry, or null if there is none of that index. This is the way of an index that comes out
  // of shared memory.
  [[nodiscard]] T* At(I i) const { return i.word() < count_ ? base_ + i.word() : nullptr; }

  // The entry of an index that this process keeps to itself, or has just taken from the pool or got
  // from IndexOf(). One beyond the end is a bug of ours, which ends the process.
  [[nodiscard]] T& Own(I i) const {
    if (i.word() >= count_) [[unlikely]]
      __builtin_trap();
    return base_[i.word()];
  }

  // `entry` is one of this table's.
  [[nodiscard]] I IndexOf(const T& entry) const { return I(static_cast<uint32_t>(&entry - base_)); }
  // Wherever `at` points; PSTN_NONE's index if not at an entry, or into one.
  [[nodiscard]] I IndexAt(const void* at) const {
    const size_t off = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(base_);
    return off < sizeof(T) * count_ ? I(static_cast<uint32_t>(off / sizeof(T))) : I();
  }

  struct Range {
    T* first;
    T* last;
    [[nodiscard]] T* begin() const { return first; }
    [[nodiscard]] T* end() const { return last; }
  };
  // The entries before `end`, which may be any word of shared memory.
  [[nodiscard]] Range Before(uint32_t end) const { return {base_, base_ + Clamp(end)}; }
  [[nodiscard]] Range All() const { return {base_, base_ + count_}; }
  // For loops that need the numbers: no more than there are entries.
  [[nodiscard]] uint32_t Clamp(uint32_t end) const { return end < count_ ? end : count_; }

 private:
  T* base_;
  uint32_t count_;
};

}  // namespace postern
