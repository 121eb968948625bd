// SPDX-License-Identifier: Apache-2.0
// chunks_death_test.cc - a process dies between any two instructions of mapping what a ring needs,
// and of saying how much it maps.
#include <sys/resource.h>

#include "../kit/single_step.h"
#include "../smcd/ring_pair.h"
#include "base/space/room.h"
#include "state/address_limit.h"

namespace postern {
namespace {

// What a mapping is for is in memory that others have: a ring that is given out, a ring's first
// header, and what is said.
const char* Survives(RingWorld& world, uint64_t own) {
  pstn_lgr_ref& ref = world.ref(0);
  ref.lock.word = 0;  // taken over
  const uint32_t said = ref.chunks, told = LgrHdr(world.lgr()).chunks[0];
  if (told != 0 && told != said) return "the peer is told what the family does not know";
  const uint64_t next = TakeRing(ref, 2, ChunksOf(ref, world.lgr()));
  if (next == 0 || next == own) return "a ring has two owners, or there is none";
  const RingPlace place = RingAt(world.lgr(), 0, next);
  if (place.base == nullptr) return "its ring can't be mapped";
  GiveRing(ref, world.lgr(), next, Pages::kKeep);
  return nullptr;
}

TEST_CASE("chunks death: while it maps a ring that it has taken") {
  RingWorld world;
  pstn_lgr_ref& ref = world.ref(0);
  const uint64_t own = TakeRing(ref, 2);
  REQUIRE(RingAt(world.lgr(), 0, own).base != nullptr);
  Saved saved;
  saved.Add(&ref, sizeof ref);
  const StepResult r = AtEachInstruction(
      saved,
      [&] {
        for (int i = 0; i < 3; i++) {  // each in another chunk
          const RingPlace place = RingAt(world.lgr(), 0, TakeRing(ref, 2));
          if (place.base == nullptr) _exit(1);
          *place.base = 1;
        }
      },
      [&] { return Survives(world, own); });
  CheckSteps(r, 300, 5);
}

TEST_CASE("chunks death: while it says how many it maps") {
  RingWorld world;
  StackView view;
  view.s = &world.stack();
  SetLgrMapping(view, 0, world.lgr(), 0);
  REQUIRE(&view.s->lgrs.Own(LgrIndex(0)) == &world.ref(0));
  Saved saved;
  saved.Add(&world.ref(0), sizeof(pstn_lgr_ref));
  saved.Add(&LgrHdr(world.lgr()), sizeof(pstn_lgr_hdr));
  const StepResult r = AtEachInstruction(
      saved,
      [&] {
        rlimit limit = {0, RLIM_INFINITY};
        limit.rlim_cur = uint64_t{1} << 32;
        if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
        SayChunks(view, 0);
        if (world.ref(0).chunks == 0 || LgrHdr(world.lgr()).chunks[0] != world.ref(0).chunks)
          _exit(2);
      },
      [&] { return Survives(world, 0); });
  CheckSteps(r, 100, 2);
}

}  // namespace
}  // namespace postern
