// SPDX-License-Identifier: Apache-2.0
// lock.cc - the contended half of lock.h.
#include "base/lock.h"

#include "base/clock.h"
#include "base/sys.h"

namespace postern {

constinit thread_local ThreadLocks t_locks
    __attribute__((tls_model("initial-exec"))) = {0, 0, 0, 0};
constinit thread_local uint32_t t_self_tid __attribute__((tls_model("initial-exec"))) = 0;
void (*g_run_late)() = [] {};
uint32_t g_lock_mark = 0;
uint32_t g_lock_by_place = 0;
uint64_t g_lock_patience_ns = 0;
uint64_t g_lock_ask_ns = 20000000;
void (*g_lock_given_up)() = [] {};

namespace {

uint64_t nobodys_count;

constexpr uint64_t kModuleNapNs = 20'000;
constexpr int kSpins = 200;  // about 5 us: longer than any critical section

// Of the process's own locks.
LockOwner itself = {
    .mark = 0,
    .s = nullptr,
    .lives = [](const LockOwner&,
                uint32_t word) { return sys::ThreadIsAlive(word & PSTN_LOCK_TID); },
    .taken_over = &nobodys_count,
};
LockOwner* sole = &itself;  // (a) while there are not several

struct LockRange {
  uintptr_t begin, end;
  LockOwner* owner;  // (a) null: the entry is free; put in last
};
constexpr uint32_t kLockRanges = 16;
LockRange ranges[kLockRanges];

}  // namespace

#if defined(PSTN_CHECKS)
bool (*g_forbids_waits)(const pstn_lock&) = ForbidsNone;
#endif

uint32_t LearnTid() { return t_self_tid = static_cast<uint32_t>(sys::Tid()); }
void ForgetTid() { t_self_tid = 0; }

LockOwner& LockOwnerAt(const pstn_lock& lock) {
  if (LoadRelaxed(g_lock_by_place) == 0) return *LoadAcquire(sole);  // [O1]
  const auto at = reinterpret_cast<uintptr_t>(&lock);
  for (const LockRange& r : ranges) {
    LockOwner* owner = LoadAcquire(r.owner);  // [O2]
    if (owner != nullptr && at >= r.begin && at < r.end) return *owner;
  }
  return itself;
}

bool AddLocksOf(LockOwner& owner, const void* at, size_t bytes) {
  static LockOwner taken = itself;
  for (LockRange& r : ranges) {
    LockOwner* none = nullptr;
    if (!CompareExchange(r.owner, none, &taken)) continue;
    r.begin = reinterpret_cast<uintptr_t>(at);
    r.end = r.begin + bytes;
    StoreRelease(r.owner, &owner);  // [O2]
    LockOwner* alone = &itself;
    if (CompareExchange(sole, alone, &owner))
      g_lock_mark = owner.mark;
    else if (alone != &owner)
      StoreRelease(g_lock_by_place, 1u);  // [O3]
    return true;
  }
  return false;
}

void DropLocksAt(const void* at) {
  LockOwner* const alone = LoadAcquire(sole);  // [O1]
  bool others = false;
  for (LockRange& r : ranges) {
    LockOwner* owner = LoadAcquire(r.owner);  // [O2]
    if (owner != nullptr && r.begin == reinterpret_cast<uintptr_t>(at))
      StoreRelease(r.owner, static_cast<LockOwner*>(nullptr));  // [O2]
    else
      others = others || owner == alone;
  }
  if (others || LoadRelaxed(g_lock_by_place) != 0) return;
  StoreRelease(sole, &itself);  // [O1]
  g_lock_mark = 0;
}

void MarkLocksOf(LockOwner& owner, uint32_t mark) {
  owner.mark = mark;
  if (LoadAcquire(sole) == &owner) g_lock_mark = mark;  // [O1]
}

bool LockSlow(pstn_lock& lock, uint32_t self) {
  for (int i = 0; i < kSpins; i++) {
    uint32_t free = 0;
    if (LoadRelaxed(lock.word) == 0 && CompareExchange(lock.word, free, self)) return false;
    CpuRelax();
  }
  const uint64_t until_ns = g_lock_patience_ns != 0 ? MonotonicNs() + g_lock_patience_ns : 0;
  timespec patience = {0, static_cast<long>(g_lock_ask_ns)};
  if (until_ns != 0 && g_lock_patience_ns < g_lock_ask_ns)
    patience.tv_nsec = static_cast<long>(g_lock_patience_ns);
  // From here on we take the lock with the sleepers' bit set: others may sleep beside us.
  for (;;) {
    uint32_t seen = LoadRelaxed(lock.word);
    if (seen == 0) {
      if (CompareExchange(lock.word, seen, self | kLockSleepers)) return false;
      continue;
    }
    if (until_ns != 0 && MonotonicNs() > until_ns) g_lock_given_up();
    if ((seen & ~kLockSleepers) == kLockModule) {
      sys::Nap(kModuleNapNs);
      continue;
    }
    if ((seen & kLockSleepers) == 0 && !CompareExchange(lock.word, seen, seen | kLockSleepers)) {
      continue;
    }
    seen |= kLockSleepers;
    long r = sys::FutexWait(&lock.word, seen, &patience);
    if (r == -110 && !LockOwnerLives(lock, seen & ~kLockSleepers)) {  // ETIMEDOUT
      if (!CompareExchange(lock.word, seen, self | kLockSleepers)) continue;
      FetchAdd(*LockOwnerAt(lock).taken_over, uint64_t{1});
      return true;
    }
  }
}

bool TakeFromLastImage(pstn_lock& lock) {
  const uint32_t mark = LockOwnerAt(lock).mark;
  uint32_t seen = LoadRelaxed(lock.word);
  EnterLocked();
  while (mark != 0 && (seen & ~(kLockSleepers | PSTN_LOCK_TID)) == mark) {
    if (!CompareExchange(lock.word, seen, LockWord(lock) | kLockSleepers)) continue;
    NoteTaken(lock);
    FetchAdd(*LockOwnerAt(lock).taken_over, uint64_t{1});
    return true;
  }
  LeaveLocked();
  return false;
}

void UnlockWake(pstn_lock& lock) { (void)sys::FutexWake(&lock.word, 1); }

}  // namespace postern
