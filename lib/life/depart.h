// SPDX-License-Identifier: Apache-2.0
// depart.h - a process that has become another user leaves its family (docs/adr/security/0023).
//
// No user has another one's stack in its memory. So when a process can't be its family's user any
// more (setuid(2) and its kin by root), it gives back what it has of that stack, and becomes one of
// the guests of its posternd: of the stack of all those that have left the same family for the same
// user. Its listeners go along, and are shared by both families (control/acceptor.h); so do sockets
// that are neither connected nor listen. Connections become the kernel's, by way of the keeper.
//
// Where there is no posternd that would have it, or other threads may be in calls on the stack, all
// its sockets are the kernel's from then on.
#pragma once
#include "family/family.h"

namespace postern {

// By all three of its user ids: with one of them left it can go back.
bool HasOtherUser(Family& fam);
void LeaveFamily(Family& fam);
// For none: its sockets are the kernel's from now on, and it has nothing of the stack. What its
// limits leave it (surroundings.h) is the program's then. `why` is counted.
void LeaveForGood(Family& fam, Reason why);
// One that is about to end leaves those that wait for its listeners to others that have the
// sockets.
void LeaveQueues(Family& fam);
// Its user ids may have changed. A family that has VIs keeps the process: its clients come by a VI,
// which is one stack's at a time.
inline void UserChanged(Family& fam) {
  if (fam.attached && fam.opt.vi[0] == 0 && HasOtherUser(fam)) LeaveFamily(fam);
}

}  // namespace postern
