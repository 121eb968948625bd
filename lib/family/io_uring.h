// SPDX-License-Identifier: Apache-2.0
// io_uring.h - a process that asks for an io_uring is refused it, and counted once.
//
// What a ring does, the kernel does, and it knows only the kernel's half of an accelerated socket.
// libuv adds descriptors to its event set by IORING_OP_EPOLL_CTL: the set then never reports an
// accelerated one. A program has to do without a ring where the kernel has none for it (sysctl
// kernel.io_uring_disabled, the seccomp filters of containers), so it is told what it is told
// there.
//
// A loop asks for its ring when it is made, mostly before the program's first socket, and so before
// there is a stack that could count it: the process remembers it until it has one.
#pragma once

#include "family/family.h"

namespace postern {

inline constexpr uint32_t kRingAsked = 1;    // and not counted yet
inline constexpr uint32_t kRingCounted = 2;  // in this process, or before the fork that made it

inline bool RefusesRing(const Family& fam) {
  return fam.enabled && fam.opt.io_uring == static_cast<int64_t>(IoUring::kDeny);
}

// Once there is a stack: counts what was refused before.
inline void CountRingRefused(Family& fam) {
  uint32_t asked = kRingAsked;
  if (fam.attached && CompareExchange(fam.ring_refused, asked, kRingCounted))
    FetchAdd(Stack(fam).hdr.reasons[kReasonIoUring], 1u);
}

// The process has been refused a ring.
inline void NoteRingRefused(Family& fam) {
  uint32_t never = 0;
  CompareExchange(fam.ring_refused, never, kRingAsked);
  CountRingRefused(fam);
}

}  // namespace postern
