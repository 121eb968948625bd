// SPDX-License-Identifier: Apache-2.0
// clc_negotiate_test.cc - what a CLC handshake says: captured messages, each corrupted byte, what
// is declined and with which diagnosis.
#include <initializer_list>
#include <string>

#include "clc_one.h"

namespace postern {
namespace {

using namespace clc_vectors;  // NOLINT(google-build-using-namespace): a list of test data

// ---------------------------------------------------------------- against the captures

ClcLocal CapturedLocal() { return LoopbackLocal(0); }

TEST_CASE("clc fsm: the client's messages are those of the capture") {
  One client(ClcRole::kClient, CapturedLocal());
  CHECK(client.Start().sent() == BytesOfHex(kProposal));
  CHECK(client.out.last() == ClcDo::kWait);
  SECTION("first contact") {
    client.Get(kAcceptFirst);
    CHECK(client.out.last() == ClcDo::kRegister);
    client.Dmb(0xcb7071d9fb89135c, 0x00020000);
    CHECK(client.out.last() == ClcDo::kAttach);
    CHECK(client.m.peer_token == 0x29fab616061d1a64);
    CHECK(client.m.peer_size_code == 2);
    CHECK(client.m.peer_link_id == 0x00010000);
    CHECK(client.Ok().sent() == BytesOfHex(kConfirmFirst));
  }
  SECTION("link group known") {
    client.Get(kAcceptKnown).Dmb(0xaa48d958cdd870c1, 0x00010000, 1);
    CHECK(client.Ok().sent() == BytesOfHex(kConfirmKnown));
  }
  CHECK(client.state() == ClcState::kProvisional);
  CHECK(ClcMayWrite(client.m));
  CHECK(client.Do(ClcEvent::Acknowledged()).out.last() == ClcDo::kSmcD);
}

TEST_CASE("clc fsm: the server's messages are those of the capture") {
  One server(ClcRole::kServer, CapturedLocal());
  server.Start().Get(kProposal);
  CHECK(server.out.last() == ClcDo::kRegister);
  SECTION("first contact") {
    server.Dmb(0x29fab616061d1a64, 0x00010000);
    CHECK(server.sent() == BytesOfHex(kAcceptFirst));
    server.Get(kConfirmFirst);
  }
  SECTION("link group known") {
    server.Dmb(0x29fab616061d1a64, 0x00010000, 1);
    CHECK(server.sent() == BytesOfHex(kAcceptKnown));
    server.Get(kConfirmKnown);
  }
  CHECK(server.out.last() == ClcDo::kAttach);
  CHECK(server.Ok().out.last() == ClcDo::kSmcD);
  CHECK(server.m.held == (kClcHeldDmb | kClcHeldAttach));
}

TEST_CASE("clc fsm: the Declines are those of the capture") {
  ClcLocal other = CapturedLocal();
  REQUIRE(ClcUeidFromText("ANOTHER", other.ueids[0]));
  One server(ClcRole::kServer, other);
  CHECK(server.Start().Get(kProposal).sent() == BytesOfHex(kDeclineNoUeid));
  CHECK(server.state() == ClcState::kTcp);

  One client(ClcRole::kClient, CapturedLocal());
  client.Start().Get(kAcceptFirst).Dmb(1, 2).Failed(kClcDiagNoMemory);
  CHECK(client.sent() == BytesOfHex(kDeclineAttach));
  CHECK(client.state() == ClcState::kTcp);

  // The peer id is not ours to know.
  ClcLocal named = CapturedLocal();
  memcpy(named.peer_id, BytesOfHex(kDeclineNoDevice).data() + 8, 8);
  One first(ClcRole::kClient, named);
  CHECK(first.Start(kClcDiagNoDevice).sent() == BytesOfHex(kDeclineNoDevice));
}

TEST_CASE("clc fsm: the captured Declines end it in TCP") {
  for (const char* hex : {kDeclineNoDevice, kDeclineNoUeid, kDeclineAttach}) {
    ClcDecline d;
    REQUIRE(ClcParseDecline(BytesOfHex(hex), d).ok());
    for (const ClcState state :
         {ClcState::kAwaitProposal, ClcState::kAwaitAccept, ClcState::kAwaitConfirm}) {
      One one = Waiting(state);
      one.Get(hex);
      INFO(ClcStateName(state));
      CHECK(one.state() == ClcState::kTcp);
      CHECK(one.m.diagnosis == d.diagnosis);
      CHECK(one.m.is_peer_diagnosis == 1);
      CHECK(one.sent().empty());
      CHECK(one.did(ClcDo::kRelease) == (state == ClcState::kAwaitConfirm));
    }
  }
}

TEST_CASE("clc fsm: SMC-R is not for us, and the connection survives it") {
  One server = Waiting(ClcState::kAwaitProposal);
  CHECK(server.Get(kSmcrProposal).declined() == kClcDiagMode);
  CHECK(server.state() == ClcState::kTcp);
  for (const char* hex : {kSmcrAcceptFirst, kSmcrAcceptKnown}) {
    One client = Waiting(ClcState::kAwaitAccept);
    CHECK(client.Get(hex).declined() == kClcDiagMode);
    CHECK(client.state() == ClcState::kTcp);
  }
  // A peer that confirms what was not offered can't be told any more.
  One late = Waiting(ClcState::kAwaitConfirm);
  late.Get(kSmcrConfirmFirst);
  CHECK(late.state() == ClcState::kAborted);
  CHECK(late.abort() == ClcAbort::kCommitted);
  CHECK(late.m.diagnosis == kClcDiagMode);
}

// ---------------------------------------------------------------- each byte

void Judged(One one, const std::vector<uint8_t>& bytes, const Expected& expected, ClcState fine,
            const std::string& what) {
  const bool is_committed = one.state() == ClcState::kAwaitConfirm;
  const bool has_ack = (one.m.features & kClcAckAttach) != 0;
  one.Get(bytes);
  bool right = false;
  switch (expected.fate) {
    case Fate::kFree:
      right = one.state() == fine;
      break;
    case Fate::kStructure:
      right = one.state() == ClcState::kAborted && one.abort() < ClcAbort::kTimeout &&
              one.sent().empty();
      break;
    case Fate::kUnknown:
    case Fate::kMismatch:
      if (is_committed && !has_ack)
        right = one.abort() == ClcAbort::kCommitted && one.m.diagnosis == expected.diagnosis;
      else
        right = one.state() == ClcState::kTcp && one.declined() == expected.diagnosis;
      break;
  }
  if (!right)
    FAIL_CHECK(what << ": " << ClcStateName(one.state()) << " " << ClcAbortName(one.abort()) << " "
                    << ClcDiagnosisName(one.m.diagnosis) << " declined "
                    << ClcDiagnosisName(one.declined()));
}

void CorruptEachByte(const One& one, const std::vector<uint8_t>& good, std::span<const Rule> rules,
                     ClcState fine) {
  One whole = one;
  whole.Get(good);
  REQUIRE(whole.state() == fine);
  for (size_t pos = 0; pos < good.size(); pos++) {
    std::vector<uint8_t> bytes = good;
    for (unsigned value = 0; value < 256; value++) {
      bytes[pos] = static_cast<uint8_t>(value);
      if (bytes[pos] == good[pos]) continue;
      Judged(one, bytes, Judge(rules, good, pos, bytes[pos]), fine,
             "byte " + std::to_string(pos) + " = " + std::to_string(value));
    }
  }
}

TEST_CASE("clc fsm: each other value of each byte leads to where the byte's meaning asks for") {
  SECTION("Proposal") {
    const One server = One(ClcRole::kServer, CapturedLocal()).Start();
    CorruptEachByte(server, BytesOfHex(kProposal), kProposalRules, ClcState::kServerRegister);
  }
  SECTION("Accept") {
    const One client = One(ClcRole::kClient, CapturedLocal()).Start();
    CorruptEachByte(client, BytesOfHex(kAcceptFirst), kFirstRules, ClcState::kClientRegister);
    CorruptEachByte(client, BytesOfHex(kAcceptKnown), kKnownRules, ClcState::kClientRegister);
  }
  SECTION("Confirm") {
    One server = One(ClcRole::kServer, CapturedLocal()).Start().Get(kProposal);
    CorruptEachByte(One(server).Dmb(1, 1), BytesOfHex(kConfirmFirst), kFirstRules,
                    ClcState::kServerAttach);
    CorruptEachByte(One(server).Dmb(1, 1, 1), BytesOfHex(kConfirmKnown), kKnownRules,
                    ClcState::kServerAttach);
  }
  SECTION("Confirm of a client that still listens: a link group that agreed on it") {
    One server = One(ClcRole::kServer, LoopbackLocal()).Start().Get(kProposal);
    server.Dmb(1, 1, 1, kClcAckAttach);
    CorruptEachByte(server, BytesOfHex(kConfirmKnown), kKnownRules, ClcState::kServerAttach);
  }
}

TEST_CASE("clc fsm: what is cut off aborts") {
  const std::vector<uint8_t> accept = BytesOfHex(kAcceptFirst);
  for (size_t n = 0; n < accept.size(); n++) {
    One client = Waiting(ClcState::kAwaitAccept);
    client.Get(std::vector<uint8_t>(accept.begin(), accept.begin() + static_cast<ptrdiff_t>(n)));
    CHECK(client.abort() == ClcAbort::kLength);
  }
}

// ---------------------------------------------------------------- negotiation

// A server of local identity `local` on a Proposal of ours that `change` has changed.
uint32_t Declined(const std::function<void(ClcProposal&)>& change,
                  const ClcLocal& local = LoopbackLocal(0)) {
  ClcProposal p = ClcMakeProposal(LoopbackLocal(0));
  change(p);
  std::vector<uint8_t> bytes(kClcMessageBytesMax);
  bytes.resize(ClcEncodeProposal(p, bytes));
  One server(ClcRole::kServer, local);
  server.Start().Get(bytes);
  CHECK(server.state() == (server.declined() == 0 ? ClcState::kServerRegister : ClcState::kTcp));
  return server.declined();
}

TEST_CASE("clc fsm: what a server declines, and with which code") {
  const auto none = [](ClcProposal&) {};
  CHECK(Declined(none) == 0);
  CHECK(Declined([](ClcProposal& p) { p.has_v2 = p.has_smcd = p.entry_count = 0; }) ==
        kClcDiagNoV2Extension);
  CHECK(Declined([](ClcProposal& p) { p.path_v2 = ClcPath::kSmcR; }) == kClcDiagMode);
  CHECK(Declined([](ClcProposal& p) { p.path_v2 = ClcPath::kNone; }) == kClcDiagMode);
  CHECK(Declined([](ClcProposal& p) { p.has_smcd = p.entry_count = 0; }) ==
        kClcDiagNoSmcdV2Extension);
  CHECK(Declined([](ClcProposal& p) { p.release = 0; }) == kClcDiagRelease);
  CHECK(Declined([](ClcProposal& p) { p.release = 7; }) == 0);
  CHECK(Declined([](ClcProposal& p) { p.feature_mask = 2; }) == kClcDiagNoSmcdV2Device);
  CHECK(Declined([](ClcProposal& p) { p.ueid_count = 0; }) == kClcDiagNoUeid);
  CHECK(Declined([](ClcProposal& p) {
          p.ueid_count = 0;
          p.has_seid = 1;
        }) == kClcDiagNoSeid);
  CHECK(Declined([](ClcProposal& p) {
          p.ueids[p.ueid_count++] = p.ueids[0];
          p.ueids[0].text[0] = 'X';  // the second one is common
        }) == 0);
}

TEST_CASE("clc fsm: devices are compared by both halves of the GID, in adjacent entries") {
  CHECK(Declined([](ClcProposal& p) { p.entries[0].gid++; }) == kClcDiagNoSmcdV2Device);
  CHECK(Declined([](ClcProposal& p) { p.entries[1].gid++; }) == kClcDiagNoSmcdV2Device);
  CHECK(Declined([](ClcProposal& p) { p.entries[1].chid = 0xff00; }) == kClcDiagNoSmcdV2Device);
  CHECK(Declined([](ClcProposal& p) { p.entry_count = 1; }) == kClcDiagNoSmcdV2Device);
  CHECK(Declined([](ClcProposal& p) { p.entry_count = 0; }) == kClcDiagNoSmcdV2Device);
  // A native device before ours, and an emulated one that lacks its second half.
  CHECK(Declined([](ClcProposal& p) {
          p.entries[3] = p.entries[1];
          p.entries[2] = p.entries[0];
          p.entries[0] = {p.entries[0].gid, 0x1234};
          p.entries[1] = {p.entries[2].gid, 0xff00};
          p.entry_count = 4;
        }) == 0);
  // Halves that belong to two other devices.
  CHECK(Declined([](ClcProposal& p) {
          p.entries[2] = p.entries[1];
          p.entries[1] = p.entries[0];
          p.entries[0] = {9, 0xffff};
          p.entries[3] = {9, 0xffff};
          p.entry_count = 4;
        }) == kClcDiagNoSmcdV2Device);
}

TEST_CASE("clc fsm: the system's id counts if both have it") {
  ClcLocal local = LoopbackLocal(0);
  local.has_seid = 1;
  local.seid.text[0] = 'S';
  local.ueid_count = 0;
  const auto with_seid = [](ClcProposal& p) {
    p.has_seid = 1;
    p.seid.text[0] = 'S';
  };
  CHECK(Declined(with_seid, local) == 0);
  CHECK(Declined([](ClcProposal& p) { p.seid.text[0] = 'S'; }, local) == kClcDiagNoUeid);
  ClcPair pair(local, local);
  pair.Do({MoveKind::kStart, 0});
  pair.Do({MoveKind::kStart, 1});
  pair.Do({MoveKind::kRead, 1});
  pair.Do({MoveKind::kDeviceOk, 1});
  pair.Do({MoveKind::kRead, 0});
  CHECK(pair.end(0).state() == ClcState::kClientRegister);
  CHECK(pair.end(0).machine.eid[0] == 'S');
}

TEST_CASE("clc fsm: a Proposal of another version is declined in that version's form") {
  std::vector<uint8_t> v1 = BytesOfHex(kProposal);
  v1[7] = 0x10;
  One server = Waiting(ClcState::kAwaitProposal);
  CHECK(server.Get(v1).declined() == kClcDiagVersion);
  CHECK(server.sent().size() == 28);
  v1[7] = 0x36;
  server = Waiting(ClcState::kAwaitProposal);
  CHECK(server.Get(v1).declined() == kClcDiagVersion);
  CHECK(server.sent().size() == 44);
}

TEST_CASE("clc fsm: a native device speaks release 0 as well") {
  ClcLocal local = LoopbackLocal();
  local.chid = 0x0007;
  local.gid.ext = 0;
  ClcLocal old = local;
  old.release = 0;
  for (const bool client_is_old : {false, true}) {
    ClcPair pair(client_is_old ? old : local, client_is_old ? local : old);
    pair.Do({MoveKind::kStart, 0});
    pair.Do({MoveKind::kStart, 1});
    pair.Do({MoveKind::kRead, 1});
    pair.Do({MoveKind::kDeviceOk, 1});
    CHECK(pair.end(0).incoming.size() == 114);
    pair.Do({MoveKind::kRead, 0});
    pair.Do({MoveKind::kDeviceOk, 0});
    pair.Do({MoveKind::kDeviceOk, 0});
    CHECK(pair.end(1).incoming.size() == 114);
    pair.Do({MoveKind::kRead, 1});
    pair.Do({MoveKind::kDeviceOk, 1});
    // Without a place for the features nothing was agreed.
    CHECK(pair.end(0).machine.features == 0);
    CHECK(pair.end(1).state() == ClcState::kSmcD);
    CHECK(pair.broken() == "");
  }
}

TEST_CASE("clc fsm: a client that knows of no such link group is out of sync") {
  One client = Waiting(ClcState::kAwaitAccept);
  client.Get(kAcceptKnown).Dmb(1, 1, 0);
  CHECK(client.declined() == kClcDiagSync);
  CHECK(client.state() == ClcState::kTcp);
  CHECK(client.did(ClcDo::kRelease));
  CHECK(client.did(ClcDo::kForgetLinkGroup));
  CHECK((client.sent()[7] & 0x08) != 0);

  One server = One(ClcRole::kServer, CapturedLocal()).Start().Get(kProposal).Dmb(1, 1, 1);
  server.Get(client.sent());
  CHECK(server.state() == ClcState::kTcp);
  CHECK(server.did(ClcDo::kForgetLinkGroup));
  CHECK(server.m.diagnosis == kClcDiagSync);
}

// ---------------------------------------------------------------- each diagnosis

TEST_CASE("clc fsm: each diagnosis gets to the other side, from each place that has one") {
  for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
    const uint32_t code = ClcDiagnosisAt(i);
    INFO(ClcDiagnosisName(code));
    One client = One(ClcRole::kClient).Start(code);
    CHECK(client.declined() == code);
    One server = Waiting(ClcState::kAwaitProposal).Get(client.sent());
    CHECK(server.m.diagnosis == code);
    CHECK(server.m.is_peer_diagnosis == 1);

    server = One(ClcRole::kServer).Start(code).Get(kProposal);
    CHECK(server.declined() == code);
    CHECK(Waiting(ClcState::kAwaitAccept).Get(server.sent()).m.diagnosis == code);

    struct Failing {
      ClcState here, there;
    };
    for (const auto& [here, there] : {Failing{ClcState::kServerRegister, ClcState::kAwaitAccept},
                                      Failing{ClcState::kClientRegister, ClcState::kAwaitConfirm},
                                      Failing{ClcState::kClientAttach, ClcState::kAwaitConfirm},
                                      Failing{ClcState::kServerAttach, ClcState::kProvisional}}) {
      One one = Waiting(here, kClcAckAttach).Failed(code);
      CHECK(one.state() == ClcState::kTcp);
      CHECK(one.declined() == code);
      CHECK(one.m.is_peer_diagnosis == 0);
      One other = Waiting(there, kClcAckAttach).Get(one.sent());
      CHECK(other.state() == ClcState::kTcp);
      CHECK(other.m.diagnosis == code);
    }
  }
}

TEST_CASE("clc fsm: a failure without a code is an internal one") {
  CHECK(Waiting(ClcState::kServerRegister).Failed(0).declined() == kClcDiagInternal);
}

}  // namespace
}  // namespace postern
