// SPDX-License-Identifier: Apache-2.0
// wait.cc - spinning within reason, and places to sleep for sets of descriptors.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/sys.h"
#include "control/control_smc.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "endpoint/parked.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "event/held.h"
#include "event/spin.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/interrupts.h"
#include "family/local_lock.h"

namespace postern {

constinit thread_local uint32_t t_interrupts __attribute__((tls_model("initial-exec"))) = 0;
constinit thread_local uint32_t t_handlers __attribute__((tls_model("initial-exec"))) = 0;
constinit thread_local const Sleeping* t_sleeping __attribute__((tls_model("initial-exec"))) =
    nullptr;
constinit thread_local uint32_t* t_sleep_word __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// Spinning has to pay for itself. A spin that finds something saves both ends a sleep and a
// wake-up, and costs the time that it takes, as does one that finds nothing. Each further event of
// the same look at a set saves a passage through the kernel's stack: a thread that serves many
// connections may wait longer for the next of them than a sleep would cost. A thread that has lost
// by it of late sleeps at once for some waits, and then tries again.
struct Balance {
  int64_t ns;
  uint32_t pass;  // waits that don't spin
  uint32_t losses;
  uint32_t events;     // of the last look at a set that found some
  uint32_t uncounted;  // spins that the stack's counter has not yet
};
constexpr int64_t kSavedNs = 8'000;
constexpr int64_t kEventNs = 1'000;
constexpr int64_t kMostNs = 200'000;  // what it may lose after a long time of gains
// What it may lose when it tries again. One end that sleeps has the other one wait longer, which
// loses by it and sleeps, too: they come out of that only if both spin for some waits at once.
constexpr int64_t kTrialNs = 100'000;
constexpr uint32_t kPass = 16;       // doubles with each loss ...
constexpr uint32_t kDoublings = 6;   // ... up to 1024
constexpr uint32_t kPassUnpaid = 4;  // after a CPU was wanted, where spins need not pay
constinit thread_local Balance t_balance
    __attribute__((tls_model("initial-exec"))) = {kMostNs, 0, 0, 0, 0};

void Lose(uint32_t times) {
  t_balance.ns = kTrialNs;
  t_balance.pass = kPass << t_balance.losses;
  t_balance.losses = std::min(t_balance.losses + times, kDoublings);
}

constexpr uint64_t kNarrowNs = 10'000'000;
constexpr uint64_t kHeldNapNs = 1'000'000;

PSTN_LOCK_ENTRY(beds_lock, fam.beds->lock, nullptr);

}  // namespace

bool SpinAllowed(Family& fam) {
  if (fam.opt.spin_usec == 0) return false;
  if (t_balance.pass == 0) [[likely]]
    return true;
  t_balance.pass--;
  return false;
}

namespace {

// The counter's line is all threads'; a spin in ping-pong takes less than to fetch it.
void CountSpin(Family& fam) {
  constexpr uint32_t kStep = 64;
  if (++t_balance.uncounted < kStep) return;
  t_balance.uncounted = 0;
  Count(Stack(fam).hdr, kCounterSpins, kStep);
}

// With a VI, a thread that spins runs the engine meanwhile, in the place of the keeper.
bool HasToPay(Family& fam) { return fam.opt.spin_adapt != 0 && LoadRelaxed(fam.wire_on) == 0; }

}  // namespace

void SpinEnded(Family& fam, bool found, uint64_t took_ns) {
  CountSpin(fam);
  if (!HasToPay(fam)) return;
  const int64_t ns = t_balance.ns - static_cast<int64_t>(took_ns) + (found ? kSavedNs : 0);
  t_balance.ns = std::min(ns, kMostNs);
  if (ns < 0) return Lose(1);
  if (found && t_balance.losses != 0) t_balance.losses--;
}

void SpinEarned(uint32_t events) {
  t_balance.ns = std::min(t_balance.ns + int64_t{events - 1} * kEventNs, kMostNs);
  t_balance.events = events;
}

void SpinLost(Family& fam, bool found, uint64_t took_ns) {
  // The other thread has had the CPU, and there is enough for this one now: a sleep would have come
  // to the same, and have cost each of the peers a wake-up.
  const int64_t earned = found ? (int64_t{t_balance.events} - 1) * kEventNs : 0;
  t_balance.events = 0;
  if (HasToPay(fam) && earned >= static_cast<int64_t>(took_ns))
    return SpinEnded(fam, true, took_ns);
  CountSpin(fam);
  if (HasToPay(fam)) return Lose(2);
  t_balance.pass = kPassUnpaid;
}

int NewBell(Family& fam, uint32_t waiter) {
  const BellName name = BellOf(Stack(fam), waiter);
  if (LoadRelaxed(Stack(fam).hdr.wide_bells) == 0) return OpenBell(name);
  const int bell = CtlBell(fam, name);
  if (bell >= 0 || bell == -EADDRINUSE) return bell;
  StoreRelaxed(fam.beds->narrow, 1u);
  return OpenBell(name);
}

void PayRingsOwed(Family& fam, Pay pay) {
  constexpr uint64_t kEachNs = 10'000'000;
  constexpr int kTries = 3;         // hostile bells may fill this one, too
  if (fam.beds == nullptr) return;  // in the reaper
  for (int i = 0; i < kTries && LoadRelaxed(fam.bells.owed) != 0; i++) {
    uint64_t last = LoadRelaxed(fam.beds->paid_ns);
    const uint64_t since = MonotonicNs() - last;
    if (since < kEachNs && pay == Pay::kIfDue) return;
    if (since < kEachNs) sys::Nap(kEachNs - since);
    if (!CompareExchange(fam.beds->paid_ns, last, MonotonicNs())) continue;  // another thread pays
    StoreRelaxed(fam.bells.owed, 0u);
    const int wide = LoadRelaxed(fam.bells.wide_sender);
    const int fresh = wide >= 0 ? CtlBell(fam, {Stack(fam).hdr.id, PSTN_NONE, 0}) : -1;
    if (fresh >= 0) {
      (void)sys::Dup3(fresh, wide, O_CLOEXEC);  // threads that ring use the one or the other
      sys::Close(fresh);
    }
    RingOwedInside(fam.bells, Stack(fam));
    EachLgr(fam, [&](uint8_t* lgr, const pstn_lgr_ref& ref) {
      RingOwed(fam.bells, lgr, (LoadRelaxed(ref.side) & 1u) ^ 1u);
    });
    if (pay == Pay::kIfDue) return;
  }
}

void RingOwn(Family& fam, uint32_t waiter) {
  (void)RingBell(fam.bells, BellOf(Stack(fam), waiter));
  if (LoadRelaxed(fam.bells.owed) == 0) [[likely]]
    return;
  PayRings(fam);
  (void)RingBell(fam.bells, BellOf(Stack(fam), waiter));
}

void NoteWait(Family& fam) {
  constexpr uint64_t kEachNs = 1'000'000'000;
  uint64_t none = 0;
  (void)CompareExchange(fam.beds->waits_ns, none, MonotonicNs() + kEachNs);
}

namespace {

// When connects that wait for room are to be looked at next.
uint64_t WaitsUntil(Family& fam) {
  uint64_t& at = fam.beds->waits_ns;
  uint64_t due = LoadRelaxed(at);
  if (due == 0 || MonotonicNs() < due || !CompareExchange(at, due, uint64_t{0})) return due;
  if (LookAtWaits(fam)) NoteWait(fam);
  return LoadRelaxed(at);
}

}  // namespace

Deadline SleepUntil(Family& fam, const Deadline& until) {
  PayRings(fam);
  uint64_t deferred_ns = LoadRelaxed(fam.beds->deferred_ns);
  if (deferred_ns != 0 && deferred_ns <= MonotonicNs()) {
    kVerbs.admit_syns(fam, 1);  // which waits for others, or for none
    deferred_ns = LoadRelaxed(fam.beds->deferred_ns);
  }
  const bool shorten = LoadRelaxed(fam.beds->narrow) != 0 && until.left_ns() > kNarrowNs;
  Deadline sleep = shorten ? Deadline::AfterNs(kNarrowNs) : until;
  if (deferred_ns != 0 && deferred_ns < sleep.at_ns) sleep = Deadline{deferred_ns};
  if (LoadRelaxed(fam.beds->waits_ns) != 0) [[unlikely]] {
    const uint64_t waits_ns = WaitsUntil(fam);
    if (waits_ns != 0 && waits_ns < sleep.at_ns) sleep = Deadline{waits_ns};
  }
  const uint64_t held_ns = HeldUntil(fam);
  if (held_ns < sleep.at_ns) [[unlikely]] {
    const Deadline soon = Deadline::AfterNs(kHeldNapNs);  // a peer may say that it is always near
    if (soon.at_ns < sleep.at_ns) sleep = held_ns > soon.at_ns ? Deadline{held_ns} : soon;
  }
  return sleep;
}

// A waiter's name may still be held, by a fork that inherited the doorbell of the waiter's last
// owner: such a waiter is passed over, and stays for later.
Bed MakeBed(Family& fam, uint32_t owner_slot) {
  StackMap& s = Stack(fam);
  Bed bed = {PSTN_NONE, -1};
  uint32_t passed_over = PSTN_NONE;  // chained like the free ones
  for (;;) {
    bed.waiter = TakeWaiter(s, fam.whom);
    if (bed.waiter != PSTN_NONE)
      StoreRelaxed(s.waiters.Own(WaiterIndex(bed.waiter)).nonce, NewUuid().lo);
    bed.bell = bed.waiter == PSTN_NONE ? -ENOSPC : MoveHigh(fam, NewBell(fam, bed.waiter));
    if (bed.bell != -EADDRINUSE) break;
    StoreRelaxed(s.waiters.Own(WaiterIndex(bed.waiter)).next, passed_over);
    passed_over = bed.waiter;
  }
  while (const pstn_waiter* const w = s.waiters.At(WaiterIndex(passed_over))) {
    passed_over = LoadRelaxed(w->next);
    GiveWaiter(s, s.waiters.IndexOf(*w).word());
  }
  if (bed.bell < 0) {
    if (bed.waiter != PSTN_NONE) GiveWaiter(s, bed.waiter);
    return {PSTN_NONE, bed.bell};
  }
  pstn_waiter& w = s.waiters.Own(WaiterIndex(bed.waiter));
  w.owner_slot = owner_slot;
  StoreRelaxed(w.sleeping, 0u);
  StoreRelaxed(w.wants_syn, 0u);
  StoreRelaxed(w.posted, 0u);
  StoreRelease(w.state, 1u);  // [S3]
  return bed;
}

void ReleaseWaiter(Family& fam, uint32_t waiter) {
  MarkWaiter(fam, waiter, 0);
  StoreRelease(Stack(fam).waiters.Own(WaiterIndex(waiter)).state, 0u);  // [S3]
  GiveWaiter(Stack(fam), waiter);
}

void SpoiltBell(Family& fam) {
  StoreRelaxed(fam.beds->narrow, 1u);
  Count(Stack(fam).hdr, kCounterPeerViolations);
}

void CloseBell(Family& fam, int bell) {
  if (bell >= 0 && DrainBell(fam.bells, bell)) CloseInternal(fam, bell);
}

void UnmakeBed(Family& fam, const Bed& bed) {
  CloseBell(fam, bed.bell);
  ReleaseWaiter(fam, bed.waiter);
}

void ReleaseWaitersOf(Family& fam, uint32_t slot) {
  StackMap& s = Stack(fam);
  for (const pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.state) != 0 && w.owner_slot == slot)
      ReleaseWaiter(fam, s.waiters.IndexOf(w).word());
  }
}

void WakeOwnSleepers(Family& fam) {
  if (!fam.attached) return;
  FullFence();  // [F1] between libc's mark of the cancellation and the waiters
  StackMap& s = Stack(fam);
  for (const pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.state) != 0 && w.owner_slot == fam.slot)
      (void)RingBell(fam.bells, BellOf(s, s.waiters.IndexOf(w).word()));
  }
  if (!CancelSparesWhatMoved()) return;
  const uint32_t n = LoadAcquire(fam.uses->records);  // [U1]
  for (uint32_t i = 0; i < n; i++) {
    ThreadUses* const t = Record(fam, i);
    // A poll() of one connection. A call that has moved bytes has to hear of the signal.
    if (t == nullptr || LoadAcquire(t->many_count) == 0) continue;  // [U5]
    for (const Use& u : t->at) {
      const uint32_t entry = LoadAcquire(u.entry);  // [H2]
      pstn_ep* const ep =
          (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(s, entry & PSTN_FD_IDX) : nullptr;
      ConnEnd e;
      if (ep != nullptr && Resolve(fam, *ep, e)) WakeOwnThreads(fam.bells, e);
    }
  }
}

Bed TakeBed(Family& fam) {
  {
    Guard g(fam.beds->lock);
    if (fam.beds->count != 0) return fam.beds->at[--fam.beds->count];
  }
  return MakeBed(fam, fam.slot);
}

void GiveBed(Family& fam, const Bed& bed) {
  if (bed.waiter == PSTN_NONE) return;
  if (bed.bell >= 0) {
    Guard g(fam.beds->lock);
    if (fam.beds->count < kBeds) {
      fam.beds->at[fam.beds->count++] = bed;
      return;
    }
  }
  UnmakeBed(fam, bed);
}

void BedsForget(Family& fam) {
  AssertHeld(fam.beds->lock);  // the process has one thread, or none that uses the stack
  for (uint32_t i = 0; i < fam.beds->count; i++) CloseInternal(fam, fam.beds->at[i].bell);
  fam.beds->count = 0;
}

// The parent's beds are the parent's: the child closes its copies of the bells.
void BedsAfterFork(Family& fam) { BedsForget(fam); }

void AnnounceSleep(Family& fam, uint32_t waiter, bool sleeps) {
  EachLgr(fam, [&](uint8_t* lgr, const pstn_lgr_ref& ref) {
    const uint32_t side = LoadRelaxed(ref.side) & 1u;
    uint32_t& flag = LgrEvmap(lgr, side, waiter).sleeping;
    // [S9]
    if (sleeps || LoadRelaxed(flag) != 0) StoreRelease(flag, sleeps ? 1u : 0u);  // the bell's name
  });
  pstn_waiter* const own = Stack(fam).waiters.At(WaiterIndex(waiter));
  if (own != nullptr) StoreRelaxed(own->sleeping, sleeps ? 1u : 0u);
  if (sleeps) FullFence();  // [F1]: the caller looks once more
}

bool WaiterHasNews(Family& fam, uint32_t waiter, bool syn) {
  const pstn_waiter* const own = Stack(fam).waiters.At(WaiterIndex(waiter));
  if (own == nullptr || LoadRelaxed(own->posted) != 0) return true;
  bool news = false;
  EachLgr(fam, [&](uint8_t* lgr, const pstn_lgr_ref& ref) {
    const uint32_t side = LoadRelaxed(ref.side) & 1u;
    news = news || LoadRelaxed(LgrEvmap(lgr, side, waiter).summary) != 0 ||
           LoadRelaxed(LgrEvmap(lgr, side, PSTN_EVMAP_ALL).summary) != 0 ||
           (syn && side == 1 && LoadRelaxed(LgrEvmap(lgr, 1, PSTN_EVMAP_SYN).summary) != 0);
  });
  return news;
}

namespace {

// Gives back the transmit ring of connection `c`, if it is drained and, with kUnused, has not
// been written to since the sweep last came by.
enum class Sweep : uint8_t { kAll, kUnused };
void SweepConn(Family& fam, pstn_lgr_ref& ref, uint8_t* lgr, uint32_t c, Sweep which) {
  StackMap& s = Stack(fam);
  uint32_t ep_idx = LoadAcquire(ref.conn_ep[c]);  // [E4]
  pstn_ep* const place = ep_idx != 0 ? EpAt(s, ep_idx - 1) : nullptr;
  if (place == nullptr) return;
  pstn_ep& ep = *place;
  if (LoadRelaxed(ep.tx.ring) == 0 || LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED) return;  // [E1]
  if (!TryLock(ep.tx.lock)) return;
  ConnEnd e = {&ep, &ref, lgr, &LgrConn(lgr, ep.conn_idx), ep.side & 1u};
  // Closed and used again meanwhile? Then conn_ep says otherwise. [E4]
  bool same = LoadAcquire(ref.conn_ep[c]) == ep_idx && s.lgrs.At(LgrIndex(ep.lgr_idx)) == &ref &&
              ep.conn_idx == c;
  bool used = which == Sweep::kUnused && ep.tx.records != ep.tx.seen;
  ep.tx.seen = ep.tx.records;
  AssertHeld(e.ep->tx.lock);
  if (same && !used && RingDetach(e, which == Sweep::kAll ? Pages::kDrop : Pages::kKeep)) {
    Count(s.hdr, kCounterRingGivenBack);
  }
  Unlock(ep.tx.lock);
}

void SweepLgr(Family& fam, pstn_lgr_ref& ref, uint8_t* lgr) {
  if (LoadRelaxed(ref.zombies) != 0) SweepZombies(ref, lgr);
  for (uint32_t c = 0; c < PSTN_CONNS && LoadRelaxed(ref.rings) != 0; c++)
    SweepConn(fam, ref, lgr, c, Sweep::kAll);
  if (WarmBytes(ref) != 0) DropWarm(ref, lgr);
}

constexpr uint32_t kRingsFree = 64;  // so many rings of a side may sit idle
constexpr uint32_t kSweepStep = 4;

}  // namespace

// A ring has just been attached. Where many are, a few others are looked at in turn, so that
// connections that have fallen silent do not keep theirs: they get a second chance, then lose it.
void GiveBackSome(Family& fam, const ConnEnd& e) {
  if (LoadRelaxed(e.ref->rings) <= kRingsFree) return;
  uint32_t hw = LoadRelaxed(LgrHdr(e.lgr).conns_hw);
  if (hw == 0 || hw > PSTN_CONNS) return;
  for (uint32_t i = 0; i < kSweepStep; i++) {
    uint32_t hand = FetchAdd(e.ref->sweep_hand, 1u) % hw;
    if (hand != e.ep->conn_idx) SweepConn(fam, *e.ref, e.lgr, hand, Sweep::kUnused);
  }
}

void GiveBackIdleRings(Family& fam) {
  EachLgr(fam, [&fam](uint8_t* lgr, pstn_lgr_ref& ref) { SweepLgr(fam, ref, lgr); });
}

}  // namespace postern
