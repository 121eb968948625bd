// SPDX-License-Identifier: Apache-2.0
// ask_for_room.h - a writer that waits for room by poll() or an event set: the reader posts only if
// it has been asked to, and each answer takes the question away.
#pragma once
#include <sys/epoll.h>

#include "base/atomic.h"
#include "endpoint/endpoint.h"
#include "family/family.h"

namespace postern {

// What the kernel says of room. POLL* have the same values.
inline constexpr uint32_t kForRoom = EPOLLOUT | EPOLLWRNORM;

// For a caller that waits for `events` of an endpoint whose Readiness() is `got`: asks for room, if
// that is among them and there is none. Returns `got`, with room if it has come meanwhile.
inline uint32_t AskForRoom(Family& fam, pstn_ep& ep, uint32_t events, uint32_t got) {
  if ((events & kForRoom) == 0 || (got & kForRoom) != 0 ||
      LoadRelaxed(ep.state) != PSTN_EP_ESTABLISHED)
    return got;
  ConnEnd e;
  if (!ResolveMapped(fam, ep, e)) return got;
  FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
  FenceAfterLocked();  // [F1] against AnnounceSpace
  return Writable(fam, e) ? got | kForRoom : got;
}

}  // namespace postern
