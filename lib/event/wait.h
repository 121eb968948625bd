// SPDX-License-Identifier: Apache-2.0
// wait.h - where a thread sleeps, and who is told that it does.
#pragma once

#include "base/clock.h"
#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

inline constexpr uint64_t kDaemonRetryNs = 300'000'000;  // a sleeping listener looks for posternd

// A place to sleep for a set of descriptors: a waiter of the stack, and its doorbell.
struct Bed {
  uint32_t waiter = PSTN_NONE;  // PSTN_NONE: there is none, and `bell` is -errno
  int bell = -1;
};
// A doorbell for a waiter of ours, which peers wherever they are can ring. fd or -errno.
int NewBell(Family& fam, uint32_t waiter);
// How long a sleep may last that ends at `until`.
Deadline SleepUntil(const Deadline& until);
Bed MakeBed(Family& fam, uint32_t owner_slot);  // PSTN_NONE: it belongs to an event set
void UnmakeBed(Family& fam, const Bed& bed);
// Those of a process that has ended, or become another program.
void ReleaseWaitersOf(Family& fam, uint32_t slot);
Bed TakeBed(Family& fam);  // made, or kept from before
void GiveBed(Family& fam, const Bed& bed);
void BedsAfterFork();  // and what else the parent's threads held or waited for
// Says (or takes back) in every place where news for `waiter` arrives that it sleeps.
void AnnounceSleep(Family& fam, uint32_t waiter, bool sleeps);
// Something for `waiter` that a look has not yet taken?
bool WaiterHasNews(Family& fam, uint32_t waiter, bool syn);
void GiveBackIdleRings(Family& fam);
void GiveBackSome(Family& fam, const ConnEnd& e);

}  // namespace postern
