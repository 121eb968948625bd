// SPDX-License-Identifier: Apache-2.0
// io_uring.h - that an io_uring matters to a process: counted once.
//
// Either the process has been refused its ring (option io_uring=deny), or it has stepped aside,
// since the ring does to its sockets what only the kernel can do.
//
// A loop asks for its ring when it is made, mostly before the program's first socket, and so before
// there is a stack that could count it: the process remembers it until it has one.
#pragma once

#include "family/family.h"
#include "family/telling.h"

namespace postern {

inline constexpr uint32_t kRingNoted = 1;    // and not counted yet
inline constexpr uint32_t kRingCounted = 2;  // in this process, or before the fork that made it

inline bool Follows(const Family& fam, IoUring how) {
  return fam.enabled && fam.opt.io_uring == static_cast<int64_t>(how);
}

// Once there is a stack: counts what was noted before.
inline void CountRing(Family& fam) {
  uint32_t noted = kRingNoted;
  if (fam.attached && CompareExchange(fam.ring, noted, kRingCounted))
    NoteFallback(fam, kReasonIoUring, -1);
}

inline void NoteRing(Family& fam) {
  uint32_t never = 0;
  CompareExchange(fam.ring, never, kRingNoted);
  CountRing(fam);
}

}  // namespace postern
