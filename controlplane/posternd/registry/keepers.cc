// keepers.cc - starting, asking and burying keepers.
// SPDX-License-Identifier: Apache-2.0
#include "keepers.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../kit/log.h"

namespace postern::daemon {
namespace {

constexpr int kStackFd = 3;
// Each may keep a descriptor open. A process of the family waits for the answer to one at a time.
constexpr size_t kJobsMax = 4 * kProcesses.usual;

// Beside our own program, in the build tree as when installed.
std::string KeeperPath() {
  char self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || static_cast<size_t>(n) == sizeof(self)) return "";
  const std::string path(self, static_cast<size_t>(n));
  return path.substr(0, path.rfind('/') + 1) + "postern-keeper";
}

}  // namespace

Keepers::Keepers(event_base* base, std::string runtime_dir)
    : runtime_dir_(std::move(runtime_dir)),
      child_(base, SIGCHLD, static_cast<short>(EV_SIGNAL | EV_PERSIST), [this] { Reap(); }) {
  child_.Add();
}

pid_t Keepers::Spawn(const Stack& stack) const {
  std::string path = KeeperPath();
  // It carries other people's bytes in the background: it sleeps, and never spins.
  std::string dir = "POSTERN_RUNTIME_DIR=" + runtime_dir_, spin = "POSTERN_SPIN_USEC=0";
  std::string user = UserToBe(stack);
  char* argv[] = {path.data(), user.empty() ? nullptr : user.data(), nullptr};
  char* envp[] = {dir.data(), spin.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // From a number that is not the target's, so that close-on-exec is cleared in every case.
  UniqueFd copy(fcntl(stack.fd->get(), F_DUPFD_CLOEXEC, kStackFd + 1));
  posix_spawn_file_actions_adddup2(&actions, copy.get(), kStackFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, path.c_str(), &actions, &attributes, argv, envp);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) Warn("cannot start %s: %s", path.c_str(), strerror(error));
  return error == 0 ? pid : -1;
}

pid_t Keepers::Pid(const pstn_uuid& stack) const {
  const auto it = keepers_.find(stack);
  if (it == keepers_.end()) return 0;
  return it->second.line != nullptr ? it->second.line->pid() : it->second.pid;
}

void Keepers::Export(Client& asker, const Stack& stack, const ctl::Msg& request, UniqueFd fd) {
  if (!fd.ok() || stack.s->eps.At(EpIndex(request.a)) == nullptr)
    return asker.Reply(request, EINVAL);
  ctl::Msg job = request;
  job.addr = {};  // where a listener is whose processes are dead, is ours to say
  Ask(&asker, stack, job, Share(std::move(fd)));
}

void Keepers::PassQueue(const Stack& stack, const ctl::Msg& listener, UniqueFd fd,
                        std::function<void()> done) {
  if (fd.ok()) return Ask(nullptr, stack, listener, Share(std::move(fd)), std::move(done));
  if (done) done();
}

void Keepers::Wire(Client* asker, const Stack& stack, const ctl::Msg& request) {
  Ask(asker, stack, request, stack.wire);
}

void Keepers::Ask(Client* asker, const Stack& stack, const ctl::Msg& request, SharedFd fd,
                  std::function<void()> done) {
  const auto fail = [&](int error) {
    if (asker != nullptr) asker->Reply(request, error);
    if (done) done();
  };
  Keeper& keeper = keepers_[stack.id];
  if (keeper.jobs.size() >= kJobsMax) return fail(EBUSY);
  if (keeper.line == nullptr && keeper.pid == 0) {
    keeper.pid = Spawn(stack);
    if (keeper.pid < 0) {
      keepers_.erase(stack.id);
      return fail(ENOEXEC);
    }
  }
  if (++next_seq_ == 0) ++next_seq_;
  Job& job = keeper.jobs[next_seq_] = {asker, request, std::move(fd), std::move(done)};
  if (keeper.line != nullptr) Send(keeper, next_seq_, job);
}

void Keepers::Send(Keeper& keeper, uint32_t seq, Job& job) {
  ctl::Msg message = job.request;
  message.seq = seq;
  keeper.line->Send(message, std::exchange(job.fd, nullptr));
  job.sent = true;
}

void Keepers::OnKeeper(Client& client, const pstn_uuid& stack) {
  Keeper& keeper = keepers_[stack];
  if (keeper.line != nullptr && keeper.line != &client) keeper.line->Break();
  keeper.line = &client;
  for (auto& [seq, job] : keeper.jobs) {
    if (!job.sent) Send(keeper, seq, job);
  }
}

bool Keepers::OnAnswer(Client& client, const ctl::Msg& answer) {
  for (auto& [stack, keeper] : keepers_) {
    if (keeper.line != &client) continue;
    const auto job = keeper.jobs.find(answer.seq);
    if (job == keeper.jobs.end()) return true;
    if (answer.status != 0)
      Inform("stack %s: its keeper could not take endpoint %u over: %s", Text(stack).c_str(),
             job->second.request.a, strerror(answer.status));
    if (job->second.asker != nullptr) {
      ctl::Msg reply;
      reply.type = job->second.request.type;
      reply.seq = job->second.request.seq;
      reply.status = answer.status;
      reply.a = answer.a;
      reply.b = answer.b;
      reply.c = answer.c;
      job->second.asker->Send(reply);
    }
    const auto done = std::move(job->second.done);
    keeper.jobs.erase(job);
    if (done) done();
    return true;
  }
  return false;
}

// It has gone.
void Keepers::Fail(ByStack::iterator at) {
  const auto jobs = std::move(at->second.jobs);
  keepers_.erase(at);
  for (const auto& [seq, job] : jobs) {
    if (job.asker != nullptr) job.asker->Reply(job.request, EIO);
    if (job.done) job.done();
  }
  if (on_lost) on_lost();
}

void Keepers::OnGone(Client& client) {
  for (auto& [stack, keeper] : keepers_) {
    for (auto& [seq, job] : keeper.jobs) {
      if (job.asker == &client) job.asker = nullptr;
    }
  }
  for (auto it = keepers_.begin(); it != keepers_.end(); ++it) {
    if (it->second.line == &client) return Fail(it);
  }
}

void Keepers::Reap() {
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return;
    if (on_child) on_child(pid, status);
    for (auto it = keepers_.begin(); it != keepers_.end(); ++it) {
      if (it->second.pid != pid) continue;
      Note("keeper %d has ended, status %d", pid, status);
      if (it->second.line == nullptr) Fail(it);  // else OnGone, when what it has sent has been read
      break;
    }
  }
}

}  // namespace postern::daemon
