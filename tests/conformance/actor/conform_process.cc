// conform_process.cc - commands that make processes: fork, vfork, exec, posix_spawn.
// SPDX-License-Identifier: Apache-2.0
//
// `child CMD ... ; CMD ...` makes calls in a forked child and prints them all. `execself`,
// `vforkself` and `spawnself` do so in a new image of this program, which knows the descriptors by
// the numbers that their names had: what close-on-exec or a file action has closed is EBADF there.
// `become` replaces the actor itself.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "conform.h"

namespace conform {
namespace {

struct Child {
  pid_t pid;
  int output;
};
std::map<std::string, Child> children;  // main thread only

// The command line of an image that goes on where this one is.
class Image {
 public:
  explicit Image(const Args& commands) {
    words_.emplace_back("conform");
    for (const auto& [name, fd] : AllFds()) {
      if (fd >= 0) words_.push_back("fd:" + name + "=" + std::to_string(fd));
    }
    for (const auto& [name, tag] : AllTags())
      words_.push_back("tag:" + name + "=" + std::to_string(tag));
    words_.insert(words_.end(), commands.begin(), commands.end());
    for (auto& word : words_) argv_.push_back(word.data());
    argv_.push_back(nullptr);
  }
  char** argv() { return argv_.data(); }

 private:
  Args words_;
  std::vector<char*> argv_;
};

constexpr const char* kSelf = "/proc/self/exe";

Child Fork(const Args& words, bool with_exec) {
  int output[2];
  if (pipe(output) != 0) return {-1, -1};
  Image image(words);
  const pid_t pid = fork();
  if (pid != 0) {
    close(output[1]);
    return {pid, output[0]};
  }
  close(output[0]);
  if (with_exec) {
    dup2(output[1], 1);
    close(output[1]);
    execv(kSelf, image.argv());
    _exit(127);
  }
  const std::string all = RunAll(words);
  if (write(output[1], all.data(), all.size()) < 0) _exit(1);
  _exit(0);  // its descriptors close
}

Child VforkExec(const Args& words) {
  int output[2];
  if (pipe(output) != 0) return {-1, -1};
  Image image(words);
  char** argv = image.argv();
  const pid_t pid = vfork();
  if (pid == 0) {
    dup2(output[1], 1);
    execv(kSelf, argv);
    _exit(127);
  }
  close(output[1]);
  return {pid, output[0]};
}

// `close=NAME`, `dup=NAME` (to number 250), `keep=NAME` (dup2 to itself: no close-on-exec), `none`;
// by comma.
Child Spawn(const std::string& actions_text, const Args& words) {
  constexpr int kHigh = 250;
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return {-1, -1};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  Args names;
  for (size_t at = 0; at < actions_text.size();) {
    const size_t end = std::min(actions_text.find(',', at), actions_text.size());
    const std::string one = actions_text.substr(at, end - at);
    const size_t equals = one.find('=');
    const int fd = equals == std::string::npos ? -1 : Fd(one.substr(equals + 1));
    if (one.starts_with("close=")) posix_spawn_file_actions_addclose(&actions, fd);
    if (one.starts_with("keep=")) posix_spawn_file_actions_adddup2(&actions, fd, fd);
    if (one.starts_with("dup=")) {
      posix_spawn_file_actions_adddup2(&actions, fd, kHigh);
      names.push_back("fd:high=" + std::to_string(kHigh));
    }
    at = end + 1;
  }
  names.insert(names.end(), words.begin(), words.end());
  Image image(names);
  pid_t pid = -1;
  errno = posix_spawn(&pid, kSelf, &actions, nullptr, image.argv(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(output[1]);
  return {pid, output[0]};
}

std::string Collect(const Child& child) {
  if (child.pid < 0) {
    const std::string why = Errno();
    close(child.output);
    return "no child: " + why;
  }
  std::string all;
  char data[4096];
  for (ssize_t n; (n = read(child.output, data, sizeof data)) > 0;)
    all.append(data, static_cast<size_t>(n));
  close(child.output);
  while (!all.empty() && all.back() == '\n') all.pop_back();
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) continue;
  return all + (WIFSIGNALED(status) ? " killed by " + std::to_string(WTERMSIG(status)) : "") +
         (WIFEXITED(status) && WEXITSTATUS(status) != 0 ? " no exec" : "");
}

std::string RunChild(const Args& args) { return Collect(Fork(args, false)); }
std::string RunExec(const Args& args) { return Collect(Fork(args, true)); }
std::string RunVfork(const Args& args) { return Collect(VforkExec(args)); }
std::string RunSpawn(const Args& args) { return Collect(Spawn(args[0], Tail(args, 1))); }

std::string StartChild(const Args& args) {
  children[args[0]] = Fork(Tail(args, 1), false);
  return "started";
}

std::string StartExec(const Args& args) {
  children[args[0]] = Fork(Tail(args, 1), true);
  return "started";
}

std::string WaitChild(const Args& args) {
  std::string result = Collect(children.at(args[0]));
  children.erase(args[0]);
  return result;
}

std::string KillChild(const Args& args) { return Outcome(kill(children.at(args[0]).pid, SIGKILL)); }

std::string Become(const Args&) {
  Image image({"became"});
  execv(kSelf, image.argv());
  return Errno();
}

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

}  // namespace

std::string RunAll(const Args& words) {
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
  return all;
}

bool Inherit(const std::string& word) {
  const size_t colon = word.find(':'), equals = word.find('=');
  if (colon == std::string::npos || equals == std::string::npos) return false;
  const std::string kind = word.substr(0, colon);
  const std::string name = word.substr(colon + 1, equals - colon - 1);
  const long value = Number(word.substr(equals + 1));
  if (kind == "fd") SetFd(name, static_cast<int>(value));
  if (kind == "tag") SetTag(name, static_cast<uint64_t>(value));
  return kind == "fd" || kind == "tag";
}

const Entry kProcessCommands[] = {
    {"child", 1, RunChild},      {"childbg", 2, StartChild}, {"childwait", 1, WaitChild},
    {"childkill", 1, KillChild}, {"execself", 1, RunExec},   {"execselfbg", 2, StartExec},
    {"vforkself", 1, RunVfork},  {"spawnself", 2, RunSpawn}, {"become", 0, Become},
    {"exec", 2, Exec},           {nullptr, 0, nullptr}};

}  // namespace conform
