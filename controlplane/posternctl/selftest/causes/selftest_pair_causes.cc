// selftest_pair_causes.cc - two programs under `postern`, and something that they need is refused
// or gone.
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "../selftest.h"
#include "../selftest_world.h"

namespace postern::ctl_command::selftest {
namespace pair_causes {
namespace {

constexpr size_t kLittleBytes = 2 << 20;  // enough for the program, and for no link group

// A server on a port of its own: no client has learnt of it yet, so there has to be a handshake.
struct Pair {
  World& world;
  uint16_t port;
  std::unique_ptr<Process> server, client;
  Pair(World& w, const std::vector<std::string>& options)
      : world(w), port(w.NewPort()), server(w.Server(port)), client(w.Client(options)) {
    (void)w.LastHandshake();
  }

  // The client has met posternd, and has what it needs for a first link group.
  void Warm() {
    client->Write("connect " + world.b().ip + " " + std::to_string(kEchoPort));
    if (client->Read(kPatienceMs).compare(0, 3, "ok ") != 0)
      throw std::runtime_error("the client is not served while all is well either");
    (void)world.LastHandshake();
  }
  Outcome Try() {
    Outcome outcome;
    client->Write("connect " + world.b().ip + " " + std::to_string(port));
    const std::string said = client->Read(2 * kPatienceMs);
    outcome.data = said.compare(0, 3, "ok ") == 0;
    if (!outcome.data) outcome.remark = said.empty() ? "the client does not come to an end" : said;
    if (!outcome.data) return outcome;
    outcome.code = world.LastHandshake();
    Tell(said.substr(3), outcome);
    return outcome;
  }
  // What posternd knows, where there is one to ask; the programs tell it again when it has come.
  void Tell(const std::string& local, Outcome& outcome) {
    world.a().daemon->Signal(SIGCONT);
    const Json socket =
        world.a().daemon->running() ? world.SocketOf(world.a(), local, "local") : Json(nullptr);
    outcome.path = kTcp;
    if (socket.is_null()) return;
    outcome.reason = socket.at("reason").get<std::string>();
    if (socket.at("path") == "smc-d") outcome.path = kSmcD;
    if (outcome.reason == "handshake") outcome.path = kTcpAgain;
  }
};

void Add(Causes& causes, const std::string& name, const std::string& what, const Outcome& expected,
         std::function<Outcome(Pair&)> force, const std::vector<std::string>& options = {}) {
  causes.push_back({"pair/" + name, what, expected,
                    [force = std::move(force), options](World* world) {
                      world->AwaitReady();
                      Pair pair(*world, options);
                      return force(pair);
                    },
                    true});
}

void AddPolicies(Causes& causes) {
  Add(causes, "healthy", "nothing is wrong", {kSmcD, "", "", true, ""},
      [](Pair& p) { return p.Try(); });
  const auto with = [](const char* policy) {
    return [policy](Pair& p) {
      p.world.SetPolicy(policy);
      return p.Try();
    };
  };
  Add(causes, "dmb-limit", "the policy allows no buffers in handshakes",
      {kTcp, "declined", "030d0000", true, ""}, with("\"buffers\": 0"));
  Add(causes, "policy", "the policy forbids it", {kTcp, "declined", "03000000", true, ""},
      with("\"default\": \"deny\""));
  const auto plain = [](Pair& p) { return p.Try(); };
  Add(causes, "smcd-off", "the client is not to do SMC-D", {kTcp, "not-local", "", true, ""}, plain,
      {"smcd=off"});
  Add(causes, "accel-off", "the client is not accelerated", {kTcp, "", "", true, ""}, plain,
      {"accel=off"});
}

size_t VirtualBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  size_t pages = 0;
  file >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void Limit(Process& process) {
  const rlim_t most = VirtualBytes(process.pid()) + kLittleBytes;
  const rlimit limit{most, most};
  if (prlimit(process.pid(), RLIMIT_AS, &limit, nullptr) != 0) Fail("prlimit");
}

// What comes to it by a message is lost, too.
void LimitFiles(Process& process) {
  const rlimit none{3, 3};
  if (prlimit(process.pid(), RLIMIT_NOFILE, &none, nullptr) != 0) Fail("prlimit");
}

void AddMemory(Causes& causes) {
  Add(causes, "no-memory/client", "the client has no room to map the server's memory",
      {kTcp, "declined", "01010000", true, ""}, [](Pair& p) {
        p.Warm();  // the second link group will be too much
        Limit(*p.client);
        return p.Try();
      });
  Add(causes, "no-descriptor/server-posternd", "the server's posternd can open nothing more",
      {kTcpAgain, "handshake", "", true, ""}, [](Pair& p) {
        p.Warm();
        LimitFiles(*p.world.b().daemon);
        Outcome outcome = p.Try();
        if (!p.world.b().daemon->running()) outcome.remark = "posternd has died of it";
        p.world.b().daemon->End(SIGKILL);
        return outcome;
      });
}

void AddDeaths(Causes& causes) {
  static constexpr struct {
    const char *name, *path, *reason;
    int signal;
    Process& (*process)(World&);
  } kWho[] = {
      {"broker-gone", kTcp, "not-local", SIGKILL, [](World& w) -> Process& { return w.broker(); }},
      {"client-posternd-gone", kTcp, "", SIGKILL,
       [](World& w) -> Process& { return *w.a().daemon; }},
      {"server-posternd-gone", kTcp, "not-local", SIGKILL,
       [](World& w) -> Process& { return *w.b().daemon; }},
      {"broker-stopped", kTcpAgain, "handshake", SIGSTOP,
       [](World& w) -> Process& { return w.broker(); }},
      {"client-posternd-stopped", "", "", SIGSTOP,
       [](World& w) -> Process& { return *w.a().daemon; }},
      {"server-posternd-stopped", kTcpAgain, "handshake", SIGSTOP,
       [](World& w) -> Process& { return *w.b().daemon; }},
  };
  for (const auto& who : kWho) {
    Add(causes, who.name, who.signal == SIGKILL ? "it was killed" : "it is stopped, and silent",
        {who.path, who.reason, "", true, ""}, [&who](Pair& p) {
          p.Warm();
          Process& victim = who.process(p.world);
          if (who.signal == SIGKILL) {
            victim.End(SIGKILL);
            usleep(200'000);  // the processes connected to it have seen that
          } else {
            victim.Signal(SIGSTOP);
          }
          return p.Try();
        });
  }
  Add(causes, "all-back", "... and when all of them are there again, so is SMC-D",
      {kSmcD, "", "", true, ""}, [](Pair& p) { return p.Try(); });
}

}  // namespace
}  // namespace pair_causes

void AddPairs(Causes& causes) {
  pair_causes::AddPolicies(causes);
  pair_causes::AddMemory(causes);
  pair_causes::AddDeaths(causes);
}

}  // namespace postern::ctl_command::selftest
