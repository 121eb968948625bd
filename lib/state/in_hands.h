// SPDX-License-Identifier: Apache-2.0
// in_hands.h - in which process's hands an entry of the stack's tables is (PSTN_REFS_*).
//
// Shapes: an endpoint and a set say it in their word of references, the others in `hands`. The mark
// is a slot + 1, as in the words of locks; 0: in no process's alone.
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"
#include "base/lock.h"

namespace postern {

// References, and what is under way with them.
class Refs {
 public:
  constexpr explicit Refs(uint64_t word) : word_(word) {}
  constexpr Refs(uint32_t count, uint32_t mark, uint32_t place, uint64_t gives_up = 0)
      : word_((count & PSTN_REFS_COUNT) |
              (mark == 0 ? 0
                         : static_cast<uint64_t>(place) << PSTN_REFS_PLACE_SHIFT |
                               static_cast<uint64_t>(mark) << PSTN_REFS_MARK_SHIFT | gives_up)) {}

  [[nodiscard]] constexpr uint64_t word() const { return word_; }
  [[nodiscard]] constexpr uint32_t count() const {
    return static_cast<uint32_t>(word_ & PSTN_REFS_COUNT);
  }
  [[nodiscard]] constexpr uint32_t mark() const {
    return static_cast<uint32_t>(word_ >> PSTN_REFS_MARK_SHIFT) & PSTN_LOCK_REAPER;
  }
  [[nodiscard]] constexpr uint32_t place() const {
    return static_cast<uint32_t>(word_ >> PSTN_REFS_PLACE_SHIFT & PSTN_REFS_ALONE);
  }
  [[nodiscard]] constexpr bool gives_up() const { return (word_ & PSTN_REFS_GIVES_UP) != 0; }
  [[nodiscard]] constexpr bool alone() const { return mark() != 0 && place() == PSTN_REFS_ALONE; }
  [[nodiscard]] constexpr bool moving() const { return mark() != 0 && !alone(); }

 private:
  uint64_t word_;
};

inline Refs RefsOf(const pstn_ep& ep) { return Refs(LoadAcquire(ep.refs)); }       // [E3]
inline Refs RefsOf(const pstn_epoll& set) { return Refs(LoadAcquire(set.refs)); }  // [E3]

// The mark of this process in the memory of `lock`; 0: it has no slot there, and no reaper.
inline uint32_t HandsMark(const pstn_lock& lock) {
  return LockWord(lock) >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER;
}

// Before it leaves the place where others find it. Its references stay. Another process may ask for
// one by old news meanwhile, under another lock (TakeOver in peer/export.cc).
template <typename Entry>
void TakeInHands(Entry& entry, const pstn_lock& near) {
  if constexpr (requires { entry.refs; }) {
    const uint32_t mark = HandsMark(near);
    uint64_t word = LoadRelaxed(entry.refs);
    while (!CompareExchange(entry.refs, word,
                            Refs(Refs(word).count(), mark, PSTN_REFS_ALONE).word())) {
    }
  } else {
    StoreRelaxed(entry.hands, HandsMark(near));
  }
  DeathFence();  // [Z1]
}
// Others find it by now.
template <typename Entry>
void LeaveHands(Entry& entry) {
  DeathFence();  // [Z1]
  if constexpr (requires { entry.refs; }) {
    uint64_t word = LoadRelaxed(entry.refs);
    while (Refs(word).alone() &&
           !CompareExchange(entry.refs, word, Refs(Refs(word).count(), 0, 0).word())) {
    }
  } else {
    StoreRelaxed(entry.hands, 0u);
  }
}
// It is in its pool.
template <typename Entry>
void FreeHands(Entry& entry) {
  DeathFence();  // [Z1]
  if constexpr (requires { entry.refs; })
    StoreRelaxed(entry.refs, uint64_t{0});
  else
    StoreRelaxed(entry.hands, 0u);
}
// 0: in none's alone.
template <typename Entry>
uint32_t HandsOf(const Entry& entry) {
  if constexpr (requires { entry.refs; }) {
    const Refs refs = RefsOf(entry);
    return refs.alone() ? refs.mark() : 0;
  } else {
    return LoadRelaxed(entry.hands);
  }
}

}  // namespace postern
