// SPDX-License-Identifier: Apache-2.0
// wire_errands.cc - tells posternd what came up under the engine's lock (stack/errands.h), without
// a wait of any kind.
//
// A thread that has let go of the engine's lock sends what is there, if no other thread of the
// process has the line to posternd: that one may be waiting for an answer. Otherwise the keeper
// does, which has a line of its own and never waits.
#include <cstring>

#include "control/control.h"
#include "family/family.h"
#include "offhost/wire.h"
#include "peer/pair.h"

namespace postern {
namespace {

using stack::Errand;
using stack::ErrandKind;

constexpr uint32_t kAtOnce = 16;

// False: there is nothing to tell any more.
bool MessageOf(Family& fam, const stack::WireState& w, const Errand& errand, ctl::Msg& m) {
  switch (static_cast<ErrandKind>(errand.kind)) {
    case ErrandKind::kNeighbour:
      m.type = ctl::Type::kResolve;
      m.a = errand.a;
      memcpy(m.addr.ip, errand.ip, sizeof m.addr.ip);
      return true;
    case ErrandKind::kUnfilter:
      m.type = ctl::Type::kFilter;
      m.cookie = errand.grant;
      m.a = errand.c;
      m.d = errand.b;
      return errand.a < kAreaVis && w.grant[errand.a] == errand.grant;
    case ErrandKind::kLinks:
      m.type = ctl::Type::kIntroduce;
      m.uuid = Stack(fam).hdr.id;
      m.a = LinksKnown(fam, m.uuid);
      return m.a < PSTN_PAIR_LGRS;
    default:
      return false;
  }
}

// With the line. False: posternd takes no more now, and what is left is for later.
bool Send(Family& fam, stack::Engine& engine) PSTN_REQUIRES(fam.ctl_lock) {
  stack::Errands& all = engine.state().errands;
  Errand batch[kAtOnce];
  engine.Acquire();
  const uint32_t count = stack::TakeErrands(all, batch, kAtOnce);
  engine.Release();
  uint32_t done = 0;
  for (; done < count; done++) {
    ctl::Msg m;
    if (MessageOf(fam, engine.state(), batch[done], m) && CtlPost(fam, m) != 0) break;
  }
  if (done == count) return true;
  engine.Acquire();
  for (uint32_t i = done; i < count; i++) (void)stack::PutErrand(all, batch[i]);
  engine.Release();
  return false;
}

}  // namespace

namespace {

// It has a line of its own, and need not be rung for each of them.
void LeaveToKeeper(Family& fam, stack::Errands& all) {
  const uint32_t tail = LoadRelaxed(all.tail);
  if (Exchange(all.rung, tail) != tail)
    (void)RingBell(fam.bells, BellOf(Stack(fam), PSTN_EVMAP_WIRE));
}

}  // namespace

void WireErrands(Family& fam) {
  stack::Engine* engine = LoadAcquire(fam.engine);  // [T3]
  if (engine == nullptr || HoldsEngine()) return;
  stack::Errands& all = engine->state().errands;
  for (bool more = true; more && stack::HasErrands(all);) {
    // Not inside another lock: the engine's is outside of all those of endpoints.
    if (t_locks.held != 0) return LeaveToKeeper(fam, all);
    if (!CtlTryLine(fam)) return LeaveToKeeper(fam, all);
    more = Send(fam, *engine);
    CtlLeaveLine(fam);
    FenceAfterLocked();  // [F1] a thread that found the line taken has left an errand before that
  }
}

}  // namespace postern
