// SPDX-License-Identifier: Apache-2.0
// main.cc - postern-keeper: goes on with what a stack has to do when no process of its family does
// it.
//
// One for each stack that needs it, started by posternd with the stack in descriptor 3. Today it
// carries connections whose descriptors have left the family (lib/peer/export.cc), or at level 2
// holds their endpoints for the kernel module; it ends when the last of them has ended. It is a
// process of the family: what it holds is dropped like any other process's when it dies, so that a
// killed keeper resets its connections and harms nothing else.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../posternd/guard/become.h"
#include "abi/kmod_abi.h"
#include "base/clock.h"
#include "bridge.h"
#include "control/posternd.h"
#include "ctl/msg_packet.h"
#include "endpoint/call.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "life/meet.h"
#include "life/process.h"
#include "peer/close.h"
#include "peer/export.h"
#include "sock/own_family.h"
#include "wire_keeper.h"

namespace postern::keeper {
namespace {

constexpr int kStackFd = 3;
// An interface's queues are one stack's at a time: the next stack waits for them. Until
// then the last RSTs go out, and what the peers still had under way is answered.
constexpr uint64_t kLetGoMs = 200, kLetGoLookMs = 10;
constexpr uint64_t kIdleMs = 3000;            // without a bridge; then it leaves
constexpr uint64_t kRetryMs = 300;            // to reach a posternd that is gone
constexpr uint64_t kAloneNs = 1'000'000'000;  // without a posternd: then none may come soon
constexpr int kEventsPerLook = 64;
constexpr uint64_t kLineTag = ~uint64_t{0}, kWireTag = ~uint64_t{0} - 1,
                   kPlaceTag = ~uint64_t{0} - 2, kModuleTag = ~uint64_t{0} - 3;
constexpr uint64_t kFetchNs = 10'000'000'000;  // a process of the next family comes at once
constexpr uint64_t kFetchLookMs = 1000;

class Keeper {
 public:
  Keeper() : set_(epoll_create1(EPOLL_CLOEXEC)) {}
  int Run();

 private:
  void Connect();
  void ReadLine();
  void Take(const ctl::Msg& job, int fd);
  void Answer(const ctl::Msg& job, int32_t status, ctl::Msg reply = {}) const;
  void Carry(Bridge::End first, Bridge::End second);
  bool Watch(Bridge::End end, uint64_t tag) const;
  void PumpAll();
  long OpenThePlace();
  void Expect(int ring_fd, const pstn_uuid& stack, ctl::Msg& reply);
  void MeetGuests();
  void GiveUpGuests();
  void HoldForModule(int ring_fd);
  void GiveBackReleased();

  int set_;
  int line_ = -1;  // posternd; the library has one of its own, for what it asks itself
  uint64_t next_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Bridge>> bridges_;
  std::vector<uint64_t> busy_;
  WireKeeper wire_;
  // Connections that go on in other families (life/meet.h), and have not been fetched.
  struct Expected {
    int ring_fd;
    pstn_uuid stack;
    uint64_t until_ns;
  };
  int place_ = -1;
  uint32_t next_tag_ = kTagMin;
  std::map<uint32_t, Expected> expected_;  // by tag
  // Endpoints whose sockets the kernel module has, by index: our numbers for them.
  std::unordered_map<uint32_t, int> modules_;
  bool watches_module_ = false;
};

void Keeper::Connect() {
  line_ = MoveHigh(g_family, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ctl::Msg hello;
  hello.type = ctl::Type::kKeeper;
  hello.uuid = Stack(g_family).hdr.id;
  CtlReconnect(g_family);  // first as a process of the stack, then for this
  // Clients that come by a VI while the program sleeps are counted by who drives the engine.
  (void)CtlQueues(g_family, kOwnQueues);
  epoll_event ev{};
  ev.events = EPOLLIN;
  ev.data.u64 = kLineTag;
  if (CtlReach(g_family, line_, Stack(g_family).hdr.uid) < 0 ||
      send(line_, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) ||
      epoll_ctl(set_, EPOLL_CTL_ADD, line_, &ev) != 0) {
    CloseInternal(g_family, line_);
    line_ = -1;
  }
}

void Keeper::ReadLine() {
  for (;;) {
    ctl::Msg job;
    ctl::Packet packet(job);
    const ssize_t got = recvmsg(line_, &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      CloseInternal(g_family, line_);
      line_ = -1;
      return;
    }
    const int fd = packet.TakeFd(close);
    if (got == sizeof(job) && fd < 0 && packet.LostFd()) {
      Answer(job, EMFILE);
    } else if (got == sizeof(job) && job.type == ctl::Type::kExport && fd >= 0) {
      Take(job, fd);
    } else if (got == sizeof(job) && job.type == ctl::Type::kWire && fd >= 0) {
      const int r = wire_.Start(fd, set_, kWireTag);
      if (r != 0) fprintf(stderr, "postern-keeper: no wire: %s\n", strerror(-r));
      Answer(job, -r);
    } else if (fd >= 0) {
      close(fd);
    }
  }
}

void Keeper::Take(const ctl::Msg& job, int fd) {
  struct Context {
    Keeper* keeper;
    int handed_on;
  } context{this, -1};
  const auto carry = [](void* to, int ring_fd, int kernel_fd) {
    auto& here = *static_cast<Context*>(to);
    if (kernel_fd == kHeldForModule) return here.keeper->HoldForModule(ring_fd);
    if (kernel_fd >= 0) return here.keeper->Carry({ring_fd, true}, {kernel_fd, false});
    here.handed_on = ring_fd;
  };
  ctl::Msg reply;
  long r = job.d == 0 || place_ >= 0 ? 0 : OpenThePlace();
  if (r < 0) {
    close(fd);
  } else {
    ListensAt at = {{}, sizeof at.name};
    const bool is_dead = job.addr.port != 0;  // all that had the listener are
    if (is_dead) AddrToSockaddr(job.addr, job.c, reinterpret_cast<sockaddr*>(&at.name), &at.len);
    r = TakeOver(g_family, fd, job.a, job.b, job.d != 0, is_dead ? &at : nullptr, carry, &context);
  }
  if (context.handed_on >= 0) Expect(context.handed_on, job.uuid, reply);
  PumpAll();  // the process that goes on with it sees earlier data, end or reset now
  Answer(job, static_cast<int32_t>(-r), reply);
}

void Keeper::Answer(const ctl::Msg& job, int32_t status, ctl::Msg reply) const {
  reply.type = job.type;
  reply.seq = job.seq;
  reply.status = status;
  (void)!send(line_, &reply, sizeof(reply), MSG_NOSIGNAL);
}

bool Keeper::Watch(Bridge::End end, uint64_t tag) const {
  epoll_event ev{};
  ev.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  ev.data.u64 = tag;
  if (!end.is_ring) return epoll_ctl(set_, EPOLL_CTL_ADD, end.fd, &ev) == 0;
  return SockEpollCtl(g_family, set_, EPOLL_CTL_ADD, end.fd, &ev) == 0;
}

void Keeper::Carry(Bridge::End first, Bridge::End second) {
  const uint64_t tag = next_++;
  auto bridge = std::make_unique<Bridge>(first, second);
  if (!Watch(first, tag) || !Watch(second, tag)) {
    fprintf(stderr, "postern-keeper: a connection that was passed on can't be watched: %s\n",
            strerror(errno));
    return;  // it ends here, on both sides
  }
  busy_.push_back(tag);  // what was in the ring raises no event
  bridges_.emplace(tag, std::move(bridge));
}

long Keeper::OpenThePlace() {
  const long fd = OpenPlace(g_family);
  if (fd < 0) return fd;
  place_ = static_cast<int>(fd);
  epoll_event ev{};
  ev.events = EPOLLIN;
  ev.data.u64 = kPlaceTag;
  return SockEpollCtl(g_family, set_, EPOLL_CTL_ADD, place_, &ev);
}

// Says where it can be fetched.
void Keeper::Expect(int ring_fd, const pstn_uuid& stack, ctl::Msg& reply) {
  const auto after = [](uint32_t tag) { return tag == kTagMax ? kTagMin : tag + 1; };
  while (expected_.count(next_tag_) != 0) next_tag_ = after(next_tag_);
  expected_[next_tag_] = {ring_fd, stack, MonotonicNs() + kFetchNs};
  const Call call(g_family, place_);
  reply.a = EpIdx(Stack(g_family), *call.ep());
  reply.b = LoadRelaxed(call.ep()->gen);
  reply.c = next_tag_;
  next_tag_ = after(next_tag_);
}

void Keeper::MeetGuests() {
  for (int i = 0; i < kEventsPerLook; ++i) {  // who comes in a crowd keeps no other from its turn
    uint32_t tag = 0;
    pstn_uuid stack{};
    const int fd = static_cast<int>(AcceptGuest(g_family, place_, tag, stack));
    if (fd < 0) return;
    const auto it = expected_.find(tag);
    if (it == expected_.end() || !SameUuid(it->second.stack, stack)) {
      (void)SockClose(g_family, fd, FdEntry(g_family, fd));
      continue;
    }
    Carry({it->second.ring_fd, true}, {fd, true});
    expected_.erase(it);
  }
}

// Their process has died on its way.
void Keeper::GiveUpGuests() {
  const uint64_t now = MonotonicNs();
  std::erase_if(expected_, [&](const auto& one) {
    if (now < one.second.until_ns) return false;
    (void)SockClose(g_family, one.second.ring_fd, FdEntry(g_family, one.second.ring_fd));
    return true;
  });
}

void Keeper::HoldForModule(int ring_fd) {
  if (!watches_module_) {
    epoll_event ev{};
    ev.events = EPOLLIN;
    ev.data.u64 = kModuleTag;
    watches_module_ = epoll_ctl(set_, EPOLL_CTL_ADD, g_family.bells.module, &ev) == 0;
  }
  const Call call(g_family, ring_fd);
  modules_[EpIdx(Stack(g_family), *call.ep())] = ring_fd;
}

// The last descriptor of such a socket is gone, and the peer has been told. What is left is what
// the connection has in the stack's tables.
void Keeper::GiveBackReleased() {
  pstn_ioc_released released{};
  do {
    if (ioctl(g_family.bells.module, PSTN_IOC_RELEASED, &released) != 0) return;
    for (uint32_t i = 0; i < released.count; ++i) {
      const auto it = modules_.find(released.ep_idx[i]);
      if (it == modules_.end()) continue;
      (void)SockClose(g_family, it->second, FdEntry(g_family, it->second));
      modules_.erase(it);
    }
  } while (released.more != 0);
}

void Keeper::PumpAll() {
  std::vector<uint64_t> now;
  now.swap(busy_);
  for (const uint64_t tag : now) {
    const auto it = bridges_.find(tag);
    if (it == bridges_.end()) continue;
    switch (it->second->Pump()) {
      case Bridge::State::kBusy:
        busy_.push_back(tag);
        break;
      case Bridge::State::kDone:
        bridges_.erase(it);
        break;
      case Bridge::State::kWaiting:
        break;
    }
  }
}

int Keeper::Run() {
  Connect();
  uint64_t idle_since = MonotonicNs(), company_ns = idle_since;
  for (;;) {
    if (line_ >= 0) company_ns = MonotonicNs();
    GiveUpGuests();
    const bool needed = !bridges_.empty() || !expected_.empty() || !modules_.empty() ||
                        (wire_.started() && wire_.IsNeeded());
    if (needed) idle_since = MonotonicNs();
    const uint64_t idle_ms = (MonotonicNs() - idle_since) / 1'000'000;
    const uint64_t last_ms = wire_.started() ? kLetGoMs : kIdleMs;
    if (!needed && (idle_ms >= last_ms || (line_ < 0 && !wire_.started()))) return 0;
    uint64_t wait_ms = !busy_.empty()    ? 0
                       : needed          ? 60'000
                       : wire_.started() ? kLetGoLookMs
                                         : last_ms - idle_ms + 1;
    if (line_ < 0 && wait_ms > kRetryMs) wait_ms = kRetryMs;
    if (!expected_.empty() && wait_ms > kFetchLookMs) wait_ms = kFetchLookMs;
    if (wire_.started()) {
      const bool alone = MonotonicNs() - company_ns > kAloneNs;
      const uint64_t ms = wire_.Work(alone ? Company::kAlone : Company::kPosternd);
      if (ms < wait_ms) wait_ms = ms;
    }
    epoll_event events[kEventsPerLook];
    long n = SockEpollWait(g_family, set_, events, kEventsPerLook,
                           Deadline::AfterMs(static_cast<long>(wait_ms)), nullptr);
    if (n == kPass) n = epoll_wait(set_, events, kEventsPerLook, static_cast<int>(wait_ms));
    if (wire_.started()) wire_.Up();
    for (long i = 0; i < n; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWireTag) continue;  // Work() comes
      if (tag == kPlaceTag) {
        MeetGuests();
      } else if (tag == kModuleTag) {
        GiveBackReleased();
      } else if (tag == kLineTag) {
        ReadLine();
      } else if (std::find(busy_.begin(), busy_.end(), tag) == busy_.end()) {
        busy_.push_back(tag);
      }
    }
    PumpAll();
    if (line_ < 0) Connect();
  }
}

}  // namespace
}  // namespace postern::keeper

int main(int argc, char** argv) {
  using namespace postern;
  if (!daemon::BecomeUser(argc > 1 ? argv[1] : nullptr)) {
    fprintf(stderr, "postern-keeper: cannot become user %s: %s\n", argv[1], strerror(errno));
    return 1;
  }
  signal(SIGPIPE, SIG_IGN);
  ProcessInit(g_family, environ);
  if (!JoinStack(g_family, keeper::kStackFd)) {
    fprintf(stderr,
            "postern-keeper: no stack in descriptor %d, or no place in it; posternd starts this "
            "program\n",
            keeper::kStackFd);
    return 1;
  }
  return keeper::Keeper().Run();
}
