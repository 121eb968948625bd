// SPDX-License-Identifier: Apache-2.0
// poll_one.h - a poll() that waits for one connection to be readable, as that of a thread which has
// one connection: it sleeps on the connection's own word, as recv() does, and its peer wakes it by
// a futex. A doorbell costs both sides three times as much.
#pragma once
#include <poll.h>

#include "endpoint/call.h"
#include "event/ask_for_room.h"
#include "event/block.h"
#include "event/poll_set.h"

namespace postern {

// Whether this poll() is such a one: nothing of the kernel's, and no space to wait for.
inline bool WaitsForOne(const KernelSet& k, const pollfd* fds, size_t n) {
  return n == 1 && k.count == 0 && k.held == nullptr && k.calls.entry(0) != 0 &&
         (static_cast<uint16_t>(fds[0].events) & kForRoom) == 0;
}

// Sleeps until `ready()`, a signal or the time. kRestarts: it has to wait in the other way.
template <typename Ready>
Wait WaitForOne(Family& fam, const KernelSet& k, int fd, Ready ready, const Deadline& until,
                uint32_t interrupts) {
  const Call call(fam, fd);
  ConnEnd e;
  // The number may be another's by now, and what it meant is waited for.
  if (call.entry() != k.calls.entry(0) || !call.is_ep() ||
      LoadAcquire(call.ep()->state) != PSTN_EP_ESTABLISHED || !Resolve(fam, *call.ep(), e))  // [E1]
    return Wait::kRestarts;
  const auto look = [&] {
    return ready() || LoadRelaxed(call.ep()->state) != PSTN_EP_ESTABLISHED || call.moved();
  };
  return SleepOn(call, ForData(e), look, until, interrupts, Restart::kPoll);
}

}  // namespace postern
