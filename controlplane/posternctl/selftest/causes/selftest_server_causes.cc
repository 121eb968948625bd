// selftest_server_causes.cc - a server of ours does what it should not; the client's program runs
// under `postern`.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <initializer_list>

#include "selftest_fake_server.h"
#include "wire/clc/clc_diagnosis.h"

namespace postern::ctl_command::selftest {
namespace server_causes {
namespace {

constexpr uint64_t kNobodysToken = 0x5e1f7e57'00000002;

void Add(Causes& causes, const std::string& name, const std::string& what, const Outcome& expected,
         std::function<Outcome(FakeServer&, World&)> force, Mark mark = Mark::kMarked) {
  causes.push_back({"server/" + name, what, expected,
                    [force = std::move(force), mark](World* world) {
                      FakeServer server(*world, mark);
                      server.Meet(world->client());
                      return force(server, *world);
                    },
                    true});
}

Outcome Declined(const std::string& code) { return {kTcp, "declined", code, true, ""}; }
Outcome Again() { return {kTcpAgain, "handshake", "", true, ""}; }

struct Odd {
  const char *name, *what, *code;
  void (*change)(ClcAccept&);
};
constexpr Odd kAccepts[] = {
    {"no-such-token", "a token that does not exist", "01010000", [](ClcAccept&) {}},
    {"other-host", "another GID", "03030007", [](ClcAccept& a) { a.gid.gid ^= 1; }},
    {"other-extended-gid", "half of the GID is another host's", "03030007",
     [](ClcAccept& a) { a.gid.ext ^= 1; }},
    {"native-device", "a device of another kind", "03030007", [](ClcAccept& a) { a.chid = 7; }},
    {"ueid", "an enterprise id that was not offered", "03030008",
     [](ClcAccept& a) { (void)ClcUeidFromText("OTHER", a.eid); }},
    {"release", "release 0", "03030009", [](ClcAccept& a) { a.first.release = 0; }},
    {"no-emulation", "knows no emulated devices", "03030007",
     [](ClcAccept& a) { a.first.feature_mask = 0; }},
    {"element", "a buffer of several elements", "", [](ClcAccept& a) { a.dmbe_index = 1; }},
};

void AddAccepts(Causes& causes) {
  for (const Odd& odd : kAccepts) {
    Add(causes, odd.name, std::string("Accept: ") + odd.what, Declined(odd.code),
        [&odd](FakeServer& s, World&) {
          (void)s.Take(ClcType::kProposal);
          ClcAccept accept = s.MakeAccept(kNobodysToken);
          odd.change(accept);
          s.wire().Send(Encode(accept));
          return s.TakeDecline();
        });
  }
  Add(causes, "out-of-sync", "Accept of a link group that the client does not know",
      Declined("04000000"), [](FakeServer& s, World& world) {
        Lent lent(world);
        (void)s.Take(ClcType::kProposal);
        ClcAccept accept = s.MakeAccept(lent.token());
        accept.is_first_contact = 0;
        s.wire().Send(Encode(accept));
        return s.TakeDecline();
      });
  Add(causes, "used-token", "Accept with a token that somebody else has attached",
      Declined("01010000"), [](FakeServer& s, World& world) {
        Lent lent(world);
        {  // another client attaches it, and comes to nothing
          FakeServer other(world);
          const auto program = world.Client();
          other.Meet(*program);
          (void)other.Take(ClcType::kProposal);
          other.wire().Send(Encode(other.MakeAccept(lent.token())));
          (void)other.Take(ClcType::kConfirm);
        }
        (void)s.Take(ClcType::kProposal);
        s.wire().Send(Encode(s.MakeAccept(lent.token())));
        return s.TakeDecline();
      });
}

// A Confirm, in answer to an Accept as it should be.
void ComeToConfirm(FakeServer& s, Lent& lent) {
  (void)s.Take(ClcType::kProposal);
  s.wire().Send(Encode(s.MakeAccept(lent.token())));
  (void)s.Take(ClcType::kConfirm);
}

void AddDeclines(Causes& causes) {
  for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
    const uint32_t code = ClcDiagnosisAt(i);
    for (const uint8_t version : {uint8_t{2}, uint8_t{1}}) {
      Add(causes,
          std::string(version == 2 ? "declines-proposal/" : "declines-proposal-as-v1/") +
              ClcDiagnosisName(code),
          "a Decline in place of the Accept", Declined(""),
          [code, version](FakeServer& s, World& world) {
            (void)s.Take(ClcType::kProposal);
            s.wire().Send(Encode(ClcMakeDecline(world.local(), version, code)));
            return s.Serve(CodeText(code));
          });
    }
    Add(causes, std::string("declines-confirm/") + ClcDiagnosisName(code),
        "a Decline in place of the acknowledgement", Declined(""),
        [code](FakeServer& s, World& world) {
          Lent lent(world);
          ComeToConfirm(s, lent);
          s.wire().Send(Encode(ClcMakeDecline(world.local(), 2, code)));
          return s.Serve(CodeText(code));
        });
  }
}

constexpr const char* kSteps[] = {"connect", "proposal", "half-an-accept", "accept", "confirm"};
void ComeTo(FakeServer& s, Lent& lent, unsigned step) {
  if (step == 0) return;
  if (step == 4) return ComeToConfirm(s, lent);
  (void)s.Take(ClcType::kProposal);
  const Bytes accept = Encode(s.MakeAccept(lent.token()));
  if (step == 2) s.wire().Send(std::span(accept).first(accept.size() / 2));
  if (step == 3) s.wire().Send(accept);
}

void AddDeaths(Causes& causes) {
  for (unsigned step = 0; step < std::size(kSteps); step++) {
    const std::string name = kSteps[step];
    Add(causes, "closes-after/" + name, "FIN", Again(), [step](FakeServer& s, World& world) {
      Lent lent(world);
      ComeTo(s, lent, step);
      s.wire().Half();
      return s.Serve();
    });
    Add(causes, "resets-after/" + name, "RST", Again(), [step](FakeServer& s, World& world) {
      Lent lent(world);
      ComeTo(s, lent, step);
      s.wire().Reset();
      return s.Serve();
    });
    // With "accept" the silence begins behind it: it is that of "confirm".
    if (step == 3) continue;
    Add(causes, "silent-after/" + name, "nothing for smcd.msec", Again(),
        [step](FakeServer& s, World& world) {
          Lent lent(world);
          ComeTo(s, lent, step);
          Wire silent = std::move(s.wire());
          return s.Serve();
        });
  }
}

void AddGarbage(Causes& causes) {
  Add(
      causes, "unmarked", "a server without Postern", {kTcp, "peer-plain", "", true, ""},
      [](FakeServer& s, World&) { return s.Serve(); }, Mark::kPlain);
  Add(causes, "garbage/no-clc", "data in place of an Accept", Again(), [](FakeServer& s, World&) {
    (void)s.Take(ClcType::kProposal);
    s.wire().Send(Bytes(100, 'x'));
    return s.Serve();
  });
  Add(causes, "garbage/trailer", "an Accept with a wrong end", Again(), [](FakeServer& s, World&) {
    (void)s.Take(ClcType::kProposal);
    Bytes accept = Encode(s.MakeAccept(kNobodysToken));
    accept.back() ^= 1;
    s.wire().Send(accept);
    return s.Serve();
  });
  Add(causes, "garbage/order", "a Proposal in place of an Accept", Again(),
      [](FakeServer& s, World& world) {
        (void)s.Take(ClcType::kProposal);
        s.wire().Send(Encode(ClcMakeProposal(world.local())));
        return s.Serve();
      });
  Add(causes, "garbage/after-confirm", "data in place of the acknowledgement", Again(),
      [](FakeServer& s, World& world) {
        Lent lent(world);
        ComeToConfirm(s, lent);
        s.wire().Send(Bytes(100, 'x'));
        return s.Serve();
      });
}

}  // namespace
}  // namespace server_causes

void AddServers(Causes& causes) {
  server_causes::AddGarbage(causes);
  server_causes::AddAccepts(causes);
  server_causes::AddDeclines(causes);
  server_causes::AddDeaths(causes);
}

}  // namespace postern::ctl_command::selftest
