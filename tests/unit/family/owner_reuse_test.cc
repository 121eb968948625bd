// SPDX-License-Identifier: Apache-2.0
// owner_reuse_test.cc - a process dies with a lock, and another one gets its number: the lock is
// taken over all the same.
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"
#include "base/start_time.h"
#include "family/family.h"
#include "family/holder.h"
#include "sock/own_family.h"

namespace postern {
namespace {

constexpr uint32_t kWaiting = 4, kDeadOwner = 3;

// A process with that number, which lives until it is killed; -errno: that may not be chosen.
pid_t SpawnAs(pid_t pid) {
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(&pid);
  args.set_tid_size = 1;
  const long r = syscall(SYS_clone3, &args, sizeof args);
  if (r != 0) return r > 0 ? static_cast<pid_t>(r) : -errno;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}

void KillNow(pid_t pid) {
  REQUIRE(kill(pid, SIGKILL) == 0);
  REQUIRE(waitpid(pid, nullptr, 0) == pid);
}

class ReuseWorld {
 public:
  ReuseWorld() {
    g_family.view = {};
    g_family.view.s = &world.stack();
    (void)UseLockSlot(g_family, kWaiting);
  }
  ~ReuseWorld() {
    LeaveLocks(g_family);
    g_family.view = before_;
  }
  ReuseWorld(const ReuseWorld&) = delete;
  ReuseWorld& operator=(const ReuseWorld&) = delete;

  // A child takes the lock by `take`, and waits; it lives.
  template <typename Take>
  pid_t Owner(const pstn_lock& lock, Take take) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      ForgetTid();
      ForgetPidns(g_family);
      take();
      for (;;) pause();
    }
    while (LoadAcquire(lock.word) == 0) usleep(1000);
    return child;
  }
  // It dies, and another process gets its number. False: skipped.
  bool Replaced(pid_t owner) {
    const uint64_t start = StartTimeOf(static_cast<uint32_t>(owner));
    KillNow(owner);
    for (;;) {
      heir_ = SpawnAs(owner);
      if (heir_ < 0) break;
      REQUIRE(heir_ == owner);
      if (StartTimeOf(static_cast<uint32_t>(heir_)) != start) return true;
      KillNow(heir_);  // within the same tick
    }
    WARN("skipped: the number of a process can't be chosen here: " << -heir_);
    return false;
  }
  // What an owner that lives has is left to it; what a dead one had is taken over.
  template <typename Take>
  void Check(pstn_lock& lock, Take take) {
    const pid_t owner = Owner(lock, take);
    if (StartTimeOf(static_cast<uint32_t>(owner)) == 0) {
      WARN("skipped: nothing is known of when processes begin");
      return KillNow(owner);
    }
    CHECK(LockOwnerLives(lock, LoadRelaxed(lock.word)));
    if (!Replaced(owner)) return;
    bool lives = true;  // /proc is looked into once in a while
    for (int i = 0; i < 200 && lives; i++) {
      usleep(20'000);
      lives = LockOwnerLives(lock, LoadRelaxed(lock.word));
    }
    REQUIRE_FALSE(lives);
    CHECK(Lock(lock));
    Unlock(lock);
    KillNow(heir_);
  }

  RingWorld world;

 private:
  StackView before_ = g_family.view;
  pid_t heir_ = 0;
};

TEST_CASE("owner: the number of a dead process is another's, and its slot was not reaped") {
  ReuseWorld w;
  StackMap& s = w.world.stack();
  w.Check(s.hdr.lgr_lock, [&] {
    pstn_slot& slot = s.slots.Own(ProcIndex(kDeadOwner));
    slot.pid = static_cast<uint32_t>(getpid());
    slot.pidns = OwnPidns(g_family);
    slot.start_time = StartTimeOf(slot.pid);
    StoreRelease(slot.state, uint32_t{PSTN_SL_LIVE});
    (void)UseLockSlot(g_family, kDeadOwner);
    Lock(s.hdr.lgr_lock);
  });
}

TEST_CASE("owner: the number of a process that died as it joined is another's") {
  ReuseWorld w;
  StackMap& s = w.world.stack();
  w.Check(s.hdr.slot_lock, [&] {
    ForgetLockSlot(g_family);
    const uint64_t start = StartTimeOf(SelfTid());
    Lock(s.hdr.slot_lock);
    const Joiner joiner(s, start);
    for (;;) pause();
  });
}

TEST_CASE("owner: the number of a dead reaper is another's") {
  ReuseWorld w;
  StackMap& s = w.world.stack();
  w.Check(s.hdr.reap_lock, [&] {
    StoreRelaxed(s.hdr.reaper_start, StartTimeOf(SelfTid()));
    StoreRelease(s.hdr.reaper_pidns, OwnPidns(g_family));
    StoreRelease(s.hdr.reap_lock.word, PSTN_LOCK_REAPER << PSTN_LOCK_SLOT_SHIFT | SelfTid());
  });
}

TEST_CASE("owner: a thread that waits for what its own number has does not have it") {
  ReuseWorld w;
  StackMap& s = w.world.stack();
  s.slots.Own(ProcIndex(kWaiting)).state = PSTN_SL_LIVE;
  s.slots.Own(ProcIndex(kWaiting)).pid = static_cast<uint32_t>(getpid());
  s.slots.Own(ProcIndex(kWaiting)).pidns = OwnPidns(g_family);
  StoreRelease(s.hdr.lgr_lock.word, (kWaiting + 1) << PSTN_LOCK_SLOT_SHIFT | SelfTid());
  REQUIRE_FALSE(LockOwnerLives(s.hdr.lgr_lock, LoadRelaxed(s.hdr.lgr_lock.word)));
  CHECK(Lock(s.hdr.lgr_lock));
  Unlock(s.hdr.lgr_lock);
}

}  // namespace
}  // namespace postern
