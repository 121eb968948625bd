// SPDX-License-Identifier: Apache-2.0
// wheel.h - timers of many connections, by index: two wheels of lists in shared memory.
//
// The fine wheel has slots of 131 us and reaches 134 ms ahead, the coarse one slots of 134 ms for
// 137 s; what is later waits in the last coarse slot and is put in anew when it comes up. A timer
// never fires early; late by a slot at most, and by how long no thread has polled.
//
// Deadlines of TCP move all the time, mostly backwards: so an entry stays where it is when its
// deadline gets later, and the finder asks for the deadline again (Set() is then one compare). A
// bit for each slot says whether it has entries. Under the owner's lock; after a death Format() and
// Set() for each entry rebuild it.
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"

namespace postern::stack {

inline constexpr uint32_t kWheelSlots = 1024;
inline constexpr uint32_t kFineShift = 17, kCoarseShift = 27;  // ns to slots: 2^27 = 1024 * 2^17

// Part of each entry.
struct WheelLink {
  uint32_t next, prev;  // index, PSTN_NONE
  uint32_t slot;        // 0: none; slot + 1, the coarse ones behind the fine ones
  uint32_t zero;
  uint64_t at_ns;  // the deadline by which it was put there
};

struct Wheel {
  uint64_t fine_now, coarse_now;  // slots (absolute numbers) that have been looked at
  uint32_t count, zero;
  uint64_t map[2][kWheelSlots / 64];
  uint32_t head[2 * kWheelSlots];
};

inline constexpr uint64_t kNoDeadline = UINT64_MAX;

void WheelFormat(Wheel& wheel, uint64_t now_ns);
// When the next entry may be due; kNoDeadline when there is none. Never later than the first one
// is, so a thread that sleeps until then misses nothing.
uint64_t WheelNext(const Wheel& wheel);

// `at(idx)` gives the WheelLink of an entry.
template <typename At>
class WheelView {
 public:
  WheelView(Wheel& wheel, At at) : w_(wheel), at_(at) {}

  // kNoDeadline takes it out, when it is found.
  void Set(uint32_t idx, uint64_t deadline_ns) {
    WheelLink& link = at_(idx);
    if (link.slot != 0 && deadline_ns >= link.at_ns) return;  // found in time, and asked again
    if (deadline_ns == kNoDeadline) return;
    Remove(idx);
    Insert(idx, link, deadline_ns);
  }
  void Remove(uint32_t idx) {
    WheelLink& link = at_(idx);
    if (link.slot == 0) return;
    const uint32_t slot = link.slot - 1;
    if (link.prev != PSTN_NONE)
      at_(link.prev).next = link.next;
    else
      w_.head[slot] = link.next;
    if (link.next != PSTN_NONE) at_(link.next).prev = link.prev;
    if (w_.head[slot] == PSTN_NONE)
      w_.map[slot / kWheelSlots][slot % kWheelSlots / 64] &= ~Bit(slot);
    link.slot = 0;
    w_.count--;
  }

  // Entries whose time has come, at most `limit`: `fire(idx)` returns the entry's deadline as it is
  // now (kNoDeadline: none). It may Set() and Remove() others. True: there may be more.
  template <typename Fire>
  bool Run(uint64_t now_ns, uint32_t limit, Fire fire) {
    if (now_ns >> kFineShift <= w_.fine_now && now_ns >> kCoarseShift <= w_.coarse_now)
      return false;  // no slot has passed
    return RunWheel(0, now_ns >> kFineShift, now_ns, limit, fire) ||
           RunWheel(1, now_ns >> kCoarseShift, now_ns, limit, fire);
  }

 private:
  static uint64_t Bit(uint32_t slot) { return 1ull << (slot % 64); }

  void Insert(uint32_t idx, WheelLink& link, uint64_t deadline_ns) {
    // A slot is run when it is over, so that nothing in it is early. Not the one that is being run.
    uint64_t fine = (deadline_ns >> kFineShift) + 1;
    if (fine <= w_.fine_now + 1) fine = w_.fine_now + 2;
    uint32_t slot = 0;
    if (fine - w_.fine_now <= kWheelSlots) {
      slot = static_cast<uint32_t>(fine % kWheelSlots);
    } else {
      uint64_t coarse =
          deadline_ns >> kCoarseShift;  // before its time: then it goes to the fine one
      if (coarse <= w_.coarse_now) coarse = w_.coarse_now + 1;
      if (coarse - w_.coarse_now >= kWheelSlots) coarse = w_.coarse_now + kWheelSlots - 1;
      slot = kWheelSlots + static_cast<uint32_t>(coarse % kWheelSlots);
    }
    link.at_ns = deadline_ns;
    link.slot = slot + 1;
    link.prev = PSTN_NONE;
    link.next = w_.head[slot];
    if (link.next != PSTN_NONE) at_(link.next).prev = idx;
    w_.head[slot] = idx;
    w_.map[slot / kWheelSlots][slot % kWheelSlots / 64] |= Bit(slot);
    w_.count++;
  }

  template <typename Fire>
  bool RunWheel(uint32_t which, uint64_t until, uint64_t now_ns, uint32_t& limit, Fire& fire) {
    uint64_t& now = which == 0 ? w_.fine_now : w_.coarse_now;
    if (until - now > kWheelSlots) now = until - kWheelSlots;  // once round is all there is
    while (now < until) {
      const uint32_t in = static_cast<uint32_t>((now + 1) % kWheelSlots);
      const uint32_t slot = which * kWheelSlots + in;
      if (w_.map[which][in / 64] == 0 && in % 64 == 0 && until - now > 64) {
        now += 64;
        continue;
      }
      while (w_.head[slot] != PSTN_NONE) {
        if (limit == 0) return true;
        limit--;
        const uint32_t idx = w_.head[slot];
        Remove(idx);
        const bool due = at_(idx).at_ns <= now_ns;
        const uint64_t again = due ? fire(idx) : at_(idx).at_ns;
        // What the call itself has put in may be earlier, and stays.
        if (again != kNoDeadline && at_(idx).slot == 0) Insert(idx, at_(idx), again);
      }
      now++;
    }
    return false;
  }

  Wheel& w_;
  At at_;
};

}  // namespace postern::stack
