// SPDX-License-Identifier: Apache-2.0
// clc_fsm_fuzz.cc - two CLC machines in a random order of events, and against a peer that changes
// bytes and makes events up.
//
// What must hold is checked after each step by clc_pair.h: honest pairs end on the same side of
// the fence and leave no message in the stream; each machine sets deadlines, never declines after a
// message of its own, and gives back what it got. clc_model_test.cc tries all orders of the honest
// events; here are also more than two roles can do, and machines that are left alone: time-outs
// bring each to an end.
//
// Input: one byte of configuration, then steps of three bytes.
#include "../unit/smcd/clc_pair.h"
#include "replay.h"

namespace postern {
namespace {

constexpr size_t kStepsMax = 60;
constexpr int kTimersMax = 4;   // Provisional, WithdrawLate: the longest way of time-outs alone
constexpr int kMovesMax = 100;  // until an honest pair has come to an end

constexpr uint8_t kConfClientAck = 1;
constexpr uint8_t kConfServerAck = 2;
constexpr uint8_t kConfDeath = 4;
constexpr uint8_t kConfHostile = 8;
constexpr uint8_t kConfRefuses = 16;
constexpr uint8_t kConfOtherUeid = 32;
constexpr uint8_t kConfOddLinkGroup = 64;

void Look(const ClcPair& pair) {
  if (!pair.broken().empty()) FuzzDie(pair.broken().c_str());
}

ClcPair Configured(uint8_t conf) {
  ClcLocal client = LoopbackLocal(conf & kConfClientAck);
  const ClcLocal server = LoopbackLocal((conf & kConfServerAck) != 0 ? kClcAckAttach : 0);
  if ((conf & kConfOtherUeid) != 0) (void)ClcUeidFromText("ANOTHER", client.ueids[0]);
  ClcPair pair(client, server, 0, (conf & kConfRefuses) != 0 ? kClcDiagConfig : 0u);
  pair.is_honest = (conf & kConfHostile) == 0;
  // Link groups of which the two remember different things.
  if (!pair.is_honest && (conf & kConfOddLinkGroup) != 0) pair.end(0).known_lgr_features ^= 0xff;
  return pair;
}

std::vector<uint8_t> Captured(uint8_t which) {
  using namespace clc_vectors;  // NOLINT(google-build-using-namespace): a list of test data
  const char* const captured[] = {kProposal,        kAcceptFirst,     kConfirmFirst,  kAcceptKnown,
                                  kConfirmKnown,    kDeclineNoDevice, kDeclineNoUeid, kSmcrProposal,
                                  kSmcrAcceptFirst, kSmcrConfirmFirst};
  return BytesOfHex(captured[which % (sizeof captured / sizeof captured[0])]);
}

// What the peer of `side`, or a bug of the caller, can do to it.
void Attack(ClcPair& pair, const uint8_t* in) {
  const uint8_t side = in[1] & 1u;
  std::vector<uint8_t>& incoming = pair.end(side).incoming;
  if (pair.end(side).gone != 0) return;
  switch (in[1] >> 1 & 7u) {
    case 0:
    case 1:
      if (!incoming.empty())
        incoming[in[2] % incoming.size()] ^= static_cast<uint8_t>(1u << (in[1] >> 5));
      break;
    case 2:
      if (!incoming.empty())
        incoming.erase(incoming.end() - static_cast<std::ptrdiff_t>(in[2] % incoming.size()),
                       incoming.end());
      break;
    case 3: {
      const std::vector<uint8_t> message = Captured(in[2]);
      incoming.insert(in[2] % 2 != 0 ? incoming.end() : incoming.begin(), message.begin(),
                      message.end());
      break;
    }
    case 4:
      pair.Deliver(side, ClcEvent::Message(Captured(in[2])));
      break;
    case 5:
      pair.Deliver(side, in[2] % 2 != 0 ? ClcEvent::PeerClosed() : ClcEvent::Reset());
      break;
    case 6:
      pair.Deliver(side, in[2] % 2 != 0 ? ClcEvent::Acknowledged() : ClcEvent::Start(in[2]));
      break;
    default:
      pair.end(side).machine.acting = 1;  // the last step's doer has died
  }
}

void StepOnce(ClcPair& pair, bool with_death, const uint8_t* in) {
  if (!pair.is_honest && in[0] % 4 == 0) {
    Attack(pair, in);
  } else {
    const std::vector<Move> moves = pair.Moves(with_death);
    if (!moves.empty()) pair.Do(moves[in[0] % moves.size()]);
  }
  Look(pair);
}

// Nothing comes any more, from nobody: time alone ends it.
void LeaveAlone(ClcPair pair) {
  for (uint8_t side = 0; side < 2; side++) {
    const ClcEnd& e = pair.end(side);
    if (e.gone != 0 || e.state() == ClcState::kClientStart || e.state() == ClcState::kServerStart)
      continue;
    int timers = 0;
    while (!ClcIsOver(e.machine)) {
      FUZZ_CHECK(timers++ < kTimersMax);
      pair.Do({MoveKind::kTimer, side});
      Look(pair);
    }
  }
}

// The honest go on until nothing is left to do.
void PlayOut(ClcPair& pair) {
  for (int moves = 0; !pair.is_over(); moves++) {
    FUZZ_CHECK(moves < kMovesMax);
    pair.Do(pair.Moves(false).at(0));
    Look(pair);
  }
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace postern;  // NOLINT(google-build-using-namespace): the entry point
  if (size == 0) return 0;
  ClcPair pair = Configured(data[0]);
  for (size_t i = 1; i + 3 <= size && i / 3 < kStepsMax; i += 3)
    StepOnce(pair, (data[0] & kConfDeath) != 0, data + i);
  LeaveAlone(pair);
  PlayOut(pair);
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) {
  return postern::FuzzReplay(argc, argv, 1 + 3 * postern::kStepsMax);
}
#endif
