// stack_words.h - the few words that posternd writes into a stack's memory, without mapping it.
// SPDX-License-Identifier: Apache-2.0
//
// By pwrite(): the family can make such a call fail, and nothing else. Nothing here takes a lock:
// only posternd gives out the places in a stack's table of link groups, and it knows which it has
// given. A reader without a lock sees the words of one call before those of the next, since each
// call locks the page that it writes.
#pragma once
#include "registry.h"

namespace postern::daemon {

// A place for a link group; PSTN_NONE when there is none, or the memory can't be written.
uint32_t AddRef(const Stack& stack, uint32_t side, const pstn_uuid& id, const pstn_uuid& peer,
                uint32_t remote, uint32_t queued);
void FreeRef(const Stack& stack, uint32_t idx);
// What accept() is told of connections that posternd has for it.
void PutHeld(const Stack& stack, uint32_t ep_idx, uint32_t held, uint32_t in_talks);
// Whether the directory lists that listener (lib/control/acceptor.h).
void PutUnlisted(const Stack& stack, uint32_t ep_idx, bool unlisted);
// The family's reaper has ended: a thread that waits for a lock that it had may take it.
void PutReaperGone(const Stack& stack);

}  // namespace postern::daemon
