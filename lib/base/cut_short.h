// SPDX-License-Identifier: Apache-2.0
// cut_short.h - a limit for waits under a lock that a signal's handler may have to wait for.
//
// A handler runs when its thread has let go of its last lock (base/lock.h), so what waits under one
// is cut short by a signal: it has another 20 ms then, in which a handshake on one host is done.
#pragma once
#include "base/clock.h"
#include "base/lock.h"

namespace postern {

class CutShort {
 public:
  explicit CutShort(uint64_t end_ns) : end_ns_(end_ns) {}
  // When the wait has to be over.
  uint64_t end_ns() {
    if (!cut_ && t_locks.late != 0) {
      const uint64_t soon = MonotonicNs() + kGraceNs;
      cut_ = true;
      if (soon < end_ns_) end_ns_ = soon;
    }
    return end_ns_;
  }
  bool cut() const { return cut_; }
  // For the next sleep of the wait. A signal that comes just before it is seen after that.
  timespec Slice(uint64_t until_ns) {
    const uint64_t end = end_ns() < until_ns ? end_ns() : until_ns, now = MonotonicNs();
    uint64_t left = end > now ? end - now : 0;
    if (left > kGraceNs) left = kGraceNs;
    return {0, static_cast<long>(left)};
  }

 private:
  static constexpr uint64_t kGraceNs = 20'000'000;

  uint64_t end_ns_;
  bool cut_ = false;
};

}  // namespace postern
