// SPDX-License-Identifier: Apache-2.0
// errands.h - what the holder of the engine's lock, which may not wait, has to tell posternd.
//
// posternd may be busy, stopped or dead, and a thread of the process may just wait for its answer.
// So an errand is entered here, under the lock, and sent by a thread that has let it go: the same
// one at once, another one that has had the line to posternd (offhost/wire_errands.cc), or the
// keeper. None has an answer that anybody waits for.
//
// A holder of the lock that dies leaves the ring as it was before or after its entry: `tail` and
// `head` are stored last.
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern::stack {

inline constexpr uint32_t kErrands = 1024;

enum class ErrandKind : uint32_t {
  kNone,
  kNeighbour,  // the kernel is to look for the neighbour `ip` on interface `a`
  kUnfilter,   // change `c` of filter `b` of VI `a`, whose grant was `grant`
  kLinks,      // the stack's link groups with itself are getting full
};

struct Errand {
  uint32_t kind;  // ErrandKind
  uint32_t a, b, c;
  uint64_t grant;
  uint8_t ip[16];
};

struct Errands {
  uint32_t head, tail;  // free-running; the look whether they differ is made without the lock
  uint32_t rung, zero;  // (a) the tail for which the keeper was last rung
  uint64_t lost;        // there was no room
  Errand at[kErrands];
};

inline bool HasErrands(const Errands& all) {
  return LoadRelaxed(all.head) != LoadRelaxed(all.tail);
}
inline uint32_t ErrandCount(const Errands& all) {
  const uint32_t count = all.tail - all.head;
  return count <= kErrands ? count : 0;
}

// Under the lock. False: there is no room. What is asked for again if it is lost leaves half of it
// to what is not.
inline bool PutErrand(Errands& all, const Errand& errand) {
  const bool again = errand.kind != static_cast<uint32_t>(ErrandKind::kUnfilter);
  const uint32_t count = ErrandCount(all);
  if (count >= (again ? kErrands / 2 : kErrands)) {
    all.lost++;
    return false;
  }
  if (count == 0) StoreRelaxed(all.head, all.tail);
  all.at[all.tail % kErrands] = errand;
  StoreRelease(all.tail, all.tail + 1);  // [G3]
  return true;
}

// Under the lock. The oldest, up to `most`.
inline uint32_t TakeErrands(Errands& all, Errand* out, uint32_t most) {
  uint32_t count = ErrandCount(all);
  if (count == 0) StoreRelaxed(all.head, all.tail);
  if (count > most) count = most;
  for (uint32_t i = 0; i < count; i++) out[i] = all.at[(all.head + i) % kErrands];
  StoreRelease(all.head, all.head + count);  // [G5]
  return count;
}

}  // namespace postern::stack
