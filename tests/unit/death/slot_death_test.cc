// SPDX-License-Identifier: Apache-2.0
// slot_death_test.cc - a process dies between any two instructions of joining, of a fork, and of
// what the child does first.
#include <initializer_list>

#include "../kit/catch.h"
#include "family_world.h"
#include "sock/socket.h"

namespace postern {
namespace {

void LeaveNothing(Family&) {}

// A parent with a socket that the survivor has, too, and one of its own, at numbers of two chunks.
struct Parent {
  FamilyWorld w;
  int shared, own;
  uint32_t idx;
  Parent() {
    shared = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
    own = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
    REQUIRE((shared >= 0 && own >= 0));
    SockDup(w.fam(), FdEntry(w.fam(), own), 2000);
    w.Hold(shared);
    idx = FdEntry(w.fam(), shared) & PSTN_FD_IDX;
  }
  const char* Survives() {
    pstn_ep& ep = w.s().eps.Own(EpIndex(idx));
    if (w.Held() != (PSTN_FD_EP | idx) || RefsOf(ep).count() != 1)
      return "the survivor's socket is gone";
    // It can fork, too.
    SpawnPrepare(w.fam(), LeaveNothing);
    SpawnDone(w.fam());
    const uint32_t slot = EmbryoSlot(w.fam());
    if (slot == PSTN_NONE) return "there is no slot for a child of the survivor";
    if (RefsOf(ep).count() != 2) return "the survivor's child does not have its socket";
    EndEmbryo(w.fam(), slot);
    w.CloseHeld();
    return ep.state == PSTN_EP_FREE ? nullptr : "the last close did not close";
  }
};

// Two reap the same dead process: posternd's reaper and, say, the process itself, which ends in
// order.
TEST_CASE("slot: who comes late to a dead process leaves its slot to the next child") {
  Parent p;
  SpawnPrepare(p.w.fam(), LeaveNothing);
  SpawnDone(p.w.fam());
  const uint32_t slot = EmbryoSlot(p.w.fam());
  pstn_slot& place = p.w.s().slots.Own(ProcIndex(slot));
  const uint32_t pid = place.pid;
  REQUIRE(ClaimDead(p.w.fam(), slot, pid));
  REQUIRE(ClaimDead(p.w.fam(), slot, pid));  // by the second
  ReapSlot(p.w.fam(), slot);
  REQUIRE(place.state == PSTN_SL_FREE);
  for (const bool lives : {false, true}) {
    SpawnPrepare(p.w.fam(), LeaveNothing);
    SpawnDone(p.w.fam());
    REQUIRE(EmbryoSlot(p.w.fam()) == slot);
    if (lives) place.state = PSTN_SL_LIVE;
    ReapListeners(p.w.fam(), slot);
    ReapSlot(p.w.fam(), slot);
    CHECK(place.state == (lives ? PSTN_SL_LIVE : PSTN_SL_EMBRYO));
    CHECK(RefsOf(p.w.s().eps.Own(EpIndex(p.idx))).count() == 3);  // ours, another's, the child's
    place.state = PSTN_SL_EMBRYO;
    EndEmbryo(p.w.fam(), slot);
  }
}

TEST_CASE("slot death: the parent of a child that never comes") {
  Parent p;
  const StepResult r = p.w.Step(
      [&] {
        SpawnPrepare(p.w.fam(), LeaveNothing);
        SpawnDone(p.w.fam());
      },
      [&] { return p.Survives(); });
  CheckSteps(r, 2000, 5);
}

TEST_CASE("slot death: the child of a fork, while it makes its slot its own") {
  Parent p;
  SpawnPrepare(p.w.fam(), LeaveNothing);
  SpawnDone(p.w.fam());
  REQUIRE(EmbryoSlot(p.w.fam()) != PSTN_NONE);
  const StepResult r = p.w.Step([&] { ForkChild(p.w.fam()); }, [&] { return p.Survives(); });
  CheckSteps(r, 500, 5);
}

TEST_CASE("slot death: a child that takes its slot itself, and closes all") {
  Parent p;
  const StepResult r = p.w.Step(
      [&] {
        ForkChild(p.w.fam());
        for (const int fd : {p.shared, p.own, 2000})
          (void)SockClose(p.w.fam(), fd, FdEntry(p.w.fam(), fd));
      },
      [&] { return p.Survives(); });
  CheckSteps(r, 2000, 5);
}

// The reaper itself ends in the middle, and the next one does the rest.
TEST_CASE("slot death: the reaper dies while it reaps") {
  Parent p;
  p.w.s().slots.Own(ProcIndex(FamilyWorld::kDying)).state = PSTN_SL_DEAD;
  const StepResult r = p.w.Step(
      [&] {
        p.w.AsReaper();
        ReapSlot(p.w.fam(), FamilyWorld::kDying);
      },
      [&] { return p.Survives(); });
  CheckSteps(r, 2000, 5);
}

}  // namespace
}  // namespace postern
