// SPDX-License-Identifier: Apache-2.0
// wait.h - where a thread sleeps, and which peers are told that it does.
#pragma once

#include "base/clock.h"
#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

// A place to sleep for a set of descriptors: a waiter of the stack, and its doorbell.
struct Bed {
  uint32_t waiter;  // PSTN_NONE: there is none, and `bell` is -errno
  int bell;
};
struct Beds {
  pstn_lock lock;
  uint32_t count PSTN_GUARDED_BY(lock);
  Bed at[kBeds] PSTN_GUARDED_BY(lock);  // made, and not in use at the moment
  // (a) 1: the broker could not be asked for a bell, so that peers in other network namespaces
  // can't ring it, or a bell is spoilt: then no sleep is long.
  uint32_t narrow;
  // (a) So many threads of this process nap, and at a fork those of its parent: together they look
  // some five thousand times a second, whether they are one or hundreds.
  uint32_t nappers;
  // (a) When a client has to be admitted that a listener has left where it is (TCP_DEFER_ACCEPT;
  // peer/accept_queue.cc); 0: there is none. No thread sleeps longer.
  uint64_t deferred_ns;
  uint64_t deferred_rest_ns;  // (a) not before this: a look for them takes its time
  // (a) When a connect() of the stack's that waits for room is to be looked at; 0: none is known.
  uint64_t waits_ns;
  uint64_t paid_ns;  // (a) when PayRings last made a sender
  // Where the next look at what peers hold back begins (held.h): the link group, and the word of
  // each one's bits.
  uint32_t held_group, held_word[kGroups.most];  // (a)
};
// A connect() of ours waits for room.
void NoteWait(Family& fam);
// A doorbell for a waiter of ours, which peers wherever they are can ring. fd or -errno.
int NewBell(Family& fam, uint32_t waiter);
// Before a sleep, and now and then by a process that does not sleep (kIfDue): sleepers of peers
// that could not be rung, because the bells of others are not answered, are rung out of another
// socket. One in 10 ms: what is in the one before stays there for as long as those bells are open,
// in memory that counts as ours.
enum class Pay : uint8_t { kNow, kIfDue };
void PayRingsOwed(Family& fam, Pay pay);
inline void PayRings(Family& fam, Pay pay = Pay::kNow) {
  if (LoadRelaxed(fam.bells.owed) != 0) [[unlikely]]
    PayRingsOwed(fam, pay);
}
// Rings a waiter of ours that need not say that it sleeps.
void RingOwn(Family& fam, uint32_t waiter);
// How long a sleep may last that ends at `until`.
Deadline SleepUntil(Family& fam, const Deadline& until);
Bed MakeBed(Family& fam, uint32_t owner_slot);  // PSTN_NONE: it belongs to an event set
void UnmakeBed(Family& fam, const Bed& bed);
// A bell that can't be emptied (DrainBell): it stays open until the process ends, when the kernel
// waits for no descriptor in it. From now on no thread of the process sleeps for long.
void SpoiltBell(Family& fam);
// One that no other process sleeps on. It stays open if it is spoilt.
void CloseBell(Family& fam, int bell);
void ReleaseWaiter(Family& fam, uint32_t waiter);  // its bell is gone
// Those of a process that has ended, or become another program.
void ReleaseWaitersOf(Family& fam, uint32_t slot);
// After pthread_cancel(): its target may have looked for that before it was there, and be about to
// sleep (cancel.h).
void WakeOwnSleepers(Family& fam);
Bed TakeBed(Family& fam);  // made, or kept from before
void GiveBed(Family& fam, const Bed& bed);
void BedsForget(Family& fam);     // the process leaves the stack
void BedsAfterFork(Family& fam);  // and what else the parent's threads held or waited for
// Says (or takes back) in every place where news for `waiter` arrives that it sleeps.
void AnnounceSleep(Family& fam, uint32_t waiter, bool sleeps);
// Something for `waiter` that a look has not yet taken?
bool WaiterHasNews(Family& fam, uint32_t waiter, bool syn);
void GiveBackIdleRings(Family& fam);
void GiveBackSome(Family& fam, const ConnEnd& e);

}  // namespace postern
