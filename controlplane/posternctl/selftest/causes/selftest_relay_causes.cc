// selftest_relay_causes.cc - client and server both run under `postern`, and the wire between them
// is ours: it loses, delays, changes and repeats; or a process dies at each step.
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <initializer_list>
#include <thread>

#include "selftest_fake_server.h"

namespace postern::ctl_command::selftest {
namespace relay_causes {
namespace {

constexpr uint64_t kNobodysToken = 0x5e1f7e57'00000003;
constexpr useconds_t kStopUsec = 1'500'000;  // longer than smcd.msec

class Relay {
 public:
  explicit Relay(World& world)
      : world_(world),
        front_(world),
        back_(Connect(world.Socket(world.a(), Mark::kMarked), Address(world.b().ip, kEchoPort))) {
    front_.Meet(world.client());
  }
  FakeServer& front() { return front_; }
  Wire& back() { return back_; }
  World& world() { return world_; }

  // The next message of the handshake, undelivered. Proposal, Accept, Confirm.
  Bytes Next(ClcType type) {
    if (type != ClcType::kAccept) return front_.Take(type);
    Bytes message;
    if (back_.Read(message, kPatienceMs) != Got::kMessage) throw std::runtime_error("no Accept");
    return message;
  }
  void Deliver(ClcType type, const Bytes& message) {
    (type == ClcType::kAccept ? front_.wire() : back_).Send(message);
  }
  void Pass(ClcType type) { Deliver(type, Next(type)); }
  // All messages before this one.
  void ComeTo(ClcType type) {
    if (type == ClcType::kProposal) return;
    Pass(ClcType::kProposal);
    if (type == ClcType::kConfirm) Pass(ClcType::kAccept);
  }
  Outcome Serve() {
    Outcome outcome = front_.Serve("", &back_);
    outcome.code = world_.LastHandshake();
    return outcome;
  }
  void Cut() {
    front_.wire().Close();
    back_.Close();
  }

 private:
  World& world_;
  FakeServer front_;
  Wire back_;
};

void Add(Causes& causes, const std::string& name, const std::string& what, const Outcome& expected,
         std::function<Outcome(Relay&)> force) {
  causes.push_back({"relay/" + name, what, expected,
                    [force = std::move(force)](World* world) {
                      world->AwaitReady();
                      Relay relay(*world);
                      return force(relay);
                    },
                    true});
}

Outcome Declined(const std::string& code) { return {kTcp, "declined", code, true, ""}; }
Outcome Again(const std::string& code = "") { return {kTcpAgain, "handshake", code, true, ""}; }

constexpr struct {
  const char* name;
  ClcType type;
} kMessages[] = {
    {"proposal", ClcType::kProposal}, {"accept", ClcType::kAccept}, {"confirm", ClcType::kConfirm}};

template <typename Change>
Bytes Changed(const Bytes& message, ClcType type, Change change) {
  ClcAccept value;
  value.type = type;
  if (!ClcParseAccept(message, value).ok()) throw std::runtime_error("not a sound message");
  change(value);
  return Encode(value);
}

void AddChanges(Causes& causes) {
  Add(causes, "nothing", "the messages pass", {kSmcD, "", "", true, ""}, [](Relay& r) {
    r.ComeTo(ClcType::kConfirm);
    r.Pass(ClcType::kConfirm);
    return r.Serve();
  });
  for (const ClcType type : {ClcType::kAccept, ClcType::kConfirm}) {
    const std::string name = type == ClcType::kAccept ? "accept" : "confirm";
    Add(causes, "token-changed/" + name, "the other side finds no such buffer",
        Declined("01010000"), [type](Relay& r) {
          r.ComeTo(type);
          r.Deliver(type,
                    Changed(r.Next(type), type, [](ClcAccept& a) { a.token = kNobodysToken; }));
          return r.Serve();
        });
    Add(causes, "gid-changed/" + name, "another host's", Declined("03030007"), [type](Relay& r) {
      r.ComeTo(type);
      r.Deliver(type, Changed(r.Next(type), type, [](ClcAccept& a) { a.gid.gid ^= 1; }));
      return r.Serve();
    });
  }
  Add(causes, "gid-changed/proposal", "another host's", Declined("03030007"), [](Relay& r) {
    ClcProposal proposal;
    const Bytes message = r.Next(ClcType::kProposal);
    if (!ClcParseProposal(message, proposal).ok()) throw std::runtime_error("not a sound message");
    proposal.entries[0].gid ^= 1;
    r.Deliver(ClcType::kProposal, Encode(proposal));
    return r.Serve();
  });
}

void AddLosses(Causes& causes) {
  for (const auto& each : kMessages) {
    const char* const name = each.name;
    const ClcType type = each.type;
    Add(causes, std::string("cut-before/") + name, "FIN in both directions", Again(),
        [type](Relay& r) {
          r.ComeTo(type);
          (void)r.Next(type);
          r.Cut();
          return r.Serve();
        });
    Add(causes, std::string("lost/") + name, "the message never arrives", Again(),
        [type](Relay& r) {
          r.ComeTo(type);
          (void)r.Next(type);
          return r.Serve();
        });
    Add(causes, std::string("late/") + name,
        "the client has given up when it arrives: the server must not begin", Again(),
        [type](Relay& r) {
          r.ComeTo(type);
          const Bytes message = r.Next(type);
          Outcome outcome = r.front().Serve("");
          if (type == ClcType::kAccept) return outcome;  // there is no process to deliver it to
          r.Deliver(type, message);
          Bytes answer;
          const Got got = r.back().Read(answer, kPatienceMs);
          const bool fine = got != Got::kMessage || type == ClcType::kProposal ||
                            answer[4] == static_cast<uint8_t>(ClcType::kDecline);
          if (!fine) outcome.remark = "the server agrees with a client that has gone";
          outcome.data = outcome.data && fine;
          if (type == ClcType::kConfirm && got != Got::kMessage) {
            outcome.data = false;
            outcome.remark = "the server says nothing";
          }
          return outcome;
        });
  }
  Add(causes, "cut-after-confirm",
      "FIN at the very moment of the acknowledgement, thirty times: both or none",
      {"", "", "", true, ""}, [](Relay& r) {
        r.Cut();
        Outcome outcome = r.Serve();
        unsigned on_smcd = 0;
        constexpr unsigned kRounds = 30;
        for (unsigned i = 0; i < kRounds; i++) {
          Relay relay(r.world());
          relay.ComeTo(ClcType::kConfirm);
          relay.Pass(ClcType::kConfirm);
          usleep(i * 50);
          relay.Cut();
          outcome = relay.Serve();
          if (!outcome.data) return outcome;
          on_smcd += outcome.path == kSmcD;
        }
        outcome.remark = std::to_string(on_smcd) + " of them were SMC-D";
        return outcome;
      });
}

// A token is good for one attach.
void AddReplays(Causes& causes) {
  Add(causes, "replayed/confirm", "the client's token once more, on a second connection",
      {kTcp, "", "01010000", true, ""}, [](Relay& r) {
        r.ComeTo(ClcType::kConfirm);
        const Bytes confirm = r.Next(ClcType::kConfirm);
        r.Deliver(ClcType::kConfirm, confirm);
        Outcome outcome = r.Serve();
        if (outcome.path != kSmcD) return outcome;
        outcome = {};
        Lent second(r.world());
        second.wire().Send(confirm);
        Bytes answer;
        ClcDecline decline;
        if (second.wire().Read(answer, kPatienceMs) != Got::kMessage ||
            !ClcParseDecline(answer, decline).ok()) {
          outcome.remark = "the server does not decline";
          return outcome;
        }
        outcome.code = CodeText(decline.diagnosis);
        outcome.data = second.wire().Exchange();
        if (outcome.data) outcome.path = kTcp;
        return outcome;
      });
  Add(causes, "replayed/accept", "the server's token once more, for a second client",
      Declined("01010000"), [](Relay& r) {
        r.Pass(ClcType::kProposal);
        const Bytes accept = r.Next(ClcType::kAccept);
        r.Deliver(ClcType::kAccept, accept);
        r.Pass(ClcType::kConfirm);
        const Outcome first = r.Serve();
        if (first.path != kSmcD) return first;
        FakeServer second(r.world());
        second.Meet(r.world().client());
        (void)second.Take(ClcType::kProposal);
        second.wire().Send(accept);
        return second.TakeDecline();
      });
}

// ---- killed, or stopped, when a message is on its way

struct Victim {
  const char* name;
  Process& (*process)(World&);
};
constexpr Victim kVictims[] = {
    {"broker", [](World& w) -> Process& { return w.broker(); }},
    {"client-posternd", [](World& w) -> Process& { return *w.a().daemon; }},
    {"server-posternd", [](World& w) -> Process& { return *w.b().daemon; }},
};

// What is left to the two ends may be enough for either path: the broker may have said already what
// it had to say.
Outcome Kill(Relay& r, ClcType type, Process& victim) {
  r.ComeTo(type);
  const Bytes message = r.Next(type);
  victim.End(SIGKILL);
  // Whose end the client would have seen without us in between.
  const bool gone =
      &victim == r.world().b().daemon.get() && r.back().WaitEnd(kPatienceMs) != Got::kTimeout;
  if (gone) r.front().wire().HoldBack();
  r.Deliver(type, message);
  if (gone) r.front().wire().Half();
  return r.Serve();
}

Outcome Stop(Relay& r, ClcType type, Process& victim) {
  r.ComeTo(type);
  const Bytes message = r.Next(type);
  victim.Signal(SIGSTOP);
  r.Deliver(type, message);
  return r.Serve();
}

// The program itself. Its client is told, and the next one is served by the next server.
Outcome KillServer(Relay& r, ClcType type) {
  r.ComeTo(type);
  const Bytes message = r.Next(type);
  r.world().server().End(SIGKILL);
  r.Deliver(type, message);
  Outcome outcome = r.Serve();
  const bool told = outcome.data || outcome.remark.compare(0, 6, "failed") == 0;
  if (told && outcome.path.empty()) outcome.path = "ended";
  r.world().StartServer();
  outcome.data = told && r.world().OthersAreServed();
  return outcome;
}

// posternd agrees in its stead; it serves when it goes on.
Outcome StopServer(Relay& r, ClcType type) {
  r.ComeTo(type);
  const Bytes message = r.Next(type);
  const pid_t server = r.world().server().pid();
  kill(server, SIGSTOP);
  r.Deliver(type, message);
  std::thread later([server] {
    usleep(kStopUsec);
    kill(server, SIGCONT);
  });
  Outcome outcome = r.Serve();
  later.join();
  return outcome;
}

void AddDeaths(Causes& causes) {
  const Outcome any = {"", "", "", true, ""};
  for (const auto& each : kMessages) {
    const char* const name = each.name;
    const ClcType type = each.type;
    for (const Victim& victim : kVictims) {
      Add(causes, std::string(victim.name) + "-killed/" + name, "while that message is on its way",
          any, [&victim, type](Relay& r) { return Kill(r, type, victim.process(r.world())); });
      Add(causes, std::string(victim.name) + "-stopped/" + name, "while that message is on its way",
          any, [&victim, type](Relay& r) { return Stop(r, type, victim.process(r.world())); });
    }
    Add(causes, std::string("server-killed/") + name, "while that message is on its way", any,
        [type](Relay& r) { return KillServer(r, type); });
    Add(causes, std::string("server-stopped/") + name, "while that message is on its way", any,
        [type](Relay& r) { return StopServer(r, type); });
  }
}

}  // namespace
}  // namespace relay_causes

void AddRelays(Causes& causes) {
  relay_causes::AddChanges(causes);
  relay_causes::AddLosses(causes);
  relay_causes::AddReplays(causes);
  relay_causes::AddDeaths(causes);
}

}  // namespace postern::ctl_command::selftest
