// SPDX-License-Identifier: Apache-2.0
// meet.h - a connection goes along with a process that leaves its family (life/depart.h).
//
//   the process    posternd, keeper of its family       the process, in the next family
//   HandOn() ----> TakeOver(): the keeper's now
//                  listens at a place of its own <----  Meet(): connects to it
//                  AcceptGuest(): carries bytes between the two for as long as both live
//
// That place is in no directory: the keeper has told the process where it is. Who comes is known by
// the stack at the other end of the link group, which posternd has written down, and by a tag that
// stands for the port of its name.
#pragma once
#include "family/family.h"

namespace postern {

struct Place {
  pstn_uuid stack;
  uint32_t ep_idx, ep_gen, tag;
};
// Whether the keeper has the connection `fd`, for the stack `to`. If so, `place` is where to meet.
bool HandOn(Family& fam, int fd, pstn_ep& ep, const pstn_uuid& to, Place& place);
// `ep`, which is new, becomes the other end. False: there is no way there.
bool Meet(Family& fam, pstn_ep& ep, const Place& place);

// ---- in the keeper
// A place to listen at; a number of ours, or -errno.
long OpenPlace(Family& fam);
// The next that has come there: a number of ours, its tag and its stack. -EAGAIN: none.
long AcceptGuest(Family& fam, int place, uint32_t& tag, pstn_uuid& stack);
inline constexpr uint32_t kTagMin = 1024, kTagMax = 65535;

}  // namespace postern
