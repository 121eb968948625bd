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
extern constinit thread_local uint32_t t_self_tid __attribute__((tls_model("initial-exec")));
uint32_t LearnTid();
inline uint32_t SelfTid() { return t_self_tid != 0 ? t_self_tid : LearnTid(); }
// To be called in the child of a fork: the thread id that was kept is the parent's.
void ForgetTid();

// Locks that this thread holds or is about to take. While there are any, a signal's handler must
// not run: it could ask for a lock that its own thread holds. The signal layer
// (preload/signal_calls.cc) then sets `late`, and the last Unlock calls it back.
struct ThreadLocks {
  uint32_t held;
  uint32_t late;
};
extern constinit thread_local ThreadLocks t_locks __attribute__((tls_model("initial-exec")));
extern void (*g_run_late)();          // never null
extern uint64_t* g_locks_taken_over;  // counts locks that were taken over from the dead; never null

// Handlers of this very thread see these stores in this order; no other thread looks.
inline void EnterLocked() {
  t_locks.held = t_locks.held + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}
inline void LeaveLocked() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t_locks.held = t_locks.held - 1;
  std::atomic_signal_fence(
      std::memory_order_seq_cst);  // then `late`: a handler before this sets it
  if (t_locks.late != 0 && t_locks.held == 0) [[unlikely]]
    g_run_late();
}

bool LockSlow(pstn_lock& lock, uint32_t self);
void UnlockWake(pstn_lock& lock);

// True: taken over from an owner that died with it, perhaps in the middle of a change.
inline bool Lock(pstn_lock& lock) {
  EnterLocked();
  uint32_t self = SelfTid();
  uint32_t free = 0;
  return !CompareExchange(lock.word, free, self) && LockSlow(lock, self);
}
inline bool TryLock(pstn_lock& lock) {
  EnterLocked();
  uint32_t free = 0;
  bool taken = CompareExchange(lock.word, free, SelfTid());
  if (!taken) LeaveLocked();
  return taken;
}
inline void Unlock(pstn_lock& lock) {
  if ((Exchange(lock.word, 0u) & kLockSleepers) != 0) UnlockWake(lock);
  LeaveLocked();
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
