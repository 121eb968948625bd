// SPDX-License-Identifier: Apache-2.0
// lock.h - a mutex in shared memory that survives the death of its owner.
//
// The word holds the owner's thread id; its top bit says that somebody sleeps on it. Who waits for
// long asks the kernel whether the owner still exists and, if not, takes the lock over; every
// structure under such a lock is therefore left usable at each instruction, or is mended by the
// next holder (docs/concurrency.md). Uncontended: one locked instruction in, one out.
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern {

inline constexpr uint32_t kLockSleepers = 0x80000000u;

// Thread id, kept in thread-local memory after the first call in each process.
uint32_t SelfTid();
// To be called in the child of a fork: the thread id that was kept is the parent's.
void ForgetTid();

void LockSlow(pstn_lock& lock, uint32_t self);
void UnlockWake(pstn_lock& lock);

inline void Lock(pstn_lock& lock) {
  uint32_t self = SelfTid();
  uint32_t free = 0;
  if (!CompareExchange(lock.word, free, self)) LockSlow(lock, self);
}
inline bool TryLock(pstn_lock& lock) {
  uint32_t free = 0;
  return CompareExchange(lock.word, free, SelfTid());
}
inline void Unlock(pstn_lock& lock) {
  if ((Exchange(lock.word, 0u) & kLockSleepers) != 0) UnlockWake(lock);
}

class Guard {
 public:
  explicit Guard(pstn_lock& lock) : lock_(lock) { Lock(lock_); }
  ~Guard() { Unlock(lock_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  pstn_lock& lock_;
};

}  // namespace postern
