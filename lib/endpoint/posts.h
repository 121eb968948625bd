// SPDX-License-Identifier: Apache-2.0
// posts.h - what is told of an endpoint's news: event sets, and threads that sleep.
#pragma once

#include "family/family.h"

namespace postern {

// Calls fn(memory, reference) for each link group that this process has mapped.
template <typename Fn>
void EachLgr(Family& fam, Fn fn) {
  StackMap& s = Stack(fam);
  for (pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadAcquire(ref.state) == 0) continue;  // [L1]
    uint8_t* lgr = LgrAt(fam.view, s.lgrs.IndexOf(ref)).base;
    if (lgr != nullptr) fn(lgr, ref);
  }
}

void MarkWaiter(Family& fam, uint32_t waiter,
                uint32_t evmap_flags);  // PSTN_EV_* in every link group
// The same for one link group that may be younger than the waiter's last sleep, when news of a
// connection in it begin to matter: a post to all goes to those that are marked.
void UseWaiter(Family& fam, uint8_t* lgr, uint32_t side, uint32_t waiter);
// Before item_lock, for RenotifyLocked: posternd may have to be asked for the link group.
void MapForRenotify(Family& fam, const pstn_ep& ep);
// rx_notify as the endpoint's registrations and pollers want it. Needs item_lock.
void RenotifyLocked(Family& fam, pstn_ep& ep) PSTN_REQUIRES(ep.item_lock);
// Marks the endpoint ready in every event set it is registered in, and wakes its sleepers.
void PostEp(Family& fam, pstn_ep& ep) PSTN_EXCLUDES(ep.item_lock);
// PostEp for each connection whose peer has posted to all. The thread that was rung for such a post
// does it.
void SpreadPosts(Family& fam);
// A process that may have been about to do so has died.
void RespreadPosts(Family& fam);

}  // namespace postern
