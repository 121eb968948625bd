// wire_keeper.cc - see wire_keeper.h.
// SPDX-License-Identifier: Apache-2.0
#include "wire_keeper.h"
#include "../posternd/kit/proc.h"
#include "base/clock.h"
#include "control/posternd.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/turn.h"
#include "life/reap.h"
#include "offhost/wire.h"
#include "sock/own_family.h"

#include <sys/epoll.h>

#include <cerrno>

namespace postern::keeper {
namespace {

constexpr uint64_t kAttendedNs = 2'000'000;  // so long after a program's look it counts as awake
constexpr uint64_t kSweepNs = 1'000'000'000;
constexpr uint64_t kSweepAfterNs = 100'000'000;  // another stack may be waiting for the queues
constexpr uint64_t kLongestMs = 200;             // until it sees that the last program has ended
constexpr uint64_t kSpoiltMs = 10;               // without a bell (DrainBell in smcd/notify.h)

}  // namespace

int WireKeeper::Start(int bundle, int set, uint64_t tag) {
  if (started()) {
    CloseInternal(g_family, bundle);
    return 0;
  }
  int r = WireAdopt(g_family, bundle);
  if (r != 0) return r;
  StoreRelease(g_family.wire_on, 0u);  // what it does for its bridges is not a program's polling
  // Now, while there is a posternd to ask: without them it can't deliver a byte.
  const uint32_t links = LoadRelaxed(Stack(g_family).hdr.lgrs_hw);
  for (uint32_t i = 0; i < links && i < Stack(g_family).lgrs.count(); i++)
    if (LoadAcquire(Stack(g_family).lgrs.Own(LgrIndex(i)).state) != 0) (void)EnsureLgr(g_family, i);
  r = WireBell(g_family);  // whose name goes into those
  if (r < 0) return r;
  bell_ = r;
  set_ = set;
  tag_ = tag;
  epoll_event ev{};
  ev.events = EPOLLIN;
  ev.data.u64 = tag_;
  return epoll_ctl(set_, EPOLL_CTL_ADD, bell_, &ev) == 0 ? 0 : -errno;
}

// The VIs are watched only while no program polls them: else each packet would wake two.
void WireKeeper::Watch(uint32_t events) {
  if (events == watched_) return;
  for (uint32_t i = 0; i < kAreaVis; i++) {
    Vi* vi = g_family.engine->ViAt(i);
    const int fd = vi != nullptr ? vi->Fd() : -1;
    if (fd < 0) continue;
    epoll_event ev{};
    ev.events = events;
    ev.data.u64 = tag_;
    if (epoll_ctl(set_, EPOLL_CTL_MOD, fd, &ev) != 0) (void)epoll_ctl(set_, EPOLL_CTL_ADD, fd, &ev);
  }
  watched_ = events;
}

// Before a sleep. A VI that has nothing to sleep on any more would wake us for ever.
void WireKeeper::Arm() {
  for (uint32_t i = 0; i < kAreaVis; i++) {
    Vi* vi = g_family.engine->ViAt(i);
    const int fd = vi != nullptr ? vi->Fd() : -1;
    if (fd < 0) continue;
    vi->Arm();
    if (vi->Fd() < 0) (void)epoll_ctl(set_, EPOLL_CTL_DEL, fd, nullptr);
  }
}

uint64_t WireKeeper::Work(Company company) {
  stack::WireState& w = g_family.engine->state();
  const uint64_t now = MonotonicNs();
  (void)g_family.engine->Poll(now);
  WireErrands(g_family);
  // Posted: a program has died, and has left something to be swept.
  const bool asked =
      Exchange(Stack(g_family).waiters.Own(WaiterIndex(PSTN_EVMAP_WIRE)).posted, 0u) != 0;
  if (asked || now - swept_ns_ > (IsAfter(company) ? kSweepAfterNs : kSweepNs)) {
    swept_ns_ = now;
    Sweep(company);
  }
  const bool attended = LoadRelaxed(w.awake) != 0 && now - LoadRelaxed(w.attended_ns) < kAttendedNs;
  if (!attended) StoreRelaxed(w.awake, 0u);  // the threads counted there have died
  StoreRelaxed(w.keeper_naps, attended ? 1u : 0u);
  AnnounceSleep(g_family, PSTN_EVMAP_WIRE, !attended);
  FullFence();  // [F1] against WireSleeps(), and against posters
  if (attended) {
    Watch(0);
    return LoadRelaxed(w.awake) == 0 ? 0 : 1;
  }
  Watch(EPOLLIN);
  Arm();
  if (g_family.engine->IsDue(MonotonicNs())) return 0;
  const uint64_t next = g_family.engine->NextDeadline(), at = MonotonicNs();
  if (next <= at) return 0;
  const uint64_t ms = (next - at + 999'999) / 1'000'000;
  const uint64_t longest_ms = spoilt_ ? kSpoiltMs : kLongestMs;
  return ms < longest_ms ? ms : longest_ms;
}

void WireKeeper::Up() {
  StoreRelaxed(g_family.engine->state().keeper_naps, 0u);
  AnnounceSleep(g_family, PSTN_EVMAP_WIRE, false);
  if (spoilt_ || DrainBell(g_family.bells, bell_)) return;
  spoilt_ = true;  // in the set it would end each sleep at once
  (void)epoll_ctl(set_, EPOLL_CTL_DEL, bell_, nullptr);
}

// An embryo bears the name of its parent; its child takes it over at once, or never.
bool WireKeeper::Lives(uint32_t slot, Company company) {
  const pstn_slot& s = Stack(g_family).slots.Own(ProcIndex(slot));
  const uint32_t state = LoadAcquire(s.state);
  if (state != PSTN_SL_LIVE && state != PSTN_SL_EMBRYO) return false;
  if (company == Company::kPosternd) return true;  // it takes the dead out of the table
  const auto pid = static_cast<pid_t>(LoadRelaxed(s.pid));
  return daemon::IsAlive(pid, state == PSTN_SL_LIVE ? LoadRelaxed(s.start_time) : 0);
}

// What posternd does for the dead, when there is none: their connections get their FIN or RST.
// Claimed first: a posternd that comes meanwhile leaves alone what is dead already.
static void Bury(uint32_t slot) {
  StackMap& s = Stack(g_family);
  const uint32_t state = LoadAcquire(s.slots.Own(ProcIndex(slot)).state),
                 pid = LoadRelaxed(s.slots.Own(ProcIndex(slot)).pid);
  const auto stopped = [](const pstn_lock& lock) {
    return daemon::ThreadIsStopped(LoadRelaxed(lock.word) & PSTN_LOCK_TID);
  };
  if ((state != PSTN_SL_LIVE && state != PSTN_SL_EMBRYO) || ReapWouldWait(s, slot, stopped) ||
      !ClaimDead(g_family, slot, pid))
    return;
  ReapListeners(g_family, slot);
  ReapSlot(g_family, slot);
}

bool WireKeeper::IsAfter(Company company) {
  const uint32_t hw = LoadRelaxed(Stack(g_family).hdr.slots_hw);
  bool live = company == Company::kAlone;  // each look would cost a look into /proc
  for (uint32_t i = 0; i < hw && i < Stack(g_family).slots.count() && !live; i++)
    live = i != g_family.slot && Lives(i, company);
  return !live;
}

void WireKeeper::Sweep(Company company) {
  const uint32_t hw = LoadRelaxed(Stack(g_family).hdr.slots_hw);
  bool live = false;
  for (uint32_t i = 0; i < hw && i < Stack(g_family).slots.count(); i++) {
    if (i == g_family.slot) continue;
    if (Lives(i, company))
      live = true;
    else if (company == Company::kAlone)
      Bury(i);
  }
  WireSweep(g_family);
  needed_ = live || g_family.engine->Unfinished() != 0;
}

}  // namespace postern::keeper
