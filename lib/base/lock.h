// SPDX-License-Identifier: Apache-2.0
// lock.h - a mutex in shared memory that survives the death of its owner.
//
// The word holds the owner's thread id and the slot of its process; its top bit says that a thread
// sleeps on it. A thread that waits for long asks whether the owner still exists
// (LockOwner) and, if not, takes the lock over; every structure under such a lock is
// therefore left usable at each instruction, or is mended by the next holder (docs/concurrency.md).
// A thread id means something in its own PID namespace only, which the slot names. Uncontended: one
// locked instruction in, one out.
#pragma once
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "abi/postern_abi.h"
#include "abi/thread_safety.h"
#include "base/atomic.h"
#include "base/check.h"

namespace postern {

class StackMap;  // state/stack_map.h

inline constexpr uint32_t kLockSleepers = 0x80000000u;
// A call in the kernel module has it (PSTN_LOCK_MODULE of abi/kmod_abi.h), which gives it back soon
// and wakes no thread.
inline constexpr uint32_t kLockModule = PSTN_LOCK_REAPER << PSTN_LOCK_SLOT_SHIFT;

// Thread id, kept in thread-local memory after the first call in each process.
extern constinit thread_local uint32_t t_self_tid __attribute__((tls_model("initial-exec")));
uint32_t LearnTid();
inline uint32_t SelfTid() { return t_self_tid != 0 ? t_self_tid : LearnTid(); }
// To be called in the child of a fork: the thread id that was kept is the parent's.
void ForgetTid();

// What this process is to the locks of a family (family/holder.cc).
struct LockOwner {
  uint32_t mark;      // its slot in the words: (slot + 1) << PSTN_LOCK_SLOT_SHIFT; 0: none yet
  const StackMap* s;  // null: of the process's own locks
  // Whether the thread that such a word names may still be there.
  bool (*lives)(const LockOwner& me, uint32_t word);
  uint64_t* taken_over;  // counts locks that were taken over from the dead
};
// Locks of that memory are `owner`'s family's, until DropLocksAt. False: there is no room for more.
// A process is of one family as a rule, which is then taken to be that of all its locks; of
// several, the place of a lock says which. Locks in other memory are the process's own: they have
// no mark, and the thread id alone counts.
bool AddLocksOf(LockOwner& owner, const void* at, size_t bytes);
void DropLocksAt(const void* at);
void MarkLocksOf(LockOwner& owner, uint32_t mark);
LockOwner& LockOwnerAt(const pstn_lock& lock);

extern uint32_t g_lock_mark;      // of all locks, unless ...
extern uint32_t g_lock_by_place;  // (a) ... 1: this process is of several families
inline uint32_t LockWord(const pstn_lock& lock) {
  return SelfTid() | (LoadRelaxed(g_lock_by_place) == 0 ? g_lock_mark : LockOwnerAt(lock).mark);
}
inline bool LockOwnerLives(const pstn_lock& lock, uint32_t word) {
  const LockOwner& owner = LockOwnerAt(lock);
  return owner.lives(owner, word);
}
// A reaper works in memory that may say anything: it waits so long for one lock, then calls
// g_lock_given_up, which does not return. 0: waits for as long as the owner lives.
extern uint64_t g_lock_patience_ns;
extern void (*g_lock_given_up)();
// So long a thread waits before it asks whether the owner lives; under a second.
extern uint64_t g_lock_ask_ns;

// Locks that this thread holds or is about to take. While there are any, a signal's handler must
// not run: it could ask for a lock that its own thread holds. The signal layer
// (preload/signal_calls.cc) then sets `late`, and the last Unlock calls it back.
struct ThreadLocks {
  uint32_t held;
  uint32_t late;
  uint32_t engine;    // the engine's lock of a stack (stack/engine.h)
  uint32_t no_waits;  // PSTN_CHECKS: those under which no thread waits for another process
};
extern constinit thread_local ThreadLocks t_locks __attribute__((tls_model("initial-exec")));
extern void (*g_run_late)();  // never null

// A wait for posternd, or for anything that another process does, asks this first: not under the
// engine's lock, nor under one in shared memory whose holders others wait for. It is a check
// (base/check.h) of the place that calls it. Builds with PSTN_CHECKS look at all of these locks,
// others at the engine's.
inline bool HoldsEngine() { return t_locks.engine != 0; }
inline void CheckMayWait(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
  if (t_locks.engine != 0 || t_locks.no_waits != 0) [[unlikely]]
    (void)CheckFailed(file, line, "a wait for another process under a lock of the stack");
}
#if defined(PSTN_CHECKS)
extern bool (*g_forbids_waits)(const pstn_lock& lock);  // never null
inline bool ForbidsNone(const pstn_lock&) { return false; }
inline void NoteTaken(const pstn_lock& lock) {
  if (g_forbids_waits(lock)) t_locks.no_waits++;
}
inline void NoteGiven(const pstn_lock& lock) {
  if (g_forbids_waits(lock)) t_locks.no_waits--;
}
#else
inline void NoteTaken(const pstn_lock&) {}
inline void NoteGiven(const pstn_lock&) {}
#endif

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
// Takes a lock that bears our mark, although no thread of this image has taken it: a thread of the
// image before an exec() held it. Its id tells nothing, since the exec gives the leader's to the
// thread that calls it. False: it is not such a lock.
bool TakeFromLastImage(pstn_lock& lock);
void UnlockWake(pstn_lock& lock);

// True: taken over from an owner that died with it, perhaps in the middle of a change.
[[gnu::always_inline]] inline bool Lock(pstn_lock& lock)
    PSTN_ACQUIRE(lock) PSTN_NO_THREAD_SAFETY_ANALYSIS {
  EnterLocked();
  uint32_t self = LockWord(lock);
  uint32_t free = 0;
  const bool from_dead = !CompareExchange(lock.word, free, self) && LockSlow(lock, self);
  NoteTaken(lock);
  return from_dead;
}
inline bool TryLock(pstn_lock& lock) PSTN_TRY_ACQUIRE(true, lock) PSTN_NO_THREAD_SAFETY_ANALYSIS {
  EnterLocked();
  uint32_t free = 0;
  bool taken = CompareExchange(lock.word, free, LockWord(lock));
  if (taken)
    NoteTaken(lock);
  else
    LeaveLocked();
  return taken;
}
[[gnu::always_inline]] inline void Unlock(pstn_lock& lock)
    PSTN_RELEASE(lock) PSTN_NO_THREAD_SAFETY_ANALYSIS {
  NoteGiven(lock);
  if ((Exchange(lock.word, 0u) & kLockSleepers) != 0) UnlockWake(lock);  // [E6]
  LeaveLocked();
}

// The calling thread has it: says so to clang where the analysis can't see it, in a lambda that is
// called under it, or if it was taken under another name (abi/thread_safety.h). Does nothing.
inline void AssertHeld(const pstn_lock& lock) PSTN_ASSERT_CAPABILITY(lock) { (void)lock; }

class PSTN_SCOPED_CAPABILITY Guard {
 public:
  [[gnu::always_inline]] explicit Guard(pstn_lock& lock) PSTN_ACQUIRE(lock) : lock_(lock) {
    Lock(lock_);
  }
  [[gnu::always_inline]] ~Guard() PSTN_RELEASE() { Unlock(lock_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  pstn_lock& lock_;
};

// Everything of an object that begins with its lock, but the lock: its word is its holder's.
// Under both locks.
template <typename T>
void CopyButLock(T& to, const T& from) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
  static_assert(offsetof(T, lock) == 0 && sizeof(T) > sizeof(pstn_lock));
  memcpy(reinterpret_cast<char*>(&to) + sizeof(pstn_lock),
         reinterpret_cast<const char*>(&from) + sizeof(pstn_lock), sizeof(T) - sizeof(pstn_lock));
}

}  // namespace postern
