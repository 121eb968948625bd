// SPDX-License-Identifier: Apache-2.0
// pool_death_test.cc - a process dies between any two instructions of taking indices and giving
// them back: none is lost, none has two owners.
#include <set>

#include "../kit/catch.h"
#include "family_world.h"

namespace postern {
namespace {

// The survivor takes three of a pool, and gives them back.
template <typename Take, typename Give>
const char* GoesOn(StackMap& s, Take take, Give give) {
  std::set<uint32_t> mine;
  for (int i = 0; i < 3; i++) {
    const uint32_t idx = take(s);
    if (idx == PSTN_NONE) return "the pool is empty";
    if (!mine.insert(idx).second) return "an index has two owners";
  }
  for (const uint32_t idx : mine) give(s, idx);
  return nullptr;
}

template <typename Take, typename Give>
void DieWith(Take take, Give give) {
  FamilyWorld w;
  const uint32_t before = take(w.s());
  give(w.s(), before);  // one is in the list, the next was never used
  const StepResult r = w.Step(
      [&] {
        const uint32_t a = take(w.s()), b = take(w.s());
        give(w.s(), a);
        (void)take(w.s());
        give(w.s(), b);
      },
      [&] { return GoesOn(w.s(), take, give); });
  CheckSteps(r, 200, 10);
}

TEST_CASE("pool death: endpoints") { DieWith(TakeEp, GiveEp); }
TEST_CASE("pool death: registrations") {
  DieWith([](StackMap& s) { return TakeItem(s); }, GiveItem);
}
TEST_CASE("pool death: event sets") {
  DieWith([](StackMap& s) { return TakeEpoll(s); }, GiveEpoll);
}
TEST_CASE("pool death: waiters") {
  DieWith([](StackMap& s) { return TakeWaiter(s); }, GiveWaiter);
}
TEST_CASE("pool death: chunks of tables") {
  DieWith([](StackMap& s) { return TakeFdChunk(s); }, GiveFdChunk);
}

}  // namespace
}  // namespace postern
