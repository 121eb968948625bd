// SPDX-License-Identifier: Apache-2.0
// wire.cc - this process's part in running the engine: when it looks, and when the keeper does.

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/posts.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/turn.h"
#include "offhost/datagram.h"
#include "offhost/wire.h"
#include "offhost/wire_calls.h"
#include "state/area.h"

namespace postern {

void WireUse(Family& fam, stack::Engine* engine) {
  StoreRelease(fam.engine, engine);                        // [T3]
  StoreRelease(fam.wire_on, engine != nullptr ? 1u : 0u);  // [T3]
}

namespace {

// What this thread has been given to do, and how often it has written since the engine's last turn.
constinit thread_local long t_events __attribute__((tls_model("initial-exec"))) = 0;
constinit thread_local uint32_t t_writes __attribute__((tls_model("initial-exec"))) = 0;
constexpr uint32_t kWritesMax = 8;

}  // namespace

long WireCountEvents(Family&, long count) {
  t_events = count;
  return count;
}

bool WireWroteOne(Family& fam) {
  if (t_events > 1 && ++t_writes < kWritesMax) return false;
  const long events = t_events;
  (void)WirePoll(fam);
  t_events = events;
  return true;
}

uint32_t WirePoll(Family& fam) {
  t_events = 0;  // it spins, or asks for more
  t_writes = 0;
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr) return 0;
  const uint64_t now = MonotonicNs();
  StoreRelaxed(engine->state().attended_ns, now);
  const uint32_t done = engine->IsDue(now) ? engine->Poll(now) : 0;
  if (stack::HasErrands(engine->state().errands)) [[unlikely]]
    WireErrands(fam);
  if (LoadRelaxed(engine->state().settings_used) != 0 && t_locks.held == 0 && !HoldsEngine())
    WireFollowSettings(*engine, now);
  return done;
}

void WireAwake(Family& fam) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine != nullptr) FetchAdd(engine->state().awake, 1u);
}

// The last thread to go to sleep tells the keeper, if the keeper relies on us.
void WireSleeps(Family& fam) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr) return;
  stack::WireState& w = engine->state();
  if (LoadRelaxed(w.awake) != 0) FetchSub(w.awake, 1u);
  FullFence();  // [F1] against the keeper, which says that it naps and looks at `awake` after it
  if (LoadRelaxed(w.keeper_naps) == 0 || Exchange(w.keeper_naps, 0u) == 0) return;
  (void)RingBell(fam.bells, BellOf(Stack(fam), PSTN_EVMAP_WIRE));
}

namespace {

// What a listener can't have on the wire stays with the kernel: no address, or one of this host
// only.
bool MayListen(const pstn_ep& ep) {
  return !AddrIsLoopback(ep.local) && (LoadRelaxed(ep.flags) & PSTN_EPF_KERNEL_OPTIONS) == 0;
}

}  // namespace

void WireBeforeListen(Family& fam, const pstn_ep& ep) {
  if (fam.opt.vi[0] != 0 && ep.wire == 0 && MayListen(ep)) (void)WireStart(fam, kTakenNs);
}

namespace {

void ListenOn(Family& fam, int fd, pstn_ep& ep, uint64_t patience_ns) {
  if (fam.opt.vi[0] == 0 || ep.wire != 0 || !MayListen(ep)) return;
  if (!WireStart(fam, patience_ns)) return StoreRelaxed(ep.reason, kReasonNoVi);
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  stack::WireState& w = engine->state();
  engine->Acquire();
  const uint32_t at =
      engine->Listen(ep.local, ep.family, (LoadRelaxed(ep.flags) & PSTN_EPF_V6ONLY) != 0 ? 1u : 0u,
                     LoadRelaxed(ep.backlog), EpIdx(Stack(fam), ep), ep.gen);
  (void)engine->PollLocked(MonotonicNs());  // the first one: frames for the driver
  WireRelease(fam, *engine);
  if (at == PSTN_NONE) return;
  StoreRelease(ep.wire, static_cast<uint16_t>(at + 1));  // [E7]
  // The engine knows it: from now on it may come.
  w.listeners[at].filter_epoch = static_cast<uint32_t>(w.grant[0]);
  for (uint32_t vi = 0; vi < kAreaVis; vi++)
    if (w.grant[vi] != 0 && WireFilter(fam, fd, vi, &w.listeners[at].filter[vi]) == 0)
      FetchOr(ep.flags, PSTN_EPF_STEERED);
}

}  // namespace

void WireListen(Family& fam, int fd, pstn_ep& ep) { ListenOn(fam, fd, ep, kTakenNs); }

// The lock's holder may be waiting for us, so we do not wait for it: another of posternd's words,
// or listen(), comes.
void WireListenAgain(Family& fam, int fd, pstn_ep& ep) {
  if (LoadRelaxed(ep.reason) != kReasonNoVi) {
    if (LoadAcquire(ep.wire) != 0)  // [E7]
      (void)WireStart(fam);         // another process of the family has been here
    return;
  }
  if (!TryLock(ep.setup_lock)) return;
  if (LoadAcquire(ep.state) == PSTN_EP_LISTEN) {  // [E1]
    StoreRelaxed(ep.reason, kReasonNone);
    ListenOn(fam, fd, ep, 0);
  }
  Unlock(ep.setup_lock);
}

namespace {

// The filters of a listener go when the last connection has ended that comes by them: until then
// the kernel would answer with resets. posternd keeps the kernel's socket meanwhile, so that the
// port is no other's; it listens no more, unless it was passed on.
void GiveUp(Family& fam, stack::Engine& engine, uint32_t at, Unfilter how) {
  stack::WireState& w = engine.state();
  engine.Acquire();
  stack::Listener& l = w.listeners[at];
  const bool first = l.use == stack::kListenerUsed;
  if (first) engine.Unlisten(at);
  const bool wait = l.use == stack::kListenerEnded && engine.NeedsFilter(l);
  if (first) (void)engine.PollLocked(MonotonicNs());  // what that has put on its way
  uint32_t filter[kAreaVis];
  memcpy(filter, l.filter, sizeof filter);
  if (!wait) engine.FreeListener(at);
  WireRelease(fam, engine);
  for (uint32_t vi = 0; (first || !wait) && vi < kAreaVis; vi++) {
    if (w.grant[vi] == 0 || filter[vi] == 0) continue;
    WireUnfilter(fam, vi, filter[vi], wait ? how : Unfilter::kNow);
  }
}

}  // namespace

void WireUnlisten(Family& fam, pstn_ep& ep, Unfilter how) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr) {
    if (fam.beds == nullptr) return;  // in the reaper: the keeper sees to it
    // An image that has the listener from the one before, and has not come to the wire yet.
    if (LoadRelaxed(ep.wire) == 0 || !WireStart(fam)) return;
    engine = LoadAcquire(fam.engine);  // [T3]
    if (engine == nullptr) return;
  }
  FetchAnd(ep.flags, ~PSTN_EPF_STEERED);
  const uint32_t at = Exchange(ep.wire, uint16_t{0});
  if (at != 0 && at <= stack::kListeners) GiveUp(fam, *engine, at - 1, how);
}

void WireSweep(Family& fam) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr) return;
  stack::WireState& w = engine->state();
  RingStreams streams(fam);
  for (uint32_t i = 0; i < w.listener_hw && i < stack::kListeners; i++) {
    const uint32_t use = LoadRelaxed(w.listeners[i].use);
    if (use == stack::kListenerEnded ||
        (use == stack::kListenerUsed && !streams.Listens(w.listeners[i])))
      GiveUp(fam, *engine, i, Unfilter::kHush);
  }
  DatagramSweep(fam);
  WireSweepPorts(fam);
}

int WireBell(Family& fam) {
  pstn_waiter& w = Stack(fam).waiters.Own(WaiterIndex(PSTN_EVMAP_WIRE));
  StoreRelaxed(w.nonce, NewUuid().lo);
  const int bell = OpenBell(BellOf(Stack(fam), PSTN_EVMAP_WIRE));
  if (bell >= 0) MarkWaiter(fam, PSTN_EVMAP_WIRE, PSTN_EV_USED);
  return bell < 0 ? bell : MoveHigh(fam, bell);
}

}  // namespace postern
