// SPDX-License-Identifier: Apache-2.0
// conform.cc - the actor's loop, and the commands that run others: in a thread, in a child, under a
// signal.
//
// One line in, one line out. `bg ID CMD ...` starts a call that may block in a thread, `state ID
// MS` says whether it is done after MS, `join ID` prints what came of it. `child CMD ... ; CMD ...`
// makes calls in a forked child and prints them all.

#include "conform.h"
#include "ring_calls.h"

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
#include <initializer_list>
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
std::map<std::string, int> named_fds;  // guarded by fds_mutex

struct Background {
  std::thread thread;
  std::shared_ptr<std::atomic<pid_t>> tid = std::make_shared<std::atomic<pid_t>>(0);
  std::shared_future<std::string> result;
};
std::map<std::string, Background> backgrounds;  // main thread only

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

std::string Sleep(const Args& args) {
  usleep(static_cast<useconds_t>(Number(args[0]) * 1000));
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

// How many bytes a call has moved, where that is the kernel's choice.
std::string Some(const Args& args) {
  const std::string result = Run(args);
  return result.find_first_not_of("0123456789") != std::string::npos || result == "0" ? result
                                                                                      : "some";
}

// As if the actor had just begun: nothing is open, no name means anything.
std::string Reset(const Args&) {
  std::set<int> open;
  {
    const std::lock_guard lock(fds_mutex);
    for (auto one = named_fds.begin(); one != named_fds.end();) {
      const bool keep = IsLine(one->first);
      if (!keep) open.insert(one->second);
      one = keep ? std::next(one) : named_fds.erase(one);
    }
  }
  for (const int fd : open) close(fd);
  DrainLines();
  ForgetTags();
  CatchSignals();
  by::ForgetRings();
  return "ok";
}

const Entry kRunCommands[] = {
    {"bg", 2, RunBackground},    {"state", 2, State}, {"join", 1, Join},
    {"interrupt", 1, Interrupt}, {"sleep", 1, Sleep}, {"atleast", 2, AtLeast},
    {"some", 1, Some},           {"reset", 0, Reset}, {nullptr, 0, nullptr}};

}  // namespace

std::string Run(const Args& words) {
  if (words.empty()) return "";
  for (const Entry* table :
       {kRunCommands, kSocketCommands, kNameCommands, kOptionCommands, kDataCommands, kPipeCommands,
        kEventCommands, kProcessCommands, kSignalCommands, kMemoryCommands, kRingCommands}) {
    for (; table->name != nullptr; ++table) {
      if (words[0] != table->name) continue;
      if (words.size() <= table->args_min) return "SCRIPT ERROR: " + words[0] + " wants more";
      return table->run(Tail(words, 1));
    }
  }
  return "SCRIPT ERROR: no command " + words[0];
}

Args Tail(const Args& words, size_t from) {
  return {words.begin() + static_cast<std::ptrdiff_t>(from), words.end()};
}

int Fd(const std::string& name) {
  const std::lock_guard lock(fds_mutex);
  const auto found = named_fds.find(name);
  return found == named_fds.end() ? -1 : found->second;
}

void SetFd(const std::string& name, int fd) {
  const std::lock_guard lock(fds_mutex);
  named_fds[name] = fd;
}

std::map<std::string, int> AllFds() {
  const std::lock_guard lock(fds_mutex);
  return named_fds;
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
  const std::string unit = text.substr(0, star);
  const long times = Number(text.substr(star + 1));
  const size_t size = unit.size() * static_cast<size_t>(std::max(times, 0L));
  std::string out;
  out.reserve(size);
  if (size > 0) out = unit;
  while (out.size() < size) out.append(out, 0, size - out.size());  // doubles
  return out;
}

int MessageFlags(const Args& args, size_t from) {
  static const std::map<std::string, int> kFlags = {
      {"PEEK", MSG_PEEK},         {"WAITALL", MSG_WAITALL},
      {"DONTWAIT", MSG_DONTWAIT}, {"OOB", MSG_OOB},
      {"NOSIGNAL", MSG_NOSIGNAL}, {"MORE", MSG_MORE},
      {"TRUNC", MSG_TRUNC},       {"WAITFORONE", MSG_WAITFORONE},
      {"EOR", MSG_EOR},           {"DONTROUTE", MSG_DONTROUTE},
      {"ERRQUEUE", MSG_ERRQUEUE}, {"CONFIRM", MSG_CONFIRM},
      {"ZEROCOPY", MSG_ZEROCOPY}, {"FASTOPEN", MSG_FASTOPEN},
      {"UNKNOWN", 0x800000}};
  int flags = 0;
  for (size_t i = from; i < args.size(); ++i) flags |= kFlags.at(args[i]);
  return flags;
}

void* Nowhere() { return reinterpret_cast<void*>(8); }

long Number(const std::string& text) { return strtol(text.c_str(), nullptr, 0); }

// A signal may come while we wait for the next line.
static bool GetLine(std::string* line) {
  line->clear();
  char c = 0;
  for (ssize_t n; (n = read(0, &c, 1)) != 0;) {
    if (n < 0 && errno != EINTR) return false;
    if (n < 0) continue;
    if (c == '\n') return true;
    line->push_back(c);
  }
  return false;
}

static int Loop() {
  CatchSignals();
  for (std::string line; GetLine(&line);) {
    std::istringstream in(line);
    Args words;
    for (std::string word; in >> word;) words.push_back(word);
    std::cout << Run(words) << std::endl;
  }
  _exit(0);  // threads may still block
}

}  // namespace conform

// `fd:NAME=NUMBER` and `tag:NAME=NUMBER` are what an image before this one knew; then come the
// commands of a child, or nothing: an actor.
int main(int argc, char** argv) {
  conform::Args words;
  for (int i = 1; i < argc; ++i) {
    if (!conform::Inherit(argv[i])) words.emplace_back(argv[i]);
  }
  if (words.empty()) return conform::Loop();
  conform::CatchSignals();
  std::cout << (words[0] == "became" ? "ok" : conform::RunAll(words)) << std::endl;
  if (words[0] == "became") return conform::Loop();
  _exit(0);
}
