// selftest_world.h - a broker and two network namespaces, each with a posternd: as two containers.
// SPDX-License-Identifier: Apache-2.0
//
//      "a" 10.89.0.1 ==== veth ==== 10.89.0.2 "b"
//      posternd            broker            posternd
//
// The broker marks the SYNs of processes in the self-test's own cgroup only. Nothing here is shared
// with the host's broker, or with posternds that run already.
#pragma once
#include <functional>
#include <memory>

#include "../line/ask.h"
#include "selftest_guard.h"
#include "selftest_io.h"
#include "selftest_process.h"
#include "smcd/clc_negotiate.h"

namespace postern::ctl_command::selftest {

// The world, or this kernel, has not what it takes: a reason to skip.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Node {
  std::string name, ip, runtime_dir, log;
  Fd netns;
  std::unique_ptr<Process> daemon;
};

constexpr uint16_t kEchoPort = 8080;

class World {
 public:
  explicit World(const Place& place);
  ~World();

  Node& a() { return a_; }  // clients
  Node& b() { return b_; }  // servers
  Process& broker() { return *broker_; }
  Process& server() { return *server_; }
  // How this host names itself to its peers.
  const ClcLocal& local() const { return local_; }

  Fd Socket(const Node& node, Mark mark);
  // A port of b that no other cause uses: a client remembers addresses that cost it time.
  uint16_t NewPort() { return next_port_++; }
  // A program that does as it is told (selftest_program.cc), under `postern` with these options.
  std::unique_ptr<Process> Client(const std::vector<std::string>& options = {});
  // The one that stays.
  Process& client();
  // It may still be at what it was told last.
  void DropClient() { client_.reset(); }
  std::unique_ptr<Process> Server(uint16_t port);

  // The report's entry of the connection with that local or peer name; null if it has none.
  Json SocketOf(const Node& node, const std::string& name, const char* key);
  // What posternd of b has said of handshakes since the last call: of the last one its code.
  std::string LastHandshake();
  // Data on a connection of its own, by plain TCP, between the two namespaces.
  bool OthersAreServed();

  void SetPolicy(const std::string& json);
  void StartBroker();
  void StartDaemon(Node& node);
  void StartServer();
  // Everything runs, and the two daemons know the broker. After whatever a cause has done.
  void Repair();
  // SMC-D is possible between a and b; throws if that doesn't come to be.
  void AwaitReady();
  std::string Logs();

 private:
  std::unique_ptr<Process> Program(Node& node, const std::vector<std::string>& options,
                                   const std::vector<std::string>& argv);
  std::string Own(const char* name) const { return place_.dir + "/" + name; }

  Place place_;
  Fd home_;
  Node a_, b_;
  std::unique_ptr<Process> broker_, server_, client_;
  ClcLocal local_;
  uint16_t next_port_ = 20000;
  size_t log_read_ = 0;
};

}  // namespace postern::ctl_command::selftest
