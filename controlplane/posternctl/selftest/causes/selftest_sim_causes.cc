// selftest_sim_causes.cc - the causes that need no rights.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <initializer_list>

#include "selftest_sim.h"
#include "wire/clc/clc_diagnosis.h"

namespace postern::ctl_command::selftest {
namespace sim_causes {
namespace {

void Add(Causes& causes, const std::string& name, const std::string& what, const Outcome& expected,
         std::function<void(SimPlan&)> change) {
  causes.push_back({"sim/" + name, what, expected,
                    [change = std::move(change)](World*) {
                      SimPlan plan = HealthyPlan();
                      change(plan);
                      return Simulate(plan);
                    },
                    false});
}

void OwnMemory(SimPlan& plan) { plan.server.memory = std::make_shared<SimMemory>(); }

void AddDevices(Causes& causes) {
  Add(causes, "healthy", "nothing is wrong", {kSmcD, "", "", true, ""}, [](SimPlan&) {});
  Add(causes, "other-host", "two hosts", {kTcp, "declined", "03030007", true, ""}, [](SimPlan& p) {
    OwnMemory(p);
    p.server.local.gid.gid ^= 1;
  });
  Add(causes, "same-gid/client", "two hosts of one name; the client has no such buffer",
      {kTcp, "peer declined", "01010000", true, ""}, [](SimPlan& p) {
        OwnMemory(p);
        p.server.fault.attaches_anything = true;
      });
  Add(causes, "same-gid/server", "two hosts of one name; the server has no such buffer",
      {kTcp, "declined", "01010000", true, ""}, [](SimPlan& p) {
        OwnMemory(p);
        p.client.fault.attaches_anything = true;
      });
  Add(causes, "same-gid/both", "two hosts of one name; neither has the other's buffer",
      {kTcp, "peer declined", "01010000", true, ""}, OwnMemory);
  Add(causes, "collision/client",
      "two hosts of one name; what has the server's token at the client is somebody else's",
      {kTcp, "peer declined", "01010000", true, ""}, [](SimPlan& p) {
        OwnMemory(p);
        p.server.fault.token = 42;
        p.client.memory->buffers[42] = {};
      });
  Add(causes, "collision/server",
      "two hosts of one name; what has the client's token at the server is somebody else's",
      {kTcp, "declined", "01010000", true, ""}, [](SimPlan& p) {
        OwnMemory(p);
        p.client.fault.attaches_anything = true;
        p.client.fault.token = 42;
        p.server.memory->buffers[42] = {};
      });
  Add(causes, "collision/one-host", "the client's device has given that token to the server",
      {kTcp, "peer declined", "09990000", true, ""},
      [](SimPlan& p) { p.client.fault.token = p.server.fault.token = 42; });
}

void AddFailures(Causes& causes) {
  static constexpr struct {
    const char* name;
    uint32_t code;
  } kCodes[] = {{"no-memory", kClcDiagNoMemory}, {"dmb-limit", kClcDiagDmbLimit}};
  for (const auto& kind : kCodes) {
    const char* const name = kind.name;
    const uint32_t code = kind.code;
    const std::string text = CodeText(code);
    Add(causes, std::string(name) + "/client-register", "the client's device has no buffer",
        {kTcp, "peer declined", text, true, ""},
        [code](SimPlan& p) { p.client.fault.register_diagnosis = code; });
    Add(causes, std::string(name) + "/server-register", "the server's device has no buffer",
        {kTcp, "declined", text, true, ""},
        [code](SimPlan& p) { p.server.fault.register_diagnosis = code; });
    Add(causes, std::string(name) + "/client-attach", "the client can't attach",
        {kTcp, "peer declined", text, true, ""},
        [code](SimPlan& p) { p.client.fault.attach_diagnosis = code; });
    Add(causes, std::string(name) + "/server-attach", "the server can't attach",
        {kTcp, "declined", text, true, ""},
        [code](SimPlan& p) { p.server.fault.attach_diagnosis = code; });
    Add(causes, std::string(name) + "/server-attach-plain-peer",
        "the server can't attach, and the client knows no acknowledgement",
        {kTcpAgain, "committed", text, true, ""}, [code](SimPlan& p) {
          p.server.fault.attach_diagnosis = code;
          p.client.local.features = 0;
        });
  }
}

void AddTerms(Causes& causes) {
  Add(causes, "ueid", "no UEID in common", {kTcp, "declined", "03030008", true, ""},
      [](SimPlan& p) { (void)ClcUeidFromText("OTHER", p.server.local.ueids[0]); });
  Add(causes, "seid", "the client relies on the system's id",
      {kTcp, "declined", "03030006", true, ""}, [](SimPlan& p) {
        p.client.local.ueid_count = 0;
        p.client.local.has_seid = 1;
      });
  Add(causes, "release", "the client has release 0 only", {kTcp, "declined", "03030009", true, ""},
      [](SimPlan& p) { p.client.local.release = 0; });
  Add(causes, "native-device", "a device of another kind", {kTcp, "declined", "03030007", true, ""},
      [](SimPlan& p) { p.client.local.chid = 7; });
  Add(causes, "no-emulation", "the client knows no emulated devices",
      {kTcp, "declined", "03030007", true, ""},
      [](SimPlan& p) { p.client.local.feature_mask = 0; });
  Add(causes, "garbage/client", "no message of CLC's", {kTcpAgain, "eyecatcher", "", true, ""},
      [](SimPlan& p) { p.client.fault.garbage = Bytes(64, 'x'); });
  Add(causes, "garbage/server", "no message of CLC's", {kTcpAgain, "", "", true, ""},
      [](SimPlan& p) { p.server.fault.garbage = Bytes(64, 'x'); });
}

// Each diagnosis in place of each message.
void AddDeclines(Causes& causes) {
  static constexpr struct {
    const char* name;
    bool client;
    unsigned message;
  } kPlaces[] = {{"proposal", true, 1}, {"accept", false, 1}, {"confirm", true, 2}};
  for (const auto& place : kPlaces) {
    const char* const name = place.name;
    const bool client = place.client;
    const unsigned message = place.message;
    for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
      const uint32_t code = ClcDiagnosisAt(i);
      // The end that has sent it is a machine no more; the other one tells.
      Add(causes, std::string("declines-instead-of-") + name + "/" + ClcDiagnosisName(code),
          std::string("a Decline in place of the ") + name,
          {kTcp, "peer declined", CodeText(code), true, ""}, [client, message, code](SimPlan& p) {
            SimFault& fault = client ? p.client.fault : p.server.fault;
            fault.decline_instead = code;
            fault.instead_of_message = message;
          });
    }
  }
  Add(causes, "does-not-want/client", "the client's configuration forbids it",
      {kTcp, "peer declined", "03000000", true, ""},
      [](SimPlan& p) { p.client.fault.start_diagnosis = kClcDiagConfig; });
  Add(causes, "does-not-want/server", "the server's configuration forbids it",
      {kTcp, "declined", "03000000", true, ""},
      [](SimPlan& p) { p.server.fault.start_diagnosis = kClcDiagConfig; });
}

// One end goes away, or is not heard of any more, before each of its steps.
void AddDeaths(Causes& causes) {
  static constexpr struct {
    const char* name;
    SimEnd end;
  } kEnds[] = {
      {"closes", SimEnd::kCloses}, {"resets", SimEnd::kResets}, {"silent", SimEnd::kSilent}};
  for (const auto& way : kEnds) {
    const char* const name = way.name;
    const SimEnd end = way.end;
    for (const bool client : {true, false}) {
      for (unsigned step = 0; step < 4; step++) {
        Add(causes, std::string(client ? "client-" : "server-") + name + "/" + std::to_string(step),
            end == SimEnd::kSilent ? "nothing comes for 6 s" : "it is gone before that step",
            {kTcpAgain, end == SimEnd::kSilent ? "timeout" : "", "", true, ""},
            [client, end, step](SimPlan& p) {
              SimFault& fault = client ? p.client.fault : p.server.fault;
              fault.end = end;
              fault.after_events = step;
            });
      }
    }
  }
  Add(causes, "slow-device/client-register", "the client's device does not answer within 2 s",
      {kTcp, "peer declined", "09990000", true, ""},
      [](SimPlan& p) { p.client.fault.slow_register = true; });
  Add(causes, "slow-device/client-attach", "the client's device does not answer within 2 s",
      {kTcp, "peer declined", "09990000", true, ""},
      [](SimPlan& p) { p.client.fault.slow_attach = true; });
  Add(causes, "slow-device/server-register", "the server's device does not answer within 2 s",
      {kTcp, "declined", "09990000", true, ""},
      [](SimPlan& p) { p.server.fault.slow_register = true; });
  Add(causes, "slow-device/server-attach", "the server's device does not answer within 2 s",
      {kTcp, "declined", "09990000", true, ""},
      [](SimPlan& p) { p.server.fault.slow_attach = true; });
}

}  // namespace
}  // namespace sim_causes

void AddSimulated(Causes& causes) {
  sim_causes::AddDevices(causes);
  sim_causes::AddFailures(causes);
  sim_causes::AddTerms(causes);
  sim_causes::AddDeclines(causes);
  sim_causes::AddDeaths(causes);
}

}  // namespace postern::ctl_command::selftest
