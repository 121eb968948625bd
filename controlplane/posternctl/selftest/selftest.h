// selftest.h - posternctl selftest: forces each cause for which a connection does without shared
// memory, and shows that its data goes through all the same.
// SPDX-License-Identifier: Apache-2.0
//
// Nothing in the product helps with it: the self-test is the misbehaving peer.
//
//   sim/     both ends of the handshake in this process, over loopback TCP and a simulated device
//   client/  a client of ours, against a server that runs under `postern`
//   server/  a server of ours, against a client that runs under `postern`
//   relay/   between two programs that run under `postern`: a wire that cuts, delays, replays
//   pair/    two programs under `postern`, and something taken away from them
//
// The first kind needs no rights. The others have a world of their own (selftest_world.h).
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace postern::ctl_command::selftest {

class World;

constexpr const char* kSmcD = "SMC-D";
constexpr const char* kTcp = "TCP";             // the connection went on as TCP
constexpr const char* kTcpAgain = "TCP again";  // it ended, and a second one carried the data

// Empty fields of what is expected are not looked at.
struct Outcome {
  std::string path;
  std::string reason;  // as `posternctl ss` has it; simulated: what the machine says
  std::string code;    // the diagnosis of a Decline, or what posternd's log calls the abort
  bool data = false;   // all of it arrived as it was sent, in both directions
  std::string remark;  // for a failure: what else there was to see
};

struct Cause {
  std::string name, what;
  Outcome expected;
  // `world` is null for those that need none. Throws std::exception when it can't go on.
  std::function<Outcome(World* world)> force;
  bool needs_world = true;
};
using Causes = std::vector<Cause>;

void AddSimulated(Causes& causes);
void AddClients(Causes& causes);
void AddServers(Causes& causes);
void AddRelays(Causes& causes);
void AddPairs(Causes& causes);

struct Request {
  std::vector<std::string> only;  // names, or their beginnings
  bool list = false, json = false, verbose = false;
};
constexpr int kExitNothingRun = 77;
int Run(const Request& request);

// The two programs of the real ends (selftest_program.cc).
int ServeEcho(unsigned port);
int ServeCommands();

}  // namespace postern::ctl_command::selftest
