// selftest_process.cc - see selftest_process.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>

namespace postern::ctl_command::selftest {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(const std::vector<std::string>& more) {
  std::vector<std::string> all = more;
  for (char** at = environ; *at != nullptr; at++) {
    if (strncmp(*at, "POSTERN_", 8) != 0 && strncmp(*at, "LD_PRELOAD=", 11) != 0)
      all.emplace_back(*at);
  }
  return all;
}

}  // namespace

Process::Process(const Start& start) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) Fail("pipe");
  Fd in_read(in[0]);
  in_ = Fd(in[1]);
  if (pipe2(out, O_CLOEXEC) != 0) Fail("pipe");
  Fd out_write(out[1]);
  out_ = Fd(out[0]);
  std::vector<std::string> words = start.argv, environment = Environment(start.env);
  const std::vector<char*> argv = Pointers(words), env = Pointers(environment);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) Fail("fork");
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  if (start.netns >= 0 && setns(start.netns, CLONE_NEWNET) != 0) _exit(126);
  const int log = open(start.log.empty() ? "/dev/null" : start.log.c_str(),
                       O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(in_read.get(), 0);
  dup2(out_write.get(), 1);
  if (log >= 0) dup2(log, 2);
  (void)syscall(SYS_close_range, 3U, ~0U, 0U);
  signal(SIGPIPE, SIG_DFL);
  execve(argv[0], argv.data(), env.data());
  _exit(127);
}

Process::~Process() { End(SIGKILL); }

bool Process::running() {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

void Process::Signal(int number) {
  if (running()) kill(pid_, number);
}

void Process::End(int number) {
  if (!running()) return;
  kill(pid_, number);
  kill(pid_, SIGCONT);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void Process::Write(const std::string& line) {
  const std::string text = line + "\n";
  if (write(in_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    Fail("a program of the self-test has ended");
}

std::string Process::Read(unsigned timeout_ms) {
  const uint64_t until = NowMs() + timeout_ms;
  for (;;) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      const std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const uint64_t now = NowMs();
    pollfd p{out_.get(), POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(until > now ? until - now : 0)) <= 0) return "";
    char room[256];
    const ssize_t n = read(out_.get(), room, sizeof(room));
    if (n <= 0) return "";
    buffer_.append(room, static_cast<size_t>(n));
  }
}

std::string Sibling(const char* built, const char* installed) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* name : {built, installed}) {
    const fs::path path = (dir / name).lexically_normal();
    if (fs::exists(path)) return path;
  }
  return "";
}

}  // namespace postern::ctl_command::selftest
