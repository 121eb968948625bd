// SPDX-License-Identifier: Apache-2.0
// clc_fsm_test.cc - the CLC machine: each time-out, the acknowledgement, FIN and RST, events that
// are not due, processes that die. clc_model_test.cc tries the orders in which things can happen.
#include <initializer_list>

#include "clc_one.h"

namespace postern {
namespace {

using namespace clc_vectors;  // NOLINT(google-build-using-namespace): a list of test data

// ---------------------------------------------------------------- time-outs

struct Late {
  ClcState state;
  uint64_t after_ns;
  ClcState then;        // with kClcAckAttach
  ClcState then_plain;  // without
};
const Late kLate[] = {
    {ClcState::kAwaitAccept, kClcMessageNs, ClcState::kAborted, ClcState::kAborted},
    {ClcState::kClientRegister, kClcDeviceNs, ClcState::kTcp, ClcState::kTcp},
    {ClcState::kClientAttach, kClcDeviceNs, ClcState::kTcp, ClcState::kTcp},
    {ClcState::kProvisional, kClcMessageNs, ClcState::kWithdrawLate, ClcState::kSmcD},
    {ClcState::kWithdrawLate, kClcDeviceNs, ClcState::kAborted, ClcState::kEnd},
    {ClcState::kWithdrawClosed, kClcDeviceNs, ClcState::kAborted, ClcState::kAborted},
    {ClcState::kAwaitDecline, kClcLateDeclineNs, ClcState::kAborted, ClcState::kEnd},
    {ClcState::kAwaitProposal, kClcMessageNs, ClcState::kAborted, ClcState::kAborted},
    {ClcState::kServerRegister, kClcDeviceNs, ClcState::kTcp, ClcState::kTcp},
    {ClcState::kAwaitConfirm, kClcMessageNs, ClcState::kAborted, ClcState::kAborted},
    {ClcState::kServerAttach, kClcDeviceNs, ClcState::kTcp, ClcState::kAborted},
    {ClcState::kAcknowledge, kClcDeviceNs, ClcState::kAborted, ClcState::kEnd},
};

TEST_CASE("clc fsm: each time-out") {
  for (const Late& late : kLate) {
    for (const uint8_t features : {kClcAckAttach, uint8_t{0}}) {
      const ClcState then = features != 0 ? late.then : late.then_plain;
      if (then == ClcState::kEnd) continue;  // never in that state
      INFO(ClcStateName(late.state) << " " << int{features});
      One one = Waiting(late.state, features);
      CHECK(ClcNextDeadline(one.m) == one.now_ns + late.after_ns);
      one.now_ns = ClcNextDeadline(one.m) - 1;
      one.Do(ClcEvent::Timer());
      CHECK(one.state() == late.state);
      CHECK(one.out.last() == ClcDo::kWait);
      one.Late();
      CHECK(one.state() == then);
      if (then == ClcState::kAborted && late.state != ClcState::kServerAttach)
        CHECK(one.abort() == ClcAbort::kTimeout);
      if (then == ClcState::kTcp) CHECK(one.declined() == kClcDiagInternal);
      if (ClcIsOver(one.m)) CHECK(ClcNextDeadline(one.m) == UINT64_MAX);
    }
  }
}

TEST_CASE("clc fsm: what the device brings after the end is given back") {
  for (const ClcState state : {ClcState::kClientRegister, ClcState::kClientAttach,
                               ClcState::kServerRegister, ClcState::kServerAttach}) {
    INFO(ClcStateName(state));
    One one = Waiting(state, kClcAckAttach).Late();
    const uint8_t before = one.out.release;
    one.Dmb(77, 1);
    REQUIRE(one.did(ClcDo::kRelease));
    CHECK((before | one.out.release) != before);
    CHECK(one.Dmb(77, 1).out.last() == ClcDo::kWait);
    CHECK(one.m.held == 0);
  }
}

// ---------------------------------------------------------------- the acknowledgement

TEST_CASE("clc fsm: hazard 1, the server can't attach after Confirm") {
  SECTION("the client agreed on the acknowledgement: both are back on TCP") {
    One server = Waiting(ClcState::kServerAttach, kClcAckAttach).Failed();
    CHECK(server.state() == ClcState::kTcp);
    One client = Waiting(ClcState::kProvisional, kClcAckAttach);
    CHECK(ClcMayWrite(client.m));
    client.Get(server.sent());
    CHECK(client.state() == ClcState::kTcp);
    CHECK(client.m.diagnosis == kClcDiagNoMemory);
    CHECK(client.out.release == (kClcHeldDmb | kClcHeldAttach));
  }
  SECTION("it did not: nothing but a reset can tell it") {
    One server = Waiting(ClcState::kServerAttach, 0).Failed();
    CHECK(server.abort() == ClcAbort::kCommitted);
    CHECK(server.sent().empty());
  }
  SECTION("a plain server closes, resets or declines") {
    One client = Waiting(ClcState::kProvisional, 0);
    CHECK(One(client).Do(ClcEvent::PeerClosed()).Ok().abort() == ClcAbort::kPeerClosed);
    CHECK(One(client).Do(ClcEvent::Reset()).Ok().state() == ClcState::kAborted);
    CHECK(One(client).Get(kDeclineAttach).abort() == ClcAbort::kCommitted);
    // It has written to our DMB before it closed: it had attached.
    CHECK(One(client).Do(ClcEvent::PeerClosed()).Failed().state() == ClcState::kSmcD);
  }
}

TEST_CASE("clc fsm: a client that has waited long enough withdraws") {
  One client = Waiting(ClcState::kProvisional, kClcAckAttach).Late();
  CHECK(client.out.last() == ClcDo::kWithdraw);
  CHECK_FALSE(ClcWantsMessage(client.m));
  SECTION("too late: the server has attached") {
    CHECK(client.Failed().state() == ClcState::kSmcD);
  }
  SECTION("in time: the server will say so") {
    CHECK(client.Ok().state() == ClcState::kAwaitDecline);
    CHECK_FALSE(ClcMayWrite(client.m));
    One server = Waiting(ClcState::kAcknowledge, kClcAckAttach).Failed();
    CHECK(server.declined() == kClcDiagConfirmLinkTimeout);
    CHECK(server.state() == ClcState::kTcp);
    CHECK(client.Get(server.sent()).state() == ClcState::kTcp);
  }
  SECTION("the server dies meanwhile") {
    client.Do(ClcEvent::PeerClosed()).Ok();
    CHECK(client.state() == ClcState::kTcp);
    CHECK(client.m.diagnosis == kClcDiagConfirmLinkTimeout);
  }
}

TEST_CASE("clc fsm: features that the client does not confirm are not agreed") {
  One server(ClcRole::kServer, LoopbackLocal());
  ClcProposal p;
  REQUIRE(ClcParseProposal(BytesOfHex(kProposal), p).ok());
  ClcSetFeatures(p, kClcAckAttach);
  std::vector<uint8_t> bytes(kClcMessageBytesMax);
  bytes.resize(ClcEncodeProposal(p, bytes));
  server.Start().Get(bytes).Dmb(1, 1);
  ClcAccept accept;
  REQUIRE(ClcParseAccept(server.sent(), accept).ok());
  CHECK(ClcFeatures(accept.first) == kClcAckAttach);
  server.Get(kConfirmFirst);
  CHECK(server.m.features == 0);
  CHECK(server.Ok().state() == ClcState::kSmcD);
}

TEST_CASE("clc fsm: unknown features of the peer are not ours") {
  One server(ClcRole::kServer, LoopbackLocal());
  ClcProposal p = ClcMakeProposal(LoopbackLocal());
  ClcSetFeatures(p, 0xff);
  std::vector<uint8_t> bytes(kClcMessageBytesMax);
  bytes.resize(ClcEncodeProposal(p, bytes));
  server.Start().Get(bytes).Dmb(1, 1);
  CHECK(server.m.features == kClcAckAttach);
}

// ---------------------------------------------------------------- FIN, RST, order, processes

TEST_CASE("clc fsm: a peer that leaves before the end") {
  for (const ClcState state :
       {ClcState::kAwaitAccept, ClcState::kClientRegister, ClcState::kClientAttach,
        ClcState::kAwaitProposal, ClcState::kServerRegister, ClcState::kAwaitConfirm}) {
    INFO(ClcStateName(state));
    One one = Waiting(state, kClcAckAttach);
    CHECK(One(one).Do(ClcEvent::PeerClosed()).abort() == ClcAbort::kPeerClosed);
    one.Do(ClcEvent::Reset());
    CHECK(one.abort() == ClcAbort::kReset);
    CHECK(one.m.held == 0);
    CHECK(one.sent().empty());
  }
  // The client has written and left: what it wrote is in our DMB.
  One server = Waiting(ClcState::kServerAttach, kClcAckAttach).Do(ClcEvent::PeerClosed());
  CHECK(server.Ok().Ok().state() == ClcState::kSmcD);
}

TEST_CASE("clc fsm: a message out of order, or no message, aborts") {
  const std::vector<uint8_t> messages[] = {BytesOfHex(kProposal), BytesOfHex(kAcceptFirst),
                                           BytesOfHex(kConfirmFirst)};
  const ClcState states[] = {ClcState::kAwaitProposal, ClcState::kAwaitAccept,
                             ClcState::kAwaitConfirm, ClcState::kProvisional,
                             ClcState::kAwaitDecline};
  for (size_t s = 0; s < 5; s++) {
    for (size_t i = 0; i < 3; i++) {
      if (i == s) continue;
      One one = Waiting(states[s], kClcAckAttach).Get(messages[i]);
      INFO(ClcStateName(states[s]) << " " << i);
      CHECK(one.abort() == ClcAbort::kUnexpected);
    }
    One one = Waiting(states[s], kClcAckAttach);
    CHECK(one.Get({'G', 'E', 'T', ' ', '/', '\r', '\n', '\r', '\n'}).abort() ==
          ClcAbort::kEyecatcher);
  }
}

TEST_CASE("clc fsm: an event that can't come aborts, and the end is the end") {
  const std::vector<uint8_t> decline = BytesOfHex(kDeclineNoUeid);
  const ClcEvent events[] = {
      ClcEvent::Start(),    ClcEvent::Message(decline), ClcEvent::PeerClosed(),   ClcEvent::Reset(),
      ClcEvent::DeviceOk(), ClcEvent::DeviceFailed(),   ClcEvent::Acknowledged(),
  };
  CHECK(Waiting(ClcState::kAwaitAccept).Ok().abort() == ClcAbort::kInternal);
  CHECK(Waiting(ClcState::kClientAttach).Get(decline).abort() == ClcAbort::kInternal);
  CHECK(Waiting(ClcState::kAwaitProposal).Start().abort() == ClcAbort::kInternal);
  for (const ClcState state : {ClcState::kSmcD, ClcState::kTcp, ClcState::kAborted}) {
    One one = Waiting(ClcState::kProvisional, kClcAckAttach);
    if (state == ClcState::kSmcD) one.Do(ClcEvent::Acknowledged());
    if (state == ClcState::kTcp) one.Get(decline);
    if (state == ClcState::kAborted) one.Ok();
    REQUIRE(one.state() == state);
    for (const ClcEvent& event : events) {
      one.Do(event);
      CHECK(one.state() == state);
      CHECK(one.out.last() == ClcDo::kWait);
    }
  }
}

TEST_CASE("clc fsm: another process, at another address, takes the next step") {
  One one = Waiting(ClcState::kAwaitAccept, kClcAckAttach);
  One two(ClcRole::kServer, LoopbackLocal());
  memcpy(&two.m, &one.m, sizeof one.m);
  memset(&one.m, 0xff, sizeof one.m);
  CHECK(two.Get(kAcceptFirst).out.last() == ClcDo::kRegister);
}

TEST_CASE("clc fsm: a process that dies while it does what it was told to") {
  const ClcLocal local = LoopbackLocal();
  ClcMachine m;
  ClcActions out;
  ClcInit(m, ClcRole::kClient);
  ClcStep(m, local, ClcEvent::Start(), kNow, out);
  CHECK(out.list[0] == ClcDo::kSend);
  // No ClcActed(): whether the Proposal went out is not known.
  ClcStep(m, local, ClcEvent::Timer(), kNow, out);
  CHECK(out.last() == ClcDo::kAbort);
  CHECK(m.abort == static_cast<uint8_t>(ClcAbort::kInterrupted));

  // The same when it was the device that answered: the answer is given back.
  One server = Waiting(ClcState::kServerRegister);
  server.m.acting = 1;
  server.Dmb(77, 1);
  CHECK(server.abort() == ClcAbort::kInterrupted);
  CHECK(server.out.release == kClcHeldDmb);
  CHECK(server.m.own_token == 77);
}

TEST_CASE("clc fsm: a machine of garbage aborts") {
  ClcMachine m;
  ClcActions out;
  memset(&m, 0x5a, sizeof m);
  m.acting = 0;
  m.held = 0;
  const ClcLocal local = LoopbackLocal();
  ClcStep(m, local, ClcEvent::PeerClosed(), kNow, out);
  CHECK(out.last() == ClcDo::kAbort);
  CHECK(ClcStateOf(m) == ClcState::kAborted);
}

}  // namespace
}  // namespace postern
