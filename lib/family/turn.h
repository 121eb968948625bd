// SPDX-License-Identifier: Apache-2.0
// turn.h - what a thread does for all where the stack has VIs (offhost/wire.h).
#pragma once

#include "base/atomic.h"
#include "family/family.h"

namespace postern {

// One look in between, where a thread spins or is about to look for events.
inline void WireTurn(Family& fam) {
  if (LoadRelaxed(fam.wire_on) != 0) [[unlikely]]
    (void)kVerbs.wire_poll(fam);
}
// After a write or a close. A thread that still has other events at hand goes on with them first:
// what they lead to, and the rest of this answer, goes out with it, in fewer and larger segments.
// Where that takes the program longer than it should, the keeper looks, within a millisecond.
// False: the turn is yet to come.
inline bool WireWrote(Family& fam) {
  return LoadRelaxed(fam.wire_on) == 0 || kVerbs.wire_wrote(fam);
}
// How many events this thread has been given by epoll_wait() or poll(). Returns it.
inline long WireEvents(Family& fam, long count) {
  return LoadRelaxed(fam.wire_on) != 0 ? kVerbs.wire_events(fam, count) : count;
}
// Around a sleep in the kernel: while no thread polls, the keeper does.
class WireSleep {
 public:
  explicit WireSleep(Family& fam) : fam_(fam), on_(LoadRelaxed(fam.wire_on)) {
    if (on_ != 0) [[unlikely]]
      kVerbs.wire_sleeps(fam);
  }
  ~WireSleep() {
    if (on_ != 0) [[unlikely]]
      kVerbs.wire_awake(fam_);
  }
  WireSleep(const WireSleep&) = delete;
  WireSleep& operator=(const WireSleep&) = delete;

 private:
  Family& fam_;
  const uint32_t on_;
};

}  // namespace postern
