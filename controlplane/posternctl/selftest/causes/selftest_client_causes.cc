// selftest_client_causes.cc - a client of ours does what it should not; the server's program runs
// under `postern`.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "../selftest.h"
#include "../selftest_world.h"
#include "wire/clc/clc_diagnosis.h"

namespace postern::ctl_command::selftest {
namespace client_causes {
namespace {

constexpr unsigned kSilenceMs = 6'000;  // docs/protocols/smcd.md: for the peer's next message
constexpr uint64_t kNobodysToken = 0x5e1f7e57'00000001;

class FakeClient {
 public:
  explicit FakeClient(World& world, Mark mark = Mark::kMarked)
      : world_(world),
        wire_(Connect(world.Socket(world.a(), mark), Address(world.b().ip, kEchoPort))) {
    if (mark == Mark::kMarked && !Exchanged(wire_.fd()))
      throw std::runtime_error("the server does not answer the mark");
  }
  Wire& wire() { return wire_; }
  const ClcLocal& local() const { return world_.local(); }

  ClcAccept Shake() {
    wire_.Send(Encode(ClcMakeProposal(local())));
    return ReadAccept();
  }
  ClcAccept ReadAccept() {
    Bytes message;
    ClcAccept accept;
    if (wire_.Read(message, kPatienceMs) != Got::kMessage || !ClcParseAccept(message, accept).ok())
      throw std::runtime_error("no Accept");
    return accept;
  }
  ClcAccept Confirmation(const ClcAccept& accept) const {
    ClcAccept confirm = accept;
    confirm.type = ClcType::kConfirm;
    confirm.token = kNobodysToken;
    return confirm;
  }

  // The server declines, and this connection has to carry data.
  Outcome AwaitDecline() {
    Bytes message;
    Outcome outcome;
    ClcDecline decline;
    const Got got = wire_.Read(message, kPatienceMs);
    if (got != Got::kMessage) return AfterEnd(got);
    if (!ClcParseDecline(message, decline).ok()) {
      outcome.remark = "instead of a Decline something else came";
      return outcome;
    }
    outcome = GoOn();
    if (outcome.code != CodeText(decline.diagnosis))
      outcome.remark = "the Decline says " + CodeText(decline.diagnosis);
    outcome.code = CodeText(decline.diagnosis);
    return outcome;
  }
  // Data on the same connection.
  Outcome GoOn() {
    Outcome outcome;
    outcome.data = wire_.Exchange();
    if (outcome.data) outcome.path = kTcp;
    outcome.reason = Reason();
    outcome.code = world_.LastHandshake();
    return outcome;
  }
  Outcome AwaitEnd(unsigned timeout_ms = kPatienceMs) {
    return AfterEnd(wire_.WaitEnd(timeout_ms));
  }
  // This one is over for both sides; a new one, by plain TCP, carries the data.
  Outcome AfterEnd(Got got) {
    Outcome outcome;
    if (got != Got::kReset && got != Got::kClosed) {
      outcome.remark = "the server does not end the connection";
      return outcome;
    }
    return ComeAgain();
  }
  Outcome ComeAgain() {
    Outcome outcome;
    for (const uint64_t until = NowMs() + kPatienceMs; outcome.code.empty() && NowMs() < until;)
      outcome.code = world_.LastHandshake();
    wire_ =
        Wire(Connect(world_.Socket(world_.a(), Mark::kPlain), Address(world_.b().ip, kEchoPort)));
    outcome.data = wire_.Exchange();
    if (outcome.data) outcome.path = kTcpAgain;
    outcome.reason = Reason();
    return outcome;
  }

 private:
  std::string Reason() {
    const Json socket = world_.SocketOf(world_.b(), wire_.local(), "peer");
    return socket.is_null() ? "" : socket.at("reason").get<std::string>();
  }

  World& world_;
  Wire wire_;
};

void Add(Causes& causes, const std::string& name, const std::string& what, const Outcome& expected,
         std::function<Outcome(FakeClient&, World&)> force, Mark mark = Mark::kMarked) {
  causes.push_back({"client/" + name, what, expected,
                    [force = std::move(force), mark](World* world) {
                      FakeClient client(*world, mark);
                      return force(client, *world);
                    },
                    true});
}

Outcome Declined(const std::string& code) { return {kTcp, "declined", code, true, ""}; }
Outcome Ended(const std::string& abort) { return {kTcpAgain, "kernel-client", abort, true, ""}; }

struct Odd {
  const char *name, *what, *code;
  void (*change)(ClcProposal&);
};
constexpr Odd kProposals[] = {
    {"other-host", "the GID of another host", "03030007",
     [](ClcProposal& p) { p.entries[0].gid ^= 1; }},
    {"other-extended-gid", "half of the GID is another host's", "03030007",
     [](ClcProposal& p) { p.entries[1].gid ^= 1; }},
    {"half-a-gid", "the extended GID is left out", "03030007",
     [](ClcProposal& p) { p.entry_count = 1; }},
    {"native-device", "a device of another kind", "03030007",
     [](ClcProposal& p) { p.entries[0].chid = p.entries[1].chid = 7; }},
    {"no-emulation", "knows no emulated devices", "03030007",
     [](ClcProposal& p) { p.feature_mask = 0; }},
    {"release", "release 0", "03030009", [](ClcProposal& p) { p.release = 0; }},
    {"ueid", "another enterprise id", "03030008",
     [](ClcProposal& p) { (void)ClcUeidFromText("OTHER", p.ueids[0]); }},
    {"no-eid", "no enterprise id at all", "03030008", [](ClcProposal& p) { p.ueid_count = 0; }},
    {"seid", "relies on the system's id", "03030006",
     [](ClcProposal& p) {
       p.ueid_count = 0;
       p.has_seid = 1;
     }},
    {"no-smcd-extension", "version 2 without devices", "03030005",
     [](ClcProposal& p) { p.has_smcd = p.entry_count = 0; }},
    {"no-v2-extension", "version 2 without its extension", "03030004",
     [](ClcProposal& p) { p.has_v2 = p.has_smcd = p.entry_count = 0; }},
    {"smc-r", "wants SMC-R only", "03040000", [](ClcProposal& p) { p.path_v2 = ClcPath::kSmcR; }},
};

void AddProposals(Causes& causes) {
  for (const Odd& odd : kProposals) {
    Add(causes, odd.name, odd.what, Declined(odd.code), [&odd](FakeClient& c, World&) {
      ClcProposal proposal = ClcMakeProposal(c.local());
      odd.change(proposal);
      c.wire().Send(Encode(proposal));
      return c.AwaitDecline();
    });
  }
  Add(causes, "version-1", "a Proposal of version 1", Declined("030c0000"),
      [](FakeClient& c, World&) {
        Bytes proposal = Encode(ClcMakeProposal(c.local()));
        proposal[7] = static_cast<uint8_t>(0x10 | (proposal[7] & 0x0f));
        c.wire().Send(proposal);
        return c.AwaitDecline();
      });
  for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
    const uint32_t code = ClcDiagnosisAt(i);
    Add(causes, std::string("declines-at-once/") + ClcDiagnosisName(code),
        "a Decline in place of the Proposal", Declined(CodeText(code)),
        [code](FakeClient& c, World&) {
          c.wire().Send(Encode(ClcMakeDecline(c.local(), 1, code)));
          return c.GoOn();
        });
  }
}

void AddConfirms(Causes& causes) {
  Add(causes, "no-such-token", "Confirm with a token that does not exist", Declined("01010000"),
      [](FakeClient& c, World&) {
        c.wire().Send(Encode(c.Confirmation(c.Shake())));
        return c.AwaitDecline();
      });
  Add(causes, "own-token", "Confirm with the token of the server itself", Declined("01010000"),
      [](FakeClient& c, World&) {
        const ClcAccept accept = c.Shake();
        ClcAccept confirm = c.Confirmation(accept);
        confirm.token = accept.token;
        c.wire().Send(Encode(confirm));
        return c.AwaitDecline();
      });
  Add(causes, "confirm-other-host", "Confirm with another GID", Declined("03030007"),
      [](FakeClient& c, World&) {
        ClcAccept confirm = c.Confirmation(c.Shake());
        confirm.gid.gid ^= 1;
        c.wire().Send(Encode(confirm));
        return c.AwaitDecline();
      });
  Add(causes, "confirm-other-eid", "Confirm with another EID", Declined("03030008"),
      [](FakeClient& c, World&) {
        ClcAccept confirm = c.Confirmation(c.Shake());
        (void)ClcUeidFromText("OTHER", confirm.eid);
        c.wire().Send(Encode(confirm));
        return c.AwaitDecline();
      });
  Add(causes, "out-of-sync", "the two differ on what they have in common", Declined("04000000"),
      [](FakeClient& c, World&) {
        (void)c.Shake();
        c.wire().Send(Encode(ClcMakeDecline(c.local(), 2, kClcDiagSync)));
        return c.GoOn();
      });
  Add(causes, "no-such-token-plain-peer",
      "the same from a peer that knows no acknowledgement: nothing but a reset is left",
      Ended("committed"), [](FakeClient& c, World&) {
        ClcLocal local = c.local();
        local.features = 0;
        c.wire().Send(Encode(ClcMakeProposal(local)));
        c.wire().Send(Encode(c.Confirmation(c.ReadAccept())));
        return c.AwaitEnd();
      });
  for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
    const uint32_t code = ClcDiagnosisAt(i);
    Add(causes, std::string("declines-accept/") + ClcDiagnosisName(code),
        "a Decline in place of the Confirm", Declined(CodeText(code)),
        [code](FakeClient& c, World&) {
          (void)c.Shake();
          c.wire().Send(Encode(ClcMakeDecline(c.local(), 2, code)));
          return c.GoOn();
        });
  }
}

// Waits for the server's patience to end, and sees to it that no other client has to wait.
Outcome Silence(FakeClient& c, World& world) {
  const uint64_t start = NowMs();
  const bool served = world.OthersAreServed();
  Outcome outcome = c.AwaitEnd(kSilenceMs + kPatienceMs);
  if (!served) {
    outcome.data = false;
    outcome.remark = "meanwhile others were not served";
  } else if (NowMs() - start < kSilenceMs - 1000) {
    outcome.data = false;
    outcome.remark = "it ended too soon";
  }
  return outcome;
}

void AddSilences(Causes& causes) {
  Add(causes, "silent/before-proposal", "nothing for 6 s; others are served meanwhile",
      Ended("timeout"), Silence);
  Add(causes, "silent/half-a-proposal", "half a message, and nothing more", Ended("timeout"),
      [](FakeClient& c, World& world) {
        const Bytes proposal = Encode(ClcMakeProposal(c.local()));
        c.wire().Send(std::span(proposal).first(proposal.size() / 2));
        return Silence(c, world);
      });
  Add(causes, "silent/before-confirm", "an Accept, and nothing more", Ended("timeout"),
      [](FakeClient& c, World& world) {
        (void)c.Shake();
        return Silence(c, world);
      });
}

// Gone after: nothing, half a Proposal, Proposal, Accept, half a Confirm.
constexpr const char* kSteps[] = {"nothing", "half-a-proposal", "proposal", "accept",
                                  "half-a-confirm"};
void ComeTo(FakeClient& c, unsigned step) {
  const Bytes proposal = Encode(ClcMakeProposal(c.local()));
  if (step == 1) c.wire().Send(std::span(proposal).first(proposal.size() / 2));
  if (step == 2) c.wire().Send(proposal);
  if (step < 3) return;
  const Bytes confirm = Encode(c.Confirmation(c.Shake()));
  if (step == 4) c.wire().Send(std::span(confirm).first(confirm.size() / 2));
}

void AddDeaths(Causes& causes) {
  for (unsigned step = 0; step < std::size(kSteps); step++) {
    Add(causes, std::string("closes-after/") + kSteps[step], "FIN; then the next client comes",
        {kTcpAgain, "kernel-client", "", true, ""}, [step](FakeClient& c, World&) {
          ComeTo(c, step);
          c.wire().Close();
          return c.ComeAgain();
        });
    Add(causes, std::string("half-closes-after/") + kSteps[step],
        "FIN, but it still reads: the server has to end it",
        {kTcpAgain, "kernel-client", "", true, ""}, [step](FakeClient& c, World&) {
          ComeTo(c, step);
          c.wire().Half();
          Bytes message;
          if (step == 2) (void)c.wire().Read(message, kPatienceMs);  // the Accept
          return c.AwaitEnd();
        });
    Add(causes, std::string("resets-after/") + kSteps[step], "RST; then the next client comes",
        {kTcpAgain, "kernel-client", "", true, ""}, [step](FakeClient& c, World&) {
          ComeTo(c, step);
          c.wire().Reset();
          return c.ComeAgain();
        });
  }
}

void AddGarbage(Causes& causes) {
  Add(
      causes, "unmarked", "a client without Postern", {kTcp, "kernel-client", "", true, ""},
      [](FakeClient& c, World&) { return c.GoOn(); }, Mark::kPlain);
  Add(causes, "data-at-once", "the program's data in place of a Proposal",
      {kTcp, "declined", "", true, ""}, [](FakeClient& c, World&) { return c.GoOn(); });
  Add(causes, "garbage/header", "CLC's eyecatcher, and then no message",
      {kTcpAgain, "kernel-client", "", true, ""}, [](FakeClient& c, World&) {
        Bytes bytes = Encode(ClcMakeProposal(c.local()));
        memset(bytes.data() + 4, 0xff, bytes.size() - 4);
        c.wire().Send(bytes);
        return c.AwaitEnd();
      });
  Add(causes, "garbage/trailer", "a message with a wrong end", Ended("trailer"),
      [](FakeClient& c, World&) {
        Bytes bytes = Encode(ClcMakeProposal(c.local()));
        bytes.back() ^= 1;
        c.wire().Send(bytes);
        return c.AwaitEnd();
      });
  Add(causes, "garbage/order", "an Accept in place of the Proposal", Ended("unexpected"),
      [](FakeClient& c, World&) {
        Bytes bytes = Encode(ClcMakeProposal(c.local()));
        bytes[4] = static_cast<uint8_t>(ClcType::kAccept);
        c.wire().Send(bytes);
        return c.AwaitEnd();
      });
  Add(causes, "garbage/again", "a second Proposal in place of the Confirm", Ended("unexpected"),
      [](FakeClient& c, World&) {
        (void)c.Shake();
        c.wire().Send(Encode(ClcMakeProposal(c.local())));
        return c.AwaitEnd();
      });
}

}  // namespace
}  // namespace client_causes

void AddClients(Causes& causes) {
  client_causes::AddGarbage(causes);
  client_causes::AddProposals(causes);
  client_causes::AddConfirms(causes);
  client_causes::AddDeaths(causes);
  client_causes::AddSilences(causes);
}

}  // namespace postern::ctl_command::selftest
