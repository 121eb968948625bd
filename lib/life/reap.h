// SPDX-License-Identifier: Apache-2.0
// reap.h - takes apart what dead processes leave behind, in the stack of this process.
//
// The family's reaper does it (controlplane/reaper): a process of its own, one for each family,
// that posternd starts and that may crash or be killed without harm to other families. The keeper
// does it while there is no posternd, and a process for a fork of its own that has failed. What is
// in the stack may be anything: each index is loaded once and checked, each walk ends.
#pragma once
#include "family/family.h"
#include "state/view.h"

namespace postern {

// The process `pid` of `slot` has died: from here on its locks can be taken over. False: the slot
// is free, or another process's by now.
bool ClaimDead(Family& fam, uint32_t slot, uint32_t pid);
// Drops everything that the process of `slot` held, which is claimed (ClaimDead); what was the last
// reference is shut down as the kernel would have done it. The slot is free afterwards. If another
// one that reaps was quicker, nothing happens: the slot may have its next process.
void ReapSlot(Family& fam, uint32_t slot);
// The caller's own slot for a child, which does not come. One that has come keeps it.
void EndEmbryo(Family& fam, uint32_t slot);
// Takes over the locks that bear the slot, and mends what they guard. The threads that took them
// are dead, but a thread that waits for one cannot see that: it may be in another PID namespace, or
// the owner's process has exec'd, and the thread id is there still.
void TakeOverLocksOf(Family& fam, uint32_t slot);
// Only its listeners. First of all, and the directory has to hear of it before ReapSlot: a client
// that has seen its connection end would otherwise still be taken in by the listener.
void ReapListeners(Family& fam, uint32_t slot);
// A lock that ReapSlot needs is held by a thread that is stopped: it would wait with it. `stays`
// says so of a lock that is held.
bool ReapWouldWait(const StackMap& s, uint32_t slot, bool (*stays)(const pstn_lock& lock));
// No process of the stack is left: all connections end, the peers see the end. False: a process has
// joined it, and nothing was done.
bool EndStack(Family& fam);
// The peer stack of this link group is dead.
void MarkPeerDead(Family& fam, uint32_t lgr_idx);
// No endpoint of this stack uses the link group any more.
bool LgrIdle(const pstn_lgr_ref& ref);

}  // namespace postern
