// lock_test.cc - the shared-memory mutex: exclusion, and owners that are killed.
// SPDX-License-Identifier: Apache-2.0
#include "base/lock.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

#include "../kit/catch.h"
#include "../kit/single_step.h"
#include "abi/postern_abi.h"
#include "base/clock.h"

namespace postern {
namespace {

struct Shared {
  pstn_lock lock;
  uint32_t stage;
  uint64_t count;
};

// A page that parent and child see.
Shared& MapPage() {
  void* p = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(p != MAP_FAILED);
  return *static_cast<Shared*>(p);
}

// A child that takes the lock and keeps it until it is killed.
pid_t HoldInChild(Shared& s) {
  const pid_t child = fork();
  if (child == 0) {
    ForgetTid();
    Lock(s.lock);
    StoreRelease(s.stage, 1u);
    for (;;) pause();
  }
  while (LoadAcquire(s.stage) == 0) usleep(100);
  return child;
}

TEST_CASE("lock: free, held, free") {
  pstn_lock lock = {0};
  Lock(lock);
  CHECK(lock.word == SelfTid());
  CHECK_FALSE(TryLock(lock));
  Unlock(lock);
  CHECK(lock.word == 0);
  CHECK(TryLock(lock));
  Unlock(lock);
  {
    Guard g(lock);
    CHECK(lock.word != 0);
  }
  CHECK(lock.word == 0);
}

TEST_CASE("lock: a child has a thread id of its own") {
  const uint32_t parent = SelfTid();
  const pid_t child = fork();
  if (child == 0) {
    ForgetTid();
    _exit(SelfTid() == static_cast<uint32_t>(getpid()) && SelfTid() != parent ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("lock: threads exclude each other and nobody sleeps for ever") {
  Shared& s = MapPage();
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kRounds = 20000;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&s, t] {
      for (int i = 0; i < kRounds; i++) {
        Guard g(s.lock);
        s.count++;
        if (i % 4096 == t) usleep(200);  // long enough that the others go to sleep
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(s.count == kThreads * kRounds);
  CHECK(s.lock.word == 0);
  munmap(&s, 4096);
}

TEST_CASE("lock: what a lock guards is copied beside those who hold it") {
  struct Guarded {
    pstn_lock lock;
    uint32_t numbers[15];
  };
  Guarded to = {}, from = {};
  for (uint32_t& n : from.numbers) n = 7;
  from.lock.word = 1234;
  uint32_t stop = 0, inside = 0, met = 0;
  std::thread holder([&] {
    while (LoadAcquire(stop) == 0) {
      Guard g(to.lock);
      if (FetchAdd(inside, 1u) != 0) FetchAdd(met, 1u);
      for (int i = 0; i < 50; i++) CpuRelax();
      FetchSub(inside, 1u);
    }
  });
  for (int i = 0; i < 20000; i++) {
    Guard g(to.lock);
    if (FetchAdd(inside, 1u) != 0) FetchAdd(met, 1u);
    CopyButLock(to, from);
    FetchSub(inside, 1u);
  }
  StoreRelease(stop, 1u);
  holder.join();
  CHECK(met == 0);
  CHECK(to.lock.word == 0);
  CHECK(from.lock.word == 1234);
  for (const uint32_t n : to.numbers) CHECK(n == 7);
}

TEST_CASE("lock: whoever waits for a killed owner takes it over") {
  Shared& s = MapPage();
  for (int round = 0; round < 3; round++) {
    s.stage = 0;
    const pid_t child = HoldInChild(s);
    CHECK_FALSE(TryLock(s.lock));
    std::vector<std::thread> waiters;  // several, some of them asleep already
    for (int i = 0; i < 3; i++) {
      waiters.emplace_back([&s] {
        Guard g(s.lock);
        FetchAdd(s.count, uint64_t{1});  // atomic because the test looks at it without the lock
      });
    }
    usleep(30000);
    CHECK(LoadRelaxed(s.count) ==
          static_cast<uint64_t>(round) * 3);  // a living owner is left alone
    kill(child, SIGKILL);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    for (std::thread& thread : waiters) thread.join();
    CHECK(s.count == static_cast<uint64_t>(round + 1) * 3);
    CHECK(s.lock.word == 0);
  }
  munmap(&s, 4096);
}

}  // namespace
// The process that holds the lock may be looked at, or die, at any of these instructions.
template <typename Direction>
void CheckCopyAtEachInstruction() {
  constexpr uint32_t kHolder = 4242;
  SharedPage<Direction> to;
  Direction from = {};
  from.lock.word = 77;
  from.bytes = 5;
  to->lock.word = kHolder;
  Saved saved;
  saved.Add(&*to, sizeof(Direction));
  const StepResult r = AtEachInstruction(
      saved, [&] { CopyButLock(*to, from); },
      [&]() -> const char* { return to->lock.word == kHolder ? nullptr : "the lock is changed"; });
  CheckSteps(r, 3);
}

TEST_CASE("lock: the copy of a connection's direction leaves its lock to the holder", "[step]") {
  CheckCopyAtEachInstruction<pstn_tx>();
  CheckCopyAtEachInstruction<pstn_rx>();
}

}  // namespace postern
