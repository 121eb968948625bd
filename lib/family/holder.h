// SPDX-License-Identifier: Apache-2.0
// holder.h - owners of locks.
#pragma once
#include "base/lock.h"

namespace postern {

struct Family;

struct Holder : LockOwner {
  const void* at;                // where the locks of `s` are; null: there are none
  mutable uint64_t next_ask_ns;  // (a) not before this a thread looks into /proc for an owner
  mutable uint32_t pidns;        // (a) inode of this process's PID namespace; 0: not asked yet
  // The image that an exec has made has taken no lock yet: those that bear its slot are the last
  // image's. Their thread ids tell nothing: exec() gives the leader's to the thread that calls it.
  bool arrives;
};

// While a process that has no slot yet has `slot_lock`: when its thread began stands beside it, so
// that a thread which gets the number of a dead one is not taken for it.
class Joiner {
 public:
  Joiner(StackMap& s, uint64_t start);  // 0: not known, or it has a slot
  ~Joiner();
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

 private:
  StackMap& s_;
};

uint32_t OwnPidns(Family& fam);  // PSTN_NONE: not known
void ForgetPidns(Family& fam);   // child of fork: it may be in another one
// From now on this process's locks in the family's stack bear this slot. False: it is of too many
// families.
bool UseLockSlot(Family& fam, uint32_t slot);
void ForgetLockSlot(Family& fam);  // child of fork, until it has one
void LeaveLocks(Family& fam);      // the stack is about to be unmapped
bool UseReaperLocks(Family& fam);

}  // namespace postern
