// registry_test.cc - a stack is gone when its last process is, whatever kept posternd from looking.
// SPDX-License-Identifier: Apache-2.0
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <list>
#include <memory>

#include "../../../controlplane/posternd/kit/log.h"
#include "../../../controlplane/posternd/kit/proc.h"
#include "../../../controlplane/posternd/registry/registry.h"
#include "../kit/catch.h"
#include "base/atomic.h"
#include "ctl/msg_packet.h"
#include "state/area.h"

namespace postern::daemon {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// Waits until it is killed.
class Program {
 public:
  Program() : pid_(fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    for (;;) pause();
  }
  ~Program() {
    Kill();
    (void)waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  void Kill() const {
    (void)kill(pid_, SIGKILL);
    siginfo_t end{};
    (void)waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOWAIT);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class Family {
 public:
  Family() : base_(event_base_new(), event_base_free), fd_(CreateStack(id_)), s_(MapStack(fd_)) {
    SetSilent();
    REQUIRE(s_ != nullptr);
    REQUIRE(directory_.Create({7, 8}) == 0);
    registry_ = std::make_unique<Registry>(base_.get(), directory_, [] {});
    // A reaper, played.
    registry_->reapers().start = [this](const Stack&, int line, pid_t& pid) {
      reaper_ = UniqueFd(fcntl(line, F_DUPFD_CLOEXEC, 0));
      pid = 1'000'000'000;
      return 0;
    };
    registry_->reapers().end = [](pid_t) {};
  }
  ~Family() {
    clients_.clear();
    registry_.reset();
    UnmapStack(s_);
    close(fd_);
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  void Enter(uint32_t slot, const Program& program) const {
    pstn_slot& place = s_->slots.Own(ProcIndex(slot));
    for (uint32_t& chunk : place.chunk) chunk = PSTN_NONE;
    place.pid = static_cast<uint32_t>(program.pid());
    place.start_time = StartTime(program.pid());
    place.exec_pending = PSTN_EXEC_NONE;
    if (s_->hdr.slots_hw <= slot) s_->hdr.slots_hw = slot + 1;
    StoreRelease(place.state, PSTN_SL_LIVE);
  }
  int Hello(uint32_t slot, const Program& program) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    far_.emplace_back(ends[1]);
    clients_.push_back(std::make_unique<Client>(
        base_.get(), UniqueFd(ends[0]), ucred{program.pid(), geteuid(), getegid()},
        [](Client&, const ctl::Msg&, UniqueFd) {}, [](Client&) {}));
    return registry_->Hello(*clients_.back(), slot, id_, UniqueFd(fcntl(fd_, F_DUPFD_CLOEXEC, 0)));
  }
  // Another user's, at whose slots posternd has looked for so long that it rests for an hour.
  void RestsAsGuests() {
    Stack* const stack = registry_->Find(id_);
    REQUIRE(stack != nullptr);
    stack->uid = geteuid() + 1;
    stack->scan_after = Clock::now() + std::chrono::hours(1);
  }
  bool IsThere() const { return !registry_->stacks().empty(); }
  bool Ends() {
    const auto until = Clock::now() + kPatience;
    while (IsThere() && Clock::now() < until) {
      event_base_loop(base_.get(), EVLOOP_NONBLOCK);
      Work();
      usleep(1000);
    }
    return !IsThere();
  }

 private:
  void Work() {
    for (;;) {
      ctl::Msg job;
      ctl::Packet packet(job);
      if (recvmsg(reaper_.get(), &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) return;
      const UniqueFd with(packet.TakeFd(close));
      if (job.type < ctl::Type::kJobListeners) continue;
      pstn_slot& slot = s_->slots.Own(ProcIndex(job.a % s_->slots.count()));
      if (job.type == ctl::Type::kJobSlot && slot.pid == job.b) slot.state = PSTN_SL_FREE;
      ctl::Msg answer;
      answer.type = job.type;
      answer.seq = job.seq;
      REQUIRE(send(reaper_.get(), &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer);
    }
  }

  const pstn_uuid id_{0x1111, 1};
  std::unique_ptr<event_base, void (*)(event_base*)> base_;
  int fd_;
  StackMap* s_;
  Directory directory_;
  std::unique_ptr<Registry> registry_;
  UniqueFd reaper_;
  std::list<UniqueFd> far_;
  std::list<std::unique_ptr<Client>> clients_;
};

}  // namespace

TEST_CASE("a guests' stack ends with its last process while posternd rests from a look at it") {
  Family family;
  const Program first, second;
  family.Enter(0, first);
  family.Enter(1, second);
  REQUIRE(family.Hello(0, first) == 0);
  REQUIRE(family.Hello(1, second) == 0);
  family.RestsAsGuests();
  first.Kill();
  second.Kill();
  CHECK(family.Ends());
}

TEST_CASE("a process stays watched when one that has died says hello with its slot") {
  Family family;
  const Program first, second;
  family.Enter(0, first);
  REQUIRE(family.Hello(0, first) == 0);
  family.Enter(0, second);
  second.Kill();
  CHECK(family.Hello(0, second) == -ESRCH);
  family.Enter(0, first);
  REQUIRE(family.IsThere());
  first.Kill();
  CHECK(family.Ends());
}

}  // namespace postern::daemon
