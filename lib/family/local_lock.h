// SPDX-License-Identifier: Apache-2.0
// local_lock.h - locks in one process's own memory, and what becomes of them in a fork.
//
// A child of fork has its parent's memory and none of its parent's other threads. A lock that such
// a thread held would be held in the child for as long as the parent lives: Lock() asks whether
// the owner exists, and it does. So each lock that is not in shared memory is declared with one of
// the macros below, which enter it in a table; no list has to be kept (tests/tidy refuses a
// pstn_lock at namespace scope that is not declared so).
//
//   PSTN_LOCK_WHOLE    is held for moments, and its holder waits for nothing meanwhile. The
//                      thread that forks takes it: the child finds its data whole.
//   PSTN_LOCK_RENEWED  may be held while posternd is asked, for which no fork() waits. In the child
//                      it is free, and `renew` has made its data usable again: it may have caught
//                      them at any instruction of a change.
//
// The table is a section of the image, so it needs no constructor and is complete before main.
#pragma once
#include "base/lock.h"
#include "family/family.h"

namespace postern {

struct LocalLock {
  pstn_lock& (*of)(Family& fam);  // which of a family's locks; or one of the process
  void (*renew)(Family& fam);     // null: PSTN_LOCK_WHOLE
};

#define PSTN_LOCK_ENTRY(id, lock, renew)                                         \
  __attribute__((section("pstn_local_locks"),                                    \
                 used)) constinit const ::postern::LocalLock local_lock_##id = { \
      []([[maybe_unused]] ::postern::Family& fam) -> pstn_lock& { return lock; }, renew}

#define PSTN_LOCK_WHOLE(name) \
  constinit pstn_lock name{}; \
  PSTN_LOCK_ENTRY(name, name, nullptr)
#define PSTN_LOCK_RENEWED(name, renew) \
  constinit pstn_lock name{};          \
  PSTN_LOCK_ENTRY(name, name, renew)

// Around a fork, by the thread that forks and in the order of the table. A thread that holds one of
// them takes no other of them.
void LocalLocksTake(Family& fam);
void LocalLocksGive(Family& fam);
// In the child, instead of LocalLocksGive().
void LocalLocksForked(Family& fam);

// For tests: all of them.
template <typename Fn>
void EachLocalLock(Fn fn);

extern "C" {
extern const LocalLock __start_pstn_local_locks[] __attribute__((weak, visibility("hidden")));
extern const LocalLock __stop_pstn_local_locks[] __attribute__((weak, visibility("hidden")));
}

template <typename Fn>
void EachLocalLock(Fn fn) {
  for (const LocalLock* l = __start_pstn_local_locks; l != __stop_pstn_local_locks; l++) fn(*l);
}

}  // namespace postern
