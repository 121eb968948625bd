// SPDX-License-Identifier: Apache-2.0
// table.h - a table in shared memory, and the only way from an index to an entry of it.
//
// Base and count are private copies, which were checked when the stack was mapped (stack_map.h):
// nothing that a process writes into the stack afterwards changes where a table ends. A look-up
// loads nothing of shared memory. It compares, and gives null for what is beyond the end.
//
// A process maps the beginning of a table, and more of it when an index lies beyond. What a look-up
// compares with is how much is mapped, a word of the process's own; the end itself is looked at
// where that says no. Entries never move.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/atomic.h"
#include "state/index.h"

namespace postern {

// A table's memory, whatever it consists of.
struct TableSpan {
  uint8_t* base;
  size_t entry_bytes;
  uint32_t count;
};
// Maps entry `i` of `table`, which has one, and those before it, and puts how many are mapped into
// `mapped`. False: no memory. (stack_map.cc)
[[nodiscard]] bool MapEntry(const TableSpan& table, uint32_t& mapped, uint32_t i);

template <typename T, typename I>
class Table {
 public:
  // `mapped` lives as long as the table.
  constexpr Table(T* base, uint32_t count, uint32_t* mapped)
      : base_(base), count_(count), mapped_(mapped) {}

  [[nodiscard]] uint32_t count() const { return count_; }

  // The entry, or null if there is none of that index, or no memory to map it. This is the way of
  // an index that comes out of shared memory.
  [[nodiscard]] T* At(I i) const {
    if (i.word() >= LoadAcquire(*mapped_)) [[unlikely]] {  // [V5]
      if (!Reaches(i.word())) return nullptr;
    }
    return base_ + i.word();
  }

  // The entry of an index that this process keeps to itself, or has just taken from the pool or got
  // from IndexOf(): At() has given it before. One beyond the end is a bug of ours, which ends the
  // process.
  [[nodiscard]] T& Own(I i) const {
    T* const entry = At(i);
    if (entry == nullptr) [[unlikely]]
      __builtin_trap();
    return *entry;
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
  // The entries before `end`, which may be any word of shared memory; fewer if there is no memory
  // to map all of them.
  [[nodiscard]] Range Before(uint32_t end) const {
    end = Clamp(end);
    const uint32_t mapped = LoadAcquire(*mapped_);  // [V5]
    if (end > mapped && !Reaches(end - 1)) end = mapped;
    return {base_, base_ + end};
  }
  [[nodiscard]] Range All() const { return Before(count_); }
  // For loops that need the numbers: no more than there are entries.
  [[nodiscard]] uint32_t Clamp(uint32_t end) const { return end < count_ ? end : count_; }

 private:
  [[nodiscard]] __attribute__((noinline, cold)) bool Reaches(uint32_t i) const {
    using Bytes = std::remove_const_t<T>;
    return i < count_ &&
           MapEntry({reinterpret_cast<uint8_t*>(const_cast<Bytes*>(base_)), sizeof(T), count_},
                    *mapped_, i);
  }

  T* base_;
  uint32_t count_;
  uint32_t* mapped_;  // (a) entries that are mapped: a word of the process's own
};

}  // namespace postern
