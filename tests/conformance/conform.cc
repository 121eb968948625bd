// SPDX-License-Identifier: Apache-2.0
// conform.cc - the actor's loop, and the commands that run others: in a thread, in a child, under a
// signal.
//
// One line in, one line out. `bg ID CMD ...` starts a call that may block in a thread, `state ID
// MS` says whether it is done after MS, `join ID` prints what came of it. `child CMD ... ; CMD ...`
// makes calls in a forked child and prints them all.

#include "conform.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

namespace conform {
namespace {

std::mutex fds_mutex;
std::map<std::string, int> fds;  // guarded by fds_mutex

struct Background {
  std::thread thread;
  std::shared_ptr<std::atomic<pid_t>> tid = std::make_shared<std::atomic<pid_t>>(0);
  std::shared_future<std::string> result;
};
std::map<std::string, Background> backgrounds;  // main thread only

struct Child {
  pid_t pid;
  int output;
};
std::map<std::string, Child> children;  // main thread only

volatile sig_atomic_t sigpipes;

std::string Run(const Args& words);

Args Tail(const Args& words, size_t from) {
  return {words.begin() + static_cast<std::ptrdiff_t>(from), words.end()};
}

std::string RunBackground(const Args& args) {
  std::promise<std::string> promise;
  Background& b = backgrounds[args[0]];
  b.result = promise.get_future().share();
  b.thread = std::thread([p = std::move(promise), words = Tail(args, 1), tid = b.tid]() mutable {
    tid->store(gettid());
    p.set_value(Run(words));
  });
  return "started";
}

// On a busy machine a thread may take its time to get to where it sleeps.
bool Sleeps(pid_t tid) {
  std::ifstream stat("/proc/self/task/" + std::to_string(tid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(')');
  return tid != 0 && end != std::string::npos && text.size() > end + 2 && text[end + 2] == 'S';
}

std::string State(const Args& args) {
  constexpr int kPatience = 100;
  const auto& b = backgrounds.at(args[0]);
  for (int i = 0; i < kPatience; ++i) {
    const auto status = b.result.wait_for(std::chrono::milliseconds(Number(args[1])));
    if (status == std::future_status::ready) return "done";
    if (Sleeps(b.tid->load())) break;
  }
  return "blocked";
}

std::string Join(const Args& args) {
  Background& b = backgrounds.at(args[0]);
  std::string result = b.result.get();
  b.thread.join();
  backgrounds.erase(args[0]);
  return result;
}

std::string Interrupt(const Args& args) {
  return Outcome(pthread_kill(backgrounds.at(args[0]).thread.native_handle(), SIGUSR1));
}

// Runs commands separated by ";" in a forked child, which then ends by _exit: its descriptors
// close.
Child Fork(const Args& words) {
  int output[2];
  if (pipe(output) != 0) return {-1, -1};
  const pid_t pid = fork();
  if (pid != 0) {
    close(output[1]);
    return {pid, output[0]};
  }
  close(output[0]);
  std::string all;
  Args command;
  for (size_t i = 0; i <= words.size(); ++i) {
    if (i < words.size() && words[i] != ";") {
      command.push_back(words[i]);
      continue;
    }
    all += (all.empty() ? "" : " | ") + Run(command);
    command.clear();
  }
  if (write(output[1], all.data(), all.size()) < 0) _exit(1);
  _exit(0);
}

std::string Collect(const Child& child) {
  std::string all;
  char data[4096];
  for (ssize_t n; (n = read(child.output, data, sizeof data)) > 0;)
    all.append(data, static_cast<size_t>(n));
  close(child.output);
  int status = 0;
  waitpid(child.pid, &status, 0);
  return all + (WIFSIGNALED(status) ? " killed by " + std::to_string(WTERMSIG(status)) : "");
}

std::string RunChild(const Args& args) { return Collect(Fork(args)); }

std::string StartChild(const Args& args) {
  children[args[0]] = Fork(Tail(args, 1));
  return "started";
}

std::string WaitChild(const Args& args) {
  std::string result = Collect(children.at(args[0]));
  children.erase(args[0]);
  return result;
}

std::string KillChild(const Args& args) { return Outcome(kill(children.at(args[0]).pid, SIGKILL)); }

// exec of a program that knows nothing of us, with the socket as its standard input and output.
std::string Exec(const Args& args) {
  const int fd = Fd(args[0]);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(fd, 0);
    dup2(fd, 1);
    std::vector<char*> argv;
    for (size_t i = 1; i < args.size(); ++i) argv.push_back(const_cast<char*>(args[i].c_str()));
    argv.push_back(nullptr);
    for (int i = 3; i < 1024; ++i) close(i);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  children["exec"] = {pid, open("/dev/null", 0)};
  return "started";
}

std::string Sleep(const Args& args) {
  usleep(static_cast<useconds_t>(Number(args[0]) * 1000));
  return "ok";
}

std::string Sigpipes(const Args&) {
  const int count = sigpipes;
  sigpipes = 0;
  return std::to_string(count);
}

std::string SigpipeAction(const Args& args) {
  signal(SIGPIPE, args[0] == "default" ? SIG_DFL : SIG_IGN);
  return "ok";
}

// Milliseconds that a command takes, only as "at least as long as it has to".
std::string AtLeast(const Args& args) {
  const auto start = std::chrono::steady_clock::now();
  const std::string result = Run(Tail(args, 1));
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
                        std::chrono::steady_clock::now() - start)
                        .count();
  return result + (took + 5 >= Number(args[0]) ? " after long enough" : " too early");
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { sigpipes = sigpipes + 1; };
  sigaction(SIGPIPE, &action, nullptr);
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);  // no SA_RESTART: calls end with EINTR
}

// As if the actor had just begun: nothing is open, no name means anything.
std::string Reset(const Args&) {
  std::set<int> open;
  {
    const std::lock_guard lock(fds_mutex);
    for (const auto& [name, fd] : fds) open.insert(fd);
    fds.clear();
  }
  for (const int fd : open) close(fd);
  ForgetTags();
  sigpipes = 0;
  CatchSignals();
  return "ok";
}

const Entry kRunCommands[] = {
    {"bg", 2, RunBackground},    {"state", 2, State},         {"join", 1, Join},
    {"interrupt", 1, Interrupt}, {"child", 1, RunChild},      {"childbg", 2, StartChild},
    {"childwait", 1, WaitChild}, {"childkill", 1, KillChild}, {"exec", 2, Exec},
    {"sleep", 1, Sleep},         {"sigpipes", 0, Sigpipes},   {"sigpipe", 1, SigpipeAction},
    {"atleast", 2, AtLeast},     {"reset", 0, Reset},         {nullptr, 0, nullptr}};

std::string Run(const Args& words) {
  if (words.empty()) return "";
  for (const Entry* table : {kRunCommands, kSocketCommands, kDataCommands, kEventCommands}) {
    for (; table->name != nullptr; ++table) {
      if (words[0] != table->name) continue;
      if (words.size() <= table->args_min) return "SCRIPT ERROR: " + words[0] + " wants more";
      return table->run(Tail(words, 1));
    }
  }
  return "SCRIPT ERROR: no command " + words[0];
}

}  // namespace

int Fd(const std::string& name) {
  const std::lock_guard lock(fds_mutex);
  const auto found = fds.find(name);
  return found == fds.end() ? -1 : found->second;
}

void SetFd(const std::string& name, int fd) {
  const std::lock_guard lock(fds_mutex);
  fds[name] = fd;
}

std::string Errno() {
  return std::string("-1 ") + (strerrorname_np(errno) != nullptr ? strerrorname_np(errno) : "?");
}

std::string Outcome(long result) { return result < 0 ? Errno() : std::to_string(result); }

std::string Made(const std::string& name, int fd) {
  if (fd < 0) return Errno();
  SetFd(name, fd);
  return "ok";
}

std::string Data(const std::string& bytes) {
  if (bytes.size() <= 60) return "\"" + bytes + "\"";
  uint64_t hash = 14695981039346656037u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::ostringstream out;
  out << bytes.size() << " bytes, hash " << std::hex << hash;
  return out.str();
}

std::string Expand(const std::string& text) {
  const size_t star = text.find('*');
  if (star == std::string::npos) return text == "-" ? "" : text;
  std::string out;
  for (long i = Number(text.substr(star + 1)); i > 0; --i) out += text.substr(0, star);
  return out;
}

int MessageFlags(const Args& args, size_t from) {
  static const std::map<std::string, int> kFlags = {
      {"PEEK", MSG_PEEK},         {"WAITALL", MSG_WAITALL},
      {"DONTWAIT", MSG_DONTWAIT}, {"OOB", MSG_OOB},
      {"NOSIGNAL", MSG_NOSIGNAL}, {"MORE", MSG_MORE},
      {"TRUNC", MSG_TRUNC},       {"WAITFORONE", MSG_WAITFORONE},
      {"EOR", MSG_EOR},           {"DONTROUTE", MSG_DONTROUTE},
      {"ERRQUEUE", MSG_ERRQUEUE}, {"CONFIRM", MSG_CONFIRM}};
  int flags = 0;
  for (size_t i = from; i < args.size(); ++i) flags |= kFlags.at(args[i]);
  return flags;
}

long Number(const std::string& text) { return strtol(text.c_str(), nullptr, 0); }

static int Loop() {
  CatchSignals();
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    Args words;
    for (std::string word; in >> word;) words.push_back(word);
    std::cout << Run(words) << std::endl;
  }
  _exit(0);  // threads may still block
}

}  // namespace conform

int main() { return conform::Loop(); }
