// local_lock_test.cc - locks of the process's own memory in a fork: taken, or free and renewed in
// the child.
// SPDX-License-Identifier: Apache-2.0
#include "family/local_lock.h"
#include "../kit/catch.h"
#include "life/process.h"
#include "sock/own_family.h"

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace postern {
namespace {

uint32_t guarded[2];  // equal, but for a moment under whole_lock
uint32_t renewals;

void Renew(Family&) { renewals++; }
PSTN_LOCK_WHOLE(whole_lock);
PSTN_LOCK_RENEWED(renewed_lock, Renew);

// 0: every lock of the table could be taken, and was given back.
int AllFree() {
  int held = 0;
  EachLocalLock([&](const LocalLock& l) {
    if (!TryLock(l.of(g_family))) {
      held++;
    } else {
      Unlock(l.of(g_family));
    }
  });
  return held;
}

// How the child of a fork ended that finds what it should.
int ForkedChild() {
  ForkPrepare(g_family);
  const pid_t child = fork();
  if (child == 0) {
    ForkChild(g_family);
    if (AllFree() != 0) _exit(1);
    if (guarded[0] != guarded[1]) _exit(2);
    if (renewals == 0) _exit(3);
    if (t_locks.held != 0) _exit(4);
    _exit(0);
  }
  ForkParent(g_family);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("local_lock: the library's own are in the table") {
  size_t count = 0;
  EachLocalLock([&](const LocalLock& l) { count += l.of != nullptr ? 1u : 0u; });
  CHECK(count >= 2 + 9);
  CHECK(AllFree() == 0);
}

TEST_CASE("local_lock: a fork beside a thread that changes what a lock guards finds it whole") {
  uint32_t stop = 0, begun = 0;
  std::thread changes([&] {
    while (LoadAcquire(stop) == 0) {
      Guard g(whole_lock);
      guarded[0]++;
      for (int i = 0; i < 1000; i++) CpuRelax();
      guarded[1]++;
      StoreRelease(begun, 1u);
    }
  });
  while (LoadAcquire(begun) == 0) usleep(100);
  for (int i = 0; i < 30; i++) CHECK(ForkedChild() == 0);
  StoreRelease(stop, 1u);
  changes.join();
  CHECK(t_locks.held == 0);
  CHECK(AllFree() == 0);
}

TEST_CASE("local_lock: no fork waits for a lock that may be held for long, and it is free after") {
  EachLocalLock([](const LocalLock& l) {
    if (l.renew == nullptr) return;
    uint32_t stage = 0;
    std::thread holds([&] {
      Guard g(l.of(g_family));
      StoreRelease(stage, 1u);
      while (LoadAcquire(stage) != 2) usleep(100);
    });
    while (LoadAcquire(stage) != 1) usleep(100);
    CHECK(ForkedChild() == 0);
    StoreRelease(stage, 2u);
    holds.join();
  });
}

}  // namespace
}  // namespace postern
