// SPDX-License-Identifier: Apache-2.0
// acceptor.h - which process of a family waits for the clients of a listener.
//
// Several families may have one listening socket of the kernel's: a server that root has started,
// and its workers, which are another user's (life/depart.h). Such a client is a family's that waits
// for it. So posternd takes the listener of a family whose `acceptor` is 0 out of the directory
// (`unlisted`) when a process of another family waits there, and the first of its processes that
// waits again asks to have it listed. Where both wait, none is: the kernel's queue is both's.
//
// That process stores itself and then looks at `unlisted`; posternd stores `unlisted` and then
// looks at `acceptor`: one of the two sees the other.
#pragma once
#include "base/atomic.h"
#include "family/family.h"

namespace postern {

void BecomeAcceptor(Family& fam, int fd, pstn_ep& ep);
// A thread is about to wait for clients of `ep`, or to take one. It may wait for posternd.
inline void WaitsAt(Family& fam, int fd, pstn_ep& ep) {
  if (LoadRelaxed(ep.acceptor) == 0) [[unlikely]]
    BecomeAcceptor(fam, fd, ep);
}
// Whether posternd is told of it without a process that waits there.
inline bool IsListedUnasked(const pstn_ep& ep) {
  return LoadRelaxed(ep.acceptor) != 0 ||
         ((LoadRelaxed(ep.flags) & PSTN_EPF_BROUGHT) == 0 && LoadRelaxed(ep.unlisted) == 0);
}
// The process of `slot` waits there no more; others that do are woken to say so.
void LeaveAcceptor(Family& fam, uint32_t slot, pstn_ep& ep);
void LeaveAcceptors(Family& fam, uint32_t slot);  // of all listeners

}  // namespace postern
