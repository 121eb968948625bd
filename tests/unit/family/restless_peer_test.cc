// SPDX-License-Identifier: Apache-2.0
// restless_peer_test.cc - a peer changes a word of the link group between any two instructions of
// ours: what we try with that word has an end.
#include "../death/family_world.h"
#include "../kit/catch.h"
#include "base/clock.h"
#include "event/held.h"
#include "event/wait.h"
#include "peer/close.h"
#include "state/view.h"

namespace postern {
namespace {

constexpr uint32_t kPatience = 60'000;  // instructions; each operation here is a few thousand

// `change` comes before each instruction.
template <typename Operation, typename Change>
StepResult Beside(Operation operation, Change change) {
  const SharedPage<uint32_t> own;
  Saved nothing;
  nothing.Add(&*own, sizeof(uint32_t));
  uint32_t steps = 0;
  return AtEachInstruction(nothing, operation, [&]() -> const char* {
    change(++steps);
    return steps < kPatience ? nullptr : "it does not end";
  });
}

TEST_CASE("restless peer: a connection is closed while the peer changes the state of its slot") {
  constexpr uint32_t kSlotUsed = 2, kNoState = 100;
  FamilyWorld w;
  const uint32_t side = GENERATE(0u, 1u);
  const ConnEnd e = w.ring.End(side, kSlotUsed);
  StoreRelaxed(e.ref->conn_ep[kSlotUsed], EpIdx(w.s(), *e.ep) + 1);
  StoreRelaxed(e.ep->item_head, PSTN_NONE);
  StoreRelaxed(e.conn->setup.state, uint32_t{PSTN_CS_ESTABLISHED});
  const StepResult r = Beside([&] { CloseEp(w.fam(), *e.ep); },
                              [&](uint32_t n) { StoreRelaxed(e.conn->setup.state, kNoState + n); });
  CheckSteps(r, 500);
  CHECK((e.ctl().flags & PSTN_CF_CLOSED) != 0);
  CHECK(e.ref->conn_ep[kSlotUsed] == 0);
}

TEST_CASE("restless peer: a mark is raised while the peer lowers it") {
  constexpr uint32_t kEnd = 6, kMost = 10;
  const SharedPage<uint32_t> mark;
  const StepResult r = Beside([&] { RaiseMark(*mark, kEnd, kMost); },
                              [&](uint32_t n) { StoreRelaxed(*mark, n % kEnd); });
  CheckSteps(r, 100);
  *mark = 3;
  RaiseMark(*mark, kEnd, kMost);
  CHECK(*mark == kEnd);
  RaiseMark(*mark, 2, kMost);
  CHECK(*mark == kEnd);
}

// In ctl.held of each connection that there may be, and all their bits.
TEST_CASE("restless peer: it says of all connections that it holds something back") {
  constexpr uint64_t kAnHourNs = 3'600'000'000'000;
  constexpr uint32_t kLast = PSTN_CONNS - 1, kWords = PSTN_CONNS / 64;
  FamilyWorld w;
  Beds& beds = *w.fam().beds;
  uint8_t* const lgr = w.ring.lgr();
  pstn_evmap& map = LgrEvmap(lgr, 1, PSTN_EVMAP_HELD);
  for (uint32_t c = 0; c < PSTN_CONNS; c++) LgrConn(lgr, c).ctl[0].held = MonotonicNs() + kAnHourNs;
  for (uint64_t& leaf : map.leaf) leaf = ~uint64_t{0};
  map.summary = ~uint64_t{0};
  const StepResult r = Beside([&] { (void)HeldUntil(w.fam()); }, [](uint32_t) {});
  CheckSteps(r, 100);
  // What another one has sent is found all the same, some looks later.
  LgrConn(lgr, kLast).ctl[0].held = 1;
  beds.held_word[w.s().lgrs.IndexOf(w.ring.ref(1)).word()] = 0;
  uint32_t looks = 0;
  for (; looks <= kWords && (map.leaf[kLast / 64] >> (kLast % 64) & 1u) != 0; looks++)
    CHECK(HeldUntil(w.fam()) == 0);
  CHECK(looks <= kWords);
  CHECK((map.leaf[kLast / 64] >> (kLast % 64) & 1u) == 0);
}

}  // namespace
}  // namespace postern
