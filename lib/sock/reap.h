// SPDX-License-Identifier: Apache-2.0
// reap.h - takes apart what dead processes leave behind. Used by posternd.
//
// posternd is single-threaded; each call works on one stack's view, which it must be able to write.
#pragma once
#include "state/view.h"

namespace postern {

// Drops everything that the process of `slot` held; what was the last reference is shut down as the
// kernel would have done it. The slot is free afterwards.
void ReapSlot(StackView& v, uint32_t slot);
// Only its listeners. First of all, and the directory has to hear of it before ReapSlot: a client
// that has seen its connection end would otherwise still be taken in by the listener.
void ReapListeners(StackView& v, uint32_t slot);
// A lock that ReapSlot needs is held by a thread that is stopped: it would wait with it. `stopped`
// tells of a thread by its id.
bool ReapWouldWait(const pstn_stack& s, uint32_t slot, bool (*stopped)(uint32_t tid));
// No process of the stack is left: all slots, all connections; the peers see the end.
void ReapStack(StackView& v);
// In a surviving stack: the peer stack of this link group is dead.
void MarkPeerDead(StackView& survivor, uint32_t lgr_idx);
// No endpoint of this stack uses the link group any more.
bool LgrIdle(const pstn_stack& s, uint32_t lgr_idx);

}  // namespace postern
