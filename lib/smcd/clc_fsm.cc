// SPDX-License-Identifier: Apache-2.0
// clc_fsm.cc - the table of the CLC handshake, and what keeps it honest; the handlers are in
// clc_steps.cc.
#include "smcd/clc_fsm.h"

#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "smcd/clc_steps.h"

namespace postern {
namespace {

using namespace clc_steps;  // NOLINT(google-build-using-namespace): the cells of the table

constexpr size_t kStates = static_cast<size_t>(ClcState::kEnd);
constexpr size_t kEvents = static_cast<size_t>(ClcEventKind::kEnd);

// GCC 12 can't compare functions at compile time once UBSan is on, so a cell says what it is.
enum class Does : uint8_t { kImpossible, kNothing, kSomething };
struct Cell {
  Handler run;
  const char* name;
  Does does;
};
#define DO(handler) \
  Cell { handler, #handler, Does::kSomething }

struct Row {
  ClcState state;
  Cell cells[kEvents];
};

// Not in this state: the caller's mistake.
constexpr Cell kNo = {Impossible, "Impossible", Does::kImpossible};
// Comes too late, or is another's affair.
constexpr Cell kIg = {Ignore, "Ignore", Does::kNothing};
// A message that is not due: the peer's mistake.
constexpr Cell kUn = DO(Unexpected);

// clang-format off
constexpr Row kTable[] = {
//                             Start        Proposal          Accept          Confirm          Decline              Timer            PeerClosed          Reset               DeviceOk              DeviceFailed       Acknowledged
{ClcState::kClientStart,    {DO(Propose), kNo,              kNo,            kNo,             kNo,                 kNo,             kNo,                kNo,                kNo,                  kNo,               kNo}},
{ClcState::kAwaitAccept,    {kNo,         kUn,              DO(TakeAccept), kUn,             DO(TakeDecline),     DO(TimedOut),    DO(Closed),         DO(WasReset),       kNo,                  kNo,               kNo}},
{ClcState::kClientRegister, {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(DeclineSlow), DO(Closed),         DO(WasReset),       DO(ClientRegistered), DO(DeclineFailed), kNo}},
{ClcState::kClientAttach,   {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(DeclineSlow), DO(Closed),         DO(WasReset),       DO(ClientAttached),   DO(DeclineFailed), kNo}},
{ClcState::kProvisional,    {kNo,         kUn,              kUn,            kUn,             DO(TakeLateDecline), DO(Overdue),     DO(WithdrawClosed), DO(WithdrawClosed), kNo,                  kNo,               DO(Finish)}},
{ClcState::kWithdrawLate,   {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(TimedOut),    DO(NoteClosed),     DO(NoteClosed),     DO(Withdrawn),        DO(Finish),        kIg}},
{ClcState::kWithdrawClosed, {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(TimedOut),    kIg,                kIg,                DO(GiveUp),           DO(Finish),        kIg}},
{ClcState::kAwaitDecline,   {kNo,         kUn,              kUn,            kUn,             DO(TakeDecline),     DO(TimedOut),    DO(GiveUp),         DO(GiveUp),         kNo,                  kNo,               kIg}},
{ClcState::kServerStart,    {DO(Listen),  kNo,              kNo,            kNo,             kNo,                 kNo,             kNo,                kNo,                kNo,                  kNo,               kNo}},
{ClcState::kAwaitProposal,  {kNo,         DO(TakeProposal), kUn,            kUn,             DO(TakeDecline),     DO(TimedOut),    DO(Closed),         DO(WasReset),       kNo,                  kNo,               kNo}},
{ClcState::kServerRegister, {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(DeclineSlow), DO(Closed),         DO(WasReset),       DO(ServerRegistered), DO(DeclineFailed), kNo}},
{ClcState::kAwaitConfirm,   {kNo,         kUn,              kUn,            DO(TakeConfirm), DO(TakeDecline),     DO(TimedOut),    DO(Closed),         DO(WasReset),       kNo,                  kNo,               kNo}},
{ClcState::kServerAttach,   {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(AttachSlow),  kIg,                DO(WasReset),       DO(ServerAttached),   DO(AttachFailed),  kNo}},
{ClcState::kAcknowledge,    {kNo,         kNo,              kNo,            kNo,             kNo,                 DO(TimedOut),    kIg,                DO(WasReset),       DO(Finish),           DO(Refused),       kNo}},
{ClcState::kSmcD,           {kIg,         kIg,              kIg,            kIg,             kIg,                 kIg,             kIg,                kIg,                kIg,                  kIg,               kIg}},
{ClcState::kTcp,            {kIg,         kIg,              kIg,            kIg,             kIg,                 kIg,             kIg,                kIg,                DO(ReleaseLate),      DO(ReleaseLate),   kIg}},
{ClcState::kAborted,        {kIg,         kIg,              kIg,            kIg,             kIg,                 kIg,             kIg,                kIg,                DO(ReleaseLate),      DO(ReleaseLate),   kIg}},
};
// clang-format on
#undef DO

constexpr uint32_t Bit(ClcState state) { return 1u << static_cast<uint32_t>(state); }

// Any state may be left for Aborted; SetState knows that.
constexpr uint32_t EdgesOf(ClcState state) {
  switch (state) {
    case ClcState::kClientStart:
      return Bit(ClcState::kAwaitAccept) | Bit(ClcState::kTcp);
    case ClcState::kAwaitAccept:
      return Bit(ClcState::kClientRegister) | Bit(ClcState::kTcp);
    case ClcState::kClientRegister:
      return Bit(ClcState::kClientAttach) | Bit(ClcState::kTcp);
    case ClcState::kClientAttach:
      return Bit(ClcState::kProvisional) | Bit(ClcState::kTcp);
    case ClcState::kProvisional:
      return Bit(ClcState::kSmcD) | Bit(ClcState::kTcp) | Bit(ClcState::kWithdrawLate) |
             Bit(ClcState::kWithdrawClosed);
    case ClcState::kWithdrawLate:
      return Bit(ClcState::kSmcD) | Bit(ClcState::kAwaitDecline) | Bit(ClcState::kWithdrawClosed);
    case ClcState::kWithdrawClosed:
      return Bit(ClcState::kSmcD) | Bit(ClcState::kTcp);
    case ClcState::kAwaitDecline:
      return Bit(ClcState::kTcp);
    case ClcState::kServerStart:
      return Bit(ClcState::kAwaitProposal);
    case ClcState::kAwaitProposal:
      return Bit(ClcState::kServerRegister) | Bit(ClcState::kTcp);
    case ClcState::kServerRegister:
      return Bit(ClcState::kAwaitConfirm) | Bit(ClcState::kTcp);
    case ClcState::kAwaitConfirm:
      return Bit(ClcState::kServerAttach) | Bit(ClcState::kTcp);
    case ClcState::kServerAttach:
      return Bit(ClcState::kAcknowledge) | Bit(ClcState::kSmcD) | Bit(ClcState::kTcp);
    case ClcState::kAcknowledge:
      return Bit(ClcState::kSmcD) | Bit(ClcState::kTcp);
    case ClcState::kSmcD:
    case ClcState::kTcp:
    case ClcState::kAborted:
    case ClcState::kEnd:
      break;
  }
  return 0;
}

constexpr uint64_t kTimesNs[] = {
#define PSTN_CLC_STATE(name, time_ns) time_ns,
    PSTN_CLC_STATES(PSTN_CLC_STATE)
#undef PSTN_CLC_STATE
};

// ---------------------------------------------------------------- checked when compiled

constexpr const Cell& At(ClcState state, ClcEventKind event) {
  return kTable[static_cast<size_t>(state)].cells[static_cast<size_t>(event)];
}
constexpr bool IsEnd(ClcState state) {
  return state == ClcState::kSmcD || state == ClcState::kTcp || state == ClcState::kAborted;
}
constexpr bool IsPossible(ClcState state, ClcEventKind event) {
  return At(state, event).does != Does::kImpossible;
}
constexpr bool Reads(ClcState state) {
  return IsPossible(state, ClcEventKind::kDecline) && !IsEnd(state);
}
constexpr bool TableIsSound() {
  static_assert(sizeof(kTable) / sizeof(kTable[0]) == kStates);
  for (size_t i = 0; i < kStates; i++) {
    const auto state = static_cast<ClcState>(i);
    if (kTable[i].state != state) return false;
    for (const Cell& cell : kTable[i].cells) {
      if (cell.name[0] == 0) return false;  // a cell that was forgotten does not even compile
    }
    // A state that waits has a deadline and does something when it has passed.
    const bool waits = !IsEnd(state) && !IsPossible(state, ClcEventKind::kStart);
    if (waits != (kTimesNs[i] != 0)) return false;
    if (waits && At(state, ClcEventKind::kTimer).does != Does::kSomething) return false;
    // Where one message is possible Decline is acceptable, and the others are the peer's mistake.
    for (const auto message :
         {ClcEventKind::kProposal, ClcEventKind::kAccept, ClcEventKind::kConfirm}) {
      if (!IsEnd(state) && IsPossible(state, message) != Reads(state)) return false;
    }
    if (IsEnd(state) != (EdgesOf(state) == 0)) return false;
  }
  return true;
}
static_assert(TableIsSound());

ClcEventKind KindOf(const ClcEvent& event, ClcMachine& machine, ClcAbort* violation) {
  if (event.kind != ClcEventKind::kMessage) return event.kind;
  ClcHead head;
  *violation = ClcAbort::kLength;
  if (event.message.size() < kClcPeekBytes) return ClcEventKind::kEnd;
  *violation = ClcPeek(event.message.first<kClcPeekBytes>(), head).abort;
  if (*violation != ClcAbort::kNone) return ClcEventKind::kEnd;
  machine.peer_version = head.version;
  switch (head.type) {
    case ClcType::kProposal:
      return ClcEventKind::kProposal;
    case ClcType::kAccept:
      return ClcEventKind::kAccept;
    case ClcType::kConfirm:
      return ClcEventKind::kConfirm;
    case ClcType::kDecline:
      break;
  }
  return ClcEventKind::kDecline;
}

void Run(Step& step) {
  ClcMachine& m = step.machine;
  if (m.acting != 0) return Abort(step, ClcAbort::kInterrupted);
  m.acting = 1;  // before the first change: a death within the step is found out as well
  if (m.state >= kStates || step.event.kind > ClcEventKind::kMessage ||
      step.event.kind == ClcEventKind::kEnd)
    return Abort(step, ClcAbort::kInternal);
  if (step.event.kind == ClcEventKind::kTimer && step.now_ns < m.deadline_ns) return;
  const auto state = static_cast<ClcState>(m.state);
  ClcAbort violation = ClcAbort::kNone;
  const ClcEventKind kind = KindOf(step.event, m, &violation);
  if (violation != ClcAbort::kNone && Reads(state)) return Abort(step, violation);
  // Which message it is that comes at the wrong moment makes no difference.
  At(state, kind == ClcEventKind::kEnd ? ClcEventKind::kProposal : kind).run(step);
}

}  // namespace

namespace clc_steps {

void SetState(Step& step, ClcState to) {
  ClcMachine& m = step.machine;
  const bool known = m.state < kStates;
  const uint32_t edges = known ? EdgesOf(static_cast<ClcState>(m.state)) : 0;
  if (to != ClcState::kAborted && (edges & Bit(to)) == 0) {
    to = ClcState::kAborted;
    m.abort = static_cast<uint8_t>(ClcAbort::kInternal);
  }
  m.state = static_cast<uint8_t>(to);
  const uint64_t time_ns = kTimesNs[static_cast<size_t>(to)];
  const bool never = time_ns == 0 || step.now_ns > UINT64_MAX - time_ns;
  m.deadline_ns = never ? UINT64_MAX : step.now_ns + time_ns;
}

}  // namespace clc_steps

void ClcInit(ClcMachine& machine, ClcRole role) {
  memset(&machine, 0, sizeof machine);
  machine.deadline_ns = UINT64_MAX;
  machine.state = static_cast<uint8_t>(role == ClcRole::kClient ? ClcState::kClientStart
                                                                : ClcState::kServerStart);
}

void ClcStep(ClcMachine& machine, const ClcLocal& local, const ClcEvent& event, uint64_t now_ns,
             ClcActions& actions) {
  actions.count = 0;
  actions.release = 0;
  actions.len_bytes = 0;
  Step step = {machine, local, event, now_ns, actions};
  Run(step);
  if (actions.count == 0) {
    Act(step, ClcDo::kWait);
    machine.acting = 0;
  }
}

void ClcActed(ClcMachine& machine) { machine.acting = 0; }

bool ClcWantsMessage(const ClcMachine& machine) {
  return machine.state < kStates && Reads(static_cast<ClcState>(machine.state));
}
bool ClcMayWrite(const ClcMachine& machine) {
  const auto state = static_cast<ClcState>(machine.state);
  return state == ClcState::kProvisional || state == ClcState::kSmcD;
}
bool ClcIsOver(const ClcMachine& machine) {
  return machine.state >= kStates || IsEnd(static_cast<ClcState>(machine.state));
}

// ---------------------------------------------------------------- the table, to be shown

const char* ClcStateName(ClcState state) {
  constexpr const char* kNames[] = {
#define PSTN_CLC_STATE(name, time_ns) #name,
      PSTN_CLC_STATES(PSTN_CLC_STATE)
#undef PSTN_CLC_STATE
  };
  return state < ClcState::kEnd ? kNames[static_cast<size_t>(state)] : "unknown";
}
const char* ClcEventName(ClcEventKind event) {
  constexpr const char* kNames[] = {
#define PSTN_CLC_EVENT(name) #name,
      PSTN_CLC_EVENTS(PSTN_CLC_EVENT)
#undef PSTN_CLC_EVENT
  };
  return event < ClcEventKind::kEnd ? kNames[static_cast<size_t>(event)] : "unknown";
}
const char* ClcCellName(ClcState state, ClcEventKind event) {
  return state < ClcState::kEnd && event < ClcEventKind::kEnd ? At(state, event).name : "unknown";
}
uint32_t ClcEdges(ClcState state) {
  if (state >= ClcState::kEnd) return 0;
  const uint32_t abort = IsEnd(state) ? 0 : Bit(ClcState::kAborted);
  return EdgesOf(state) | abort;
}

}  // namespace postern
