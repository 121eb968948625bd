// selftest_world.cc - see selftest_world.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "selftest_net.h"
#include "smcd/clc_local.h"

namespace postern::ctl_command::selftest {
namespace {

constexpr const char* kUeid = "SELFTEST";
constexpr useconds_t kPauseUsec = 20'000;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  if (!file.flush()) Fail(path);
}

template <typename Condition>
bool Await(Condition condition) {
  for (const uint64_t until = NowMs() + kPatienceMs; !condition(); usleep(kPauseUsec)) {
    if (NowMs() > until) return false;
  }
  return true;
}

std::string Policy(const std::string& more) {
  return std::string("{\"ueids\": [\"") + kUeid + "\"]" + (more.empty() ? "" : ", " + more) + "}";
}

}  // namespace

World::World(const Place& place) : place_(place) {
  if (!place.why_not.empty()) throw Unavailable(place.why_not);
  for (const char* name : {"postern", "posternd"}) {
    if (Sibling(name, (std::string("../libexec/postern/") + name).c_str()).empty())
      throw Unavailable(std::string(name) + " is not there beside posternctl");
  }
  // Ours are the sockets whose SYNs are marked.
  WriteFile(place.cgroup + "/cgroup.procs", "0");
  home_ = CurrentNetns();
  try {
    a_ = {"a", "10.89.0.1", Own("a"), Own("a.log"), NewNetns(), nullptr};
    b_ = {"b", "10.89.0.2", Own("b"), Own("b.log"), NewNetns(), nullptr};
    Cable(a_.netns, a_.ip, b_.netns, b_.ip);
  } catch (const std::runtime_error& error) {
    throw Unavailable(error.what());
  }
  for (const Node* node : {&a_, &b_}) {
    if (mkdir(node->runtime_dir.c_str(), 0700) != 0) Fail(node->runtime_dir);
  }
  WriteFile(Own("policy.json"), Policy(""));
  StartBroker();
  if (ReadFile(Own("broker.log")).find("attached") == std::string::npos)
    throw Unavailable("the broker can't mark SYNs: " + ReadFile(Own("broker.log")));
  pstn_host host{};
  const std::string gid = ReadFile(Own("broker/gid"));
  if (gid.size() != sizeof(host.gid)) throw std::runtime_error("the broker has no GID");
  memcpy(&host.gid, gid.data(), sizeof(host.gid));
  local_ = ClcLocalOf(host);
  local_.ueid_count = 1;
  (void)ClcUeidFromText(kUeid, local_.ueids[0]);
  Repair();
}

World::~World() {
  client_.reset();
  server_.reset();
  for (Node* node : {&a_, &b_}) node->daemon.reset();
  broker_.reset();
}

void World::StartBroker() {
  Start start;
  start.argv = {Sibling("posternd", "../libexec/postern/posternd"),
                "--system",
                "--foreground",
                "--verbose",
                "--runtime-dir",
                Own("broker"),
                "--policy",
                Own("policy.json"),
                "--syn-option",
                place_.cgroup,
                "--syn-option-pins",
                Own("bpf/postern")};
  start.log = Own("broker.log");
  const size_t before = ReadFile(start.log).size();
  broker_ = std::make_unique<Process>(start);
  const bool serves = Await([&] {
    return ReadFile(start.log).find("ready in", before) != std::string::npos || !broker_->running();
  });
  if (!serves || !broker_->running()) throw Unavailable("no broker: " + ReadFile(start.log));
}

void World::StartDaemon(Node& node) {
  Start start;
  start.argv = {Sibling("posternd", "../libexec/postern/posternd"),
                "--foreground",
                "--verbose",
                "--idle-sec",
                "0",
                "--runtime-dir",
                node.runtime_dir,
                "--broker",
                Own("broker/broker.sock")};
  start.netns = node.netns.get();
  start.log = node.log;
  node.daemon = std::make_unique<Process>(start);
  if (!Await([&] { return !Ask(node.runtime_dir, Report::kStatus).is_null(); }))
    throw std::runtime_error("posternd of " + node.name + " does not answer");
}

std::unique_ptr<Process> World::Program(Node& node, const std::vector<std::string>& options,
                                        const std::vector<std::string>& argv) {
  Start start;
  start.argv = {Sibling("postern", "postern"), "-o", "daemon.spawn=off"};
  for (const std::string& option : options) {
    start.argv.emplace_back("-o");
    start.argv.push_back(option);
  }
  start.argv.push_back(Sibling("posternctl", "posternctl"));
  start.argv.insert(start.argv.end(), argv.begin(), argv.end());
  start.env = {"POSTERN_RUNTIME_DIR=" + node.runtime_dir};
  start.netns = node.netns.get();
  start.log = Own("programs.log");
  auto process = std::make_unique<Process>(start);
  if (process->Read(kPatienceMs) != "ready")
    throw std::runtime_error("a program does not start: " + ReadFile(start.log));
  return process;
}

std::unique_ptr<Process> World::Server(uint16_t port) {
  return Program(b_, {}, {"selftest-echo", std::to_string(port)});
}

void World::StartServer() { server_ = Server(kEchoPort); }

std::unique_ptr<Process> World::Client(const std::vector<std::string>& options) {
  return Program(a_, options, {"selftest-client"});
}

Process& World::client() {
  if (client_ == nullptr || !client_->running()) client_ = Client();
  return *client_;
}

Fd World::Socket(const Node& node, Mark mark) {
  EnterNetns(node.netns);
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EnterNetns(home_);
  if (!fd.ok()) Fail("socket");
  if (mark == Mark::kMarked) MarkSocket(fd.get());
  return fd;
}

Json World::SocketOf(const Node& node, const std::string& name, const char* key) {
  const Json report = Ask(node.runtime_dir, Report::kSockets);
  if (report.is_null()) return nullptr;
  for (const Json& socket : report.at("sockets")) {
    if (socket.at(key).get<std::string>() == name) return socket;
  }
  return nullptr;
}

// "... handshake 7: TCP, none 03030007"
std::string World::LastHandshake() {
  const std::string all = ReadFile(b_.log);
  const size_t at = all.rfind(" handshake ");
  if (at == std::string::npos || at < log_read_) return "";
  log_read_ = all.size();
  std::istringstream words(all.substr(at, all.find('\n', at) - at));
  std::string word, number, how, abort, code;
  words >> word >> number >> how >> abort >> code;
  if (abort != "none") return abort;
  return code == "00000000" ? "" : code;
}

bool World::OthersAreServed() {
  Wire wire(Connect(Socket(a_, Mark::kPlain), Address(b_.ip, kEchoPort)));
  return wire.Exchange();
}

void World::SetPolicy(const std::string& more) {
  const std::string log = Own("broker.log");
  const size_t before = ReadFile(log).size();
  WriteFile(Own("policy.json"), Policy(more));
  broker_->Signal(SIGHUP);
  if (!Await([&] { return ReadFile(log).find("policy read again", before) != std::string::npos; }))
    throw std::runtime_error("the broker does not read its policy again");
}

void World::Repair() {
  for (Process* process : {broker_.get(), a_.daemon.get(), b_.daemon.get(), server_.get()})
    if (process != nullptr) process->Signal(SIGCONT);
  if (broker_ == nullptr || !broker_->running()) StartBroker();
  for (Node* node : {&a_, &b_}) {
    if (node->daemon == nullptr || !node->daemon->running()) StartDaemon(*node);
  }
  if (ReadFile(Own("policy.json")) != Policy("")) SetPolicy("");
  if (server_ == nullptr || !server_->running()) StartServer();
  log_read_ = ReadFile(b_.log).size();
}

void World::AwaitReady() {
  std::string last;
  const bool ready = Await([&] {
    // No client has learnt of a new listener yet: there has to be a handshake.
    const uint16_t port = NewPort();
    const auto server = Server(port);
    Process& program = client();
    program.Write("connect " + b_.ip + " " + std::to_string(port));
    last = program.Read(kPatienceMs);
    if (last.compare(0, 3, "ok ") != 0) return false;
    const Json socket = SocketOf(a_, last.substr(3), "local");
    if (!socket.is_null())
      last +=
          " " + socket.at("path").get<std::string>() + " " + socket.at("reason").get<std::string>();
    program.Write("close");
    (void)program.Read(kPatienceMs);
    return !socket.is_null() && socket.at("path") == "smc-d";
  });
  if (!ready) throw std::runtime_error("the two namespaces do not come to SMC-D: " + last);
}

std::string World::Logs() {
  std::string all;
  for (const char* name : {"broker.log", "a.log", "b.log", "programs.log"})
    all += std::string("--- ") + name + "\n" + ReadFile(Own(name));
  return all;
}

}  // namespace postern::ctl_command::selftest
