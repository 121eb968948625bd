// SPDX-License-Identifier: Apache-2.0
// clc_model_test.cc - every order in which things can happen in a CLC handshake between two of us,
// tried out.
//
// Both machines, the TCP connection, both devices and the shared word are one value (clc_pair.h).
// From the beginning, each possible move is made in each reachable world, time-outs at any moment
// included; what must hold is checked in each. So what random tests say of some orders, this says
// of all: a machine that has ended on SMC-D never faces one on TCP, buffers are given back, no
// message is left in the stream, and there is an end to it.
#include <initializer_list>
#include <set>
#include <unordered_map>

#include "../kit/catch.h"
#include "clc_pair.h"

namespace postern {
namespace {

struct Explored {
  std::unordered_map<std::string, int> depth_of;  // longest way to the end; -1 while on the way
  std::set<std::pair<ClcState, ClcState>> ends;
  std::string broken;
};

// Depth first. Returns the number of moves until nothing is left to happen.
int Explore(const ClcPair& world, bool with_death, Explored& seen) {
  const std::string key = world.Key();
  const auto found = seen.depth_of.find(key);
  if (found != seen.depth_of.end()) {
    if (found->second < 0 && seen.broken.empty()) seen.broken = "a circle";
    return found->second;
  }
  seen.depth_of[key] = -1;
  const std::vector<Move> moves = world.Moves(with_death);
  if (!world.is_over() && moves.empty()) seen.broken = "nothing can happen any more";
  if (world.is_over() && world.end(0).gone + world.end(1).gone == 0)
    seen.ends.insert({world.end(0).state(), world.end(1).state()});
  int depth = 0;
  for (const Move& move : moves) {
    if (!seen.broken.empty()) break;
    ClcPair next = world;
    next.Do(move);
    if (!next.broken().empty()) seen.broken = next.broken();
    const int below = Explore(next, with_death, seen);
    if (below >= depth) depth = below + 1;
    if (!seen.broken.empty())
      seen.broken += "\n  side " + std::to_string(move.side) + " move " +
                     std::to_string(static_cast<int>(move.kind)) + " from " +
                     ClcStateName(world.end(0).state()) + "/" + ClcStateName(world.end(1).state());
  }
  seen.depth_of[key] = depth;
  return depth;
}

TEST_CASE("clc model: each order of events, with and without the acknowledgement") {
  for (const bool with_death : {false, true}) {
    for (unsigned agree = 0; agree < 4; agree++) {
      INFO("client offers " << (agree & 1u) << ", server " << (agree >> 1) << ", death "
                            << with_death);
      const ClcPair world(LoopbackLocal(agree & 1u), LoopbackLocal(agree >> 1 & 1u));
      Explored seen;
      const int depth = Explore(world, with_death, seen);
      CHECK(seen.broken == "");
      CHECK(depth < 40);
      CHECK(seen.depth_of.size() > 100);
      CHECK(seen.ends.contains({ClcState::kSmcD, ClcState::kSmcD}));
      CHECK(seen.ends.contains({ClcState::kTcp, ClcState::kTcp}));
      CHECK(seen.ends.contains({ClcState::kAborted, ClcState::kAborted}));
    }
  }
}

TEST_CASE("clc model: a side that does not want SMC-D gets TCP, in each order of events") {
  for (unsigned who = 1; who < 4; who++) {
    const ClcPair world(LoopbackLocal(), LoopbackLocal(),
                        (who & 1u) != 0 ? kClcDiagSocketOption : 0u,
                        (who & 2u) != 0 ? kClcDiagConfig : 0u);
    Explored seen;
    (void)Explore(world, false, seen);
    CHECK(seen.broken == "");
    CHECK(seen.ends.contains({ClcState::kTcp, ClcState::kTcp}));
    for (const auto& [client, server] : seen.ends) {
      CHECK(client != ClcState::kSmcD);
      CHECK(server != ClcState::kSmcD);
    }
  }
}

}  // namespace
}  // namespace postern
