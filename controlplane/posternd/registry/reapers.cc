// reapers.cc - see reapers.h.
// SPDX-License-Identifier: Apache-2.0
#include "reapers.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../kit/log.h"
#include "registry.h"
#include "stack_words.h"

namespace postern::daemon {
namespace {

constexpr int kLineFd = 3;
constexpr uint32_t kStayMs = 1000;   // after the last job
constexpr uint32_t kJobMs = 10'000;  // by the clock; the largest family takes a second or two
constexpr uint32_t kKillMs = 1000;   // then what was killed is gone
constexpr size_t kRunningMax = 64;
constexpr uint32_t kStartAgainMs = 200, kStartsMax = 25;

// Beside our own program, in the build tree as when installed.
std::string ReaperPath() {
  char self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || static_cast<size_t>(n) == sizeof(self)) return "";
  const std::string path(self, static_cast<size_t>(n));
  return path.substr(0, path.rfind('/') + 1) + "postern-reaper";
}

const char* NameOf(ctl::Type job) {
  switch (job) {
    case ctl::Type::kJobListeners:
      return "closing a dead process's listeners";
    case ctl::Type::kJobSlot:
      return "dropping what a dead process held";
    case ctl::Type::kJobEnd:
      return "ending the family's connections";
    case ctl::Type::kJobPeerDead:
      return "ending connections with a dead family";
    case ctl::Type::kJobAdmit:
      return "admitting a connection";
    default:
      return "a job";
  }
}

std::string Cause(int status) {
  if (WIFSIGNALED(status)) return std::string("killed by SIG") + sigabbrev_np(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

int Spawn(const std::string& path, const Stack& stack, int line, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // From a number that is not the target's, so that close-on-exec is cleared in every case.
  UniqueFd copy(fcntl(line, F_DUPFD_CLOEXEC, kLineFd + 1));
  posix_spawn_file_actions_adddup2(&actions, copy.get(), kLineFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = path, user = UserToBe(stack);
  char* argv[] = {name.data(), user.empty() ? nullptr : user.data(), nullptr};
  char* envp[] = {nullptr};
  const int error = posix_spawn(&pid, path.c_str(), &actions, &attributes, argv, envp);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

struct Reapers::Reaper {
  Reaper(event_base* base, const pstn_uuid& of, Reapers& of_all)
      : owner(of_all), stack(of), timer(base, -1, 0, [this] { Late(); }) {}

  // Idle for long enough, or not done in time: killed, and the rest follows from its end.
  void Late() {
    if (!busy) return owner.Retire(*this);
    // It sleeps where no signal wakes it, since another process holds a lock of the kernel's.
    if (std::exchange(late, true)) return owner.Fail(*this, "it can't be killed");
    timer.AddMs(kKillMs);
    Kill();
  }
  void Kill() const {
    if (pid > 0) owner.end(pid);
  }

  Reapers& owner;
  const pstn_uuid stack;
  pid_t pid = 0;  // 0: none is running
  std::unique_ptr<Client> line;
  std::map<uint32_t, pstn_uuid> links;  // that it knows
  std::deque<Job> jobs;                 // the first one is being done if `busy`
  bool busy = false, late = false, told = false;
  uint32_t seq = 0, starts = 0;
  Event timer;
};

Reapers::Reapers(event_base* base)
    : start([](const Stack& stack, int line, pid_t& pid) {
        return Spawn(ReaperPath(), stack, line, pid);
      }),
      end([](pid_t pid) { (void)kill(pid, SIGKILL); }),
      base_(base),
      bury_(base, -1, 0, [this] { Bury(); }),
      again_(base, -1, 0, [this] { PumpOthers(); }) {}

Reapers::~Reapers() {
  for (const auto& [id, reaper] : reapers_) reaper->Kill();
}

Reapers::Reaper& Reapers::Of(const pstn_uuid& stack) {
  auto& place = reapers_[stack];
  if (place == nullptr) place = std::make_unique<Reaper>(base_, stack, *this);
  return *place;
}

size_t Reapers::Running() const {
  size_t running = 0;
  for (const auto& [id, reaper] : reapers_) running += reaper->pid != 0 ? 1u : 0u;
  return running;
}

void Reapers::Do(const Stack& stack, const ctl::Msg& job, Done done) {
  Of(stack.id).jobs.push_back({job, std::move(done)});
  if (!again_.pending()) again_.AddMs(0);
}

void Reapers::PumpOthers() {
  std::vector<pstn_uuid> ids;
  for (const auto& [id, reaper] : reapers_) {
    if (!reaper->busy && !reaper->jobs.empty()) ids.push_back(id);
  }
  for (const pstn_uuid& id : ids) {
    const auto it = reapers_.find(id);
    if (it != reapers_.end()) Pump(*it->second);
  }
}

void Reapers::Pump(Reaper& reaper) {
  if (reaper.busy || reaper.jobs.empty()) return;
  const Stack* const stack = find(reaper.stack);
  if (stack == nullptr) return;
  if (reaper.pid == 0 && !Start(reaper, *stack)) return;
  Tell(reaper, *stack);
  ctl::Msg& ask = reaper.jobs.front().ask;
  ask.seq = ++reaper.seq;
  reaper.busy = true;
  reaper.timer.AddMs(kJobMs);
  reaper.line->Send(ask);
}

// False: it has to wait, or has failed.
bool Reapers::Start(Reaper& reaper, const Stack& stack) {
  if (Running() >= kRunningMax) {
    Reaper* idle = nullptr;
    for (const auto& [id, other] : reapers_) {
      if (other->pid != 0 && !other->busy && other->jobs.empty()) idle = other.get();
    }
    if (idle == nullptr) return false;  // one that ends makes room
    Retire(*idle);
  }
  int ends[2];
  int error = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0 ? 0 : errno;
  if (error == 0) {
    UniqueFd own(ends[0]), theirs(ends[1]);
    fcntl(own.get(), F_SETFL, O_NONBLOCK);
    error = start(stack, theirs.get(), reaper.pid);
    if (error == 0) {
      reaper.starts = 0;
      reaper.links.clear();
      reaper.told = false;
      // Its end is known by SIGCHLD; a line that breaks before is of no more use.
      reaper.line = std::make_unique<Client>(
          base_, std::move(own), ucred{reaper.pid, geteuid(), getegid()},
          [this, &reaper](Client&, const ctl::Msg& m, UniqueFd) { OnAnswer(reaper, m); },
          [&reaper](Client&) { reaper.Kill(); });
      return true;
    }
  }
  reaper.pid = 0;
  if (++reaper.starts >= kStartsMax) {
    Fail(reaper, std::string("it can't be started: ") + strerror(error));
    return false;
  }
  if (reaper.starts == 1)
    Warn("stack %s: cannot start %s: %s", Text(stack.id).c_str(), ReaperPath().c_str(),
         strerror(error));
  if (!again_.pending()) again_.AddMs(kStartAgainMs);
  return false;
}

// What it does not know yet, before the job.
void Reapers::Tell(Reaper& reaper, const Stack& stack) {
  ctl::Msg message;
  if (!std::exchange(reaper.told, true)) {
    message.type = ctl::Type::kJobDirectory;
    reaper.line->Send(message, directory_);
    message.type = ctl::Type::kJobSender;
    if (sender_ != nullptr) reaper.line->Send(message, sender_);
    message.type = ctl::Type::kJobStack;
    reaper.line->Send(message, stack.fd);
  }
  message.type = ctl::Type::kJobLink;
  for (const auto& [idx, link] : stack.links) {
    const auto known = reaper.links.find(idx);
    if (known != reaper.links.end() && Same(known->second, link->id)) continue;
    reaper.links[idx] = link->id;
    message.a = idx;
    message.id = link->id;
    reaper.line->Send(message, link->fd);
  }
}

void Reapers::OnAnswer(Reaper& reaper, const ctl::Msg& answer) {
  if (!reaper.busy || reaper.jobs.empty() || answer.seq != reaper.jobs.front().ask.seq ||
      answer.type != reaper.jobs.front().ask.type) {
    return reaper.Kill();  // no answer of an honest one
  }
  reaper.busy = false;
  const Job job = std::move(reaper.jobs.front());
  reaper.jobs.pop_front();
  Inform("stack %s: its reaper has done %s: %s", Text(reaper.stack).c_str(), NameOf(job.ask.type),
         strerror(answer.status));
  reaper.timer.AddMs(kStayMs);
  const ctl::Msg copy = answer;
  if (copy.d != 0) Retire(reaper);
  if (!again_.pending()) again_.AddMs(0);
  if (job.done) job.done(copy.status >= 0 ? copy.status : EPROTO, copy);
}

// It is idle, and holds nothing.
void Reapers::Retire(Reaper& reaper) {
  reaper.Kill();
  reaper.pid = 0;
  if (reaper.line != nullptr) reaper.line->Break();
  if (const Stack* const stack = find(reaper.stack)) PutReaperGone(*stack);
  const auto it = reapers_.find(reaper.stack);
  if (it == reapers_.end() || it->second.get() != &reaper) return;
  std::deque<Job> jobs = std::move(reaper.jobs);
  reaper.jobs.clear();
  reaper.timer.Del();
  dead_.push_back(std::move(it->second));
  reapers_.erase(it);
  if (!jobs.empty()) Of(dead_.back()->stack).jobs = std::move(jobs);
  bury_.AddMs(0);
  if (!again_.pending()) again_.AddMs(0);
}

void Reapers::Forget(const Stack& stack) {
  const auto it = reapers_.find(stack.id);
  if (it == reapers_.end()) return;
  it->second->jobs.clear();
  Retire(*it->second);
}

void Reapers::Ended(pid_t pid, int status) {
  for (const auto& [id, reaper] : reapers_) {
    if (reaper->pid != pid) continue;
    std::string why = Cause(status);
    if (reaper->late) why = "no end after " + std::to_string(kJobMs / 1000) + " s";
    reaper->pid = 0;
    if (reaper->busy) return Fail(*reaper, why);
    return Retire(*reaper);  // killed by a stranger while it was idle
  }
}

void Reapers::Fail(Reaper& reaper, const std::string& why) {
  failed_++;
  const pstn_uuid id = reaper.stack;
  std::deque<Job> jobs = std::move(reaper.jobs);
  reaper.jobs.clear();
  const std::string what = jobs.empty() ? "" : std::string(", ") + NameOf(jobs.front().ask.type);
  Retire(reaper);
  for (const Job& job : jobs) {
    if (job.done) job.done(EOWNERDEAD, {});
  }
  on_failed(id, why + what);
}

void Reapers::Bury() { dead_.clear(); }

}  // namespace postern::daemon
