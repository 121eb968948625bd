// SPDX-License-Identifier: Apache-2.0
// broker_fuzz.cc - a broker beside members that say anything: they join, offer, learn, link, answer
// or do not, close their line, die.
//
// The input is a program of seven-byte steps: a message of a hostile member, with a descriptor; an
// answer to one of the broker's questions; a member that ends, or one more; time that passes; what
// two honest members do. These take and answer what comes at once. After each step:
//   - the honest members are there, and the broker answers them
//   - they were told of listeners that are theirs, or that a hostile member has, at its address; no
//     link group but with stacks that no honest member has; nothing of the end of their own
//   - the one's listener is known to the other
// In the end, when all have gone, the broker has as many descriptors as before.
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "../../../controlplane/posternd/broker/broker.h"
#include "../../../controlplane/posternd/guard/closer.h"
#include "../../../controlplane/posternd/kit/log.h"
#include "moved_clock.h"
#include "posternd_world.h"

namespace postern {
namespace {

using ctl::Msg;
using ctl::Type;

constexpr size_t kBrokerSteps = 100, kBrokerStepBytes = 7;
constexpr uint32_t kHostiles = 3, kHonests = 2, kSeqOfTest = 1;
constexpr pstn_uuid kHonestStack[kHonests] = {{0xa, 1}, {0xb, 1}};
constexpr pstn_uuid kHonestLink = {0x11, 0x12};

struct BrokerStep {
  uint8_t op, a, b, c, d, e, f;
};

bool IsHonests(const pstn_uuid& id) {
  return id.hi == kHonestStack[0].hi || id.hi == kHonestStack[1].hi;
}

struct Speaker {
  std::unique_ptr<Program> process;
  int fd = -1;
  std::vector<Msg> questions;      // the broker's, not answered yet
  std::map<uint64_t, bool> knows;  // of honest stacks: whether it was told of their listener
  int answers = 0;
};

class BrokerGame {
 public:
  BrokerGame() {
    daemon::SetLogDetail(getenv("BROKER_FUZZ_LOG") != nullptr ? daemon::LogDetail::kDebug
                                                              : daemon::LogDetail::kWarn);
    if (getenv("BROKER_FUZZ_LOG") == nullptr) daemon::SetSilent();
    signal(SIGPIPE, SIG_IGN);
    door_ = OpenDoor("broker-fuzz", address_, nursery_);
    memory_ = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    route_ = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0);
    listener_ = ListeningSocket(listens_at_);
    hostile_listener_ = ListeningSocket(hostile_at_);
  }

  void Run(const uint8_t* data, size_t size) {
    const size_t before = OpenDescriptors();
    Begin();
    for (size_t i = 0; i + kBrokerStepBytes <= size && i / kBrokerStepBytes < kBrokerSteps;
         i += kBrokerStepBytes) {
      BrokerStep in;
      memcpy(&in, data + i, sizeof in);
      Take(in);
      Check();
    }
    End();
    daemon::AwaitCloses();
    if (OpenDescriptors() != before)
      FuzzDie("the broker keeps descriptors of members that are gone");
  }

 private:
  static int ListeningSocket(uint16_t& port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof any;
    auto* const place = reinterpret_cast<sockaddr*>(&any);
    FUZZ_CHECK(bind(fd, place, sizeof any) == 0 && listen(fd, 8) == 0 &&
               getsockname(fd, place, &size) == 0);
    port = ntohs(any.sin_port);
    return fd;
  }

  void Begin() {
    base_ = event_base_new();
    vis_ = std::make_unique<daemon::Vis>(base_, "off");
    daemon::Policy policy;
    policy.links_max = policy.stacks_max = 40;
    policy.processes_max = policy.listeners_max = 30;
    broker_ = std::make_unique<daemon::Broker>(base_, daemon::UniqueFd(dup(door_)), policy,
                                               pstn_uuid{9, 9}, bells_, false, *vis_);
    hostile_.clear();
    hostile_.resize(kHostiles);
    honest_.clear();
    honest_.resize(kHonests);
    for (Speaker& one : honest_) Birth(one);
    for (uint32_t i = 0; i < kHonests; i++) {
      Msg join = {}, seek = {};
      join.a = i;  // the one is told of all, the other asks
      seek.a = listens_at_;
      FUZZ_CHECK(Asks(i, {}, Type::kJoin, -1, join) == 0);
      FUZZ_CHECK(Asks(i, {}, Type::kSeek, -1, seek) == 0);
      FUZZ_CHECK(Asks(i, kHonestStack[i], Type::kOffer, listener_) == 0);
      Msg link = {};
      link.peer = kHonestStack[1 - i];
      link.id = kHonestLink;
      link.a = i;
      FUZZ_CHECK(Asks(i, kHonestStack[i], Type::kHaveLink, -1, link) == 0);
    }
    for (Speaker& one : hostile_) Birth(one);
  }

  void Birth(Speaker& one) {
    if (one.fd >= 0) close(one.fd);
    one = {};
    nursery_->Order(memory_);
    one.process = std::make_unique<Program>(*nursery_);
    one.fd = one.process->Connect();
    FUZZ_CHECK(one.fd >= 0);
    fcntl(one.fd, F_SETFL, O_NONBLOCK);
    Loop();
  }

  void End() {
    for (auto* all : {&hostile_, &honest_}) {
      for (Speaker& one : *all) {
        if (one.fd >= 0) close(one.fd);
        one.fd = -1;
        one.process.reset();
      }
    }
    for (int i = 0; i < 10; i++) event_base_loop(base_, EVLOOP_NONBLOCK);
    broker_.reset();
    vis_.reset();
    event_base_free(base_);
    g_ahead_ns = 0;
  }

  // ---------------------------------------------------------------- lines
  void Loop() {
    for (int i = 0; i < 6; i++) {
      event_base_loop(base_, EVLOOP_NONBLOCK);
      for (uint32_t n = 0; n < honest_.size(); n++) Hear(honest_[n], true, n);
    }
    for (Speaker& one : hostile_) Hear(one, false, 0);
  }

  void Say(Speaker& to, const Msg& message, int fd) {
    if (to.fd >= 0) (void)SendWith(to.fd, &message, sizeof message, fd);
  }

  void Hear(Speaker& one, bool honest, uint32_t n) {
    Msg message;
    for (int i = 0; i < 400 && one.fd >= 0; i++) {
      int fd = -1;
      ctl::Packet packet(message);
      const ssize_t got = recvmsg(one.fd, &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      fd = packet.TakeFd(close);
      if (fd >= 0) close(fd);
      if (got != sizeof message) {
        if (honest) FuzzDie("an honest member is cut off");
        close(one.fd);
        one.fd = -1;
        return;
      }
      if (!honest) {
        if ((message.seq & ctl::kBrokerSeq) != 0) one.questions.push_back(message);
        if (one.questions.size() > 64) one.questions.erase(one.questions.begin());
        continue;
      }
      Judge(one, n, message);
    }
  }

  void Judge(Speaker& one, uint32_t n, const Msg& m) {
    const bool of_honest = IsHonests(m.uuid);
    if (m.seq == kSeqOfTest) {
      one.answers++;
      status_ = m.status;
      token_ = m.cookie;
      return;
    }
    if (m.type == Type::kListener) {
      const uint16_t at = of_honest ? listens_at_ : hostile_at_;
      FUZZ_CHECK((m.d & ctl::kListenerLearnt) == 0 && m.addr.port == at);
      if (of_honest && m.uuid.lo == 1) one.knows[m.uuid.hi] = true;
    } else if (m.type == Type::kGone) {
      if (of_honest && m.uuid.lo == 1) one.knows[m.uuid.hi] = false;
    } else if (m.type == Type::kLink) {
      FUZZ_CHECK(m.uuid.hi == kHonestStack[n].hi && m.uuid.lo == 1 && !IsHonests(m.peer));
    } else if (m.type == Type::kLinkEnd) {
      FUZZ_CHECK(m.id.hi != kHonestLink.hi || m.id.lo != kHonestLink.lo);
    } else {
      FUZZ_CHECK(m.type == Type::kHost);
    }
    if (m.seq == 0) return;
    Msg answer;
    answer.type = m.type;
    answer.seq = m.seq;
    Say(one, answer, -1);
  }

  // What an honest member asks, and the answer's status.
  int Asks(uint32_t n, const pstn_uuid& stack, Type type, int fd = -1, Msg m = {}) {
    Speaker& one = honest_[n];
    m.type = type;
    m.seq = kSeqOfTest;
    m.uuid = stack;
    const int before = one.answers;
    Say(one, m, fd);
    // Some are given when others have had a moment to take the news: not when they are cut off.
    for (int i = 0; i < 1000 && one.answers == before; i++) {
      if (i % 50 == 49) g_ahead_ns += 20'000'000;
      Loop();
    }
    if (one.answers == before) FuzzDie("an honest member gets no answer");
    return status_;
  }

  void Check() {
    Loop();
    for (uint32_t n = 0; n < kHonests; n++) {
      FUZZ_CHECK(Asks(n, {}, static_cast<Type>(99)) == ENOSYS);
      const auto other = honest_[n].knows.find(kHonestStack[1 - n].hi);
      FUZZ_CHECK(other != honest_[n].knows.end() && other->second);
    }
  }

  // ---------------------------------------------------------------- steps
  void Take(const BrokerStep& in) {
    static constexpr uint64_t kPauseMs[] = {1, 21, 60, 110, 510, 2600, 3100, 31'000};
    Speaker& one = hostile_[in.a % kHostiles];
    switch (in.op % 16) {
      case 10:
        return Answer(one, in);
      case 11:
        // Honest ones answer before the next half second has passed, however long it is.
        for (uint64_t left = kPauseMs[in.b % 8], now = 0; left != 0; left -= now) {
          now = std::min<uint64_t>(left, 400);
          g_ahead_ns += now * 1'000'000;
          Loop();
        }
        return;
      case 12:
        if ((in.b & 1u) != 0) one.process.reset();  // its line stays
        if ((in.b & 2u) != 0 && one.fd >= 0) {
          close(one.fd);
          one.fd = -1;
        }
        return;
      case 13:
        if (one.fd < 0 || one.process == nullptr) Birth(one);
        return;
      case 14:
        return Honest(in);
      default:
        return Hostile(one, in);
    }
  }

  pstn_uuid IdOfByte(uint8_t byte) const {
    const pstn_uuid own[] = {{0xc, 1}, {0xc, 2}, {0xd, 1}, {0xd, 2}};
    if (byte % 8 == 0) return kHonestStack[byte / 8 % 2u];
    if (byte % 16 == 1) return kHonestLink;
    if (byte % 16 == 2) return {};
    return own[byte % 4u];
  }

  void Hostile(Speaker& one, const BrokerStep& in) {
    static constexpr Type kTypes[] = {
        Type::kJoin,    Type::kJoin,      Type::kOffer,  Type::kOffer,    Type::kOffer,
        Type::kUnoffer, Type::kLink,      Type::kLink,   Type::kHaveLink, Type::kLinkEnd,
        Type::kAlive,   Type::kRegister,  Type::kAttach, Type::kAttach,   Type::kRelease,
        Type::kLearn,   Type::kAddresses, Type::kBell,   Type::kVi,       Type::kFilter,
        Type::kSeek,    Type::kSeek};
    const int fds[] = {-1, hostile_listener_, hostile_listener_, memory_, memory_, pidfd_, route_};
    Msg m;
    m.type = in.b < 240 ? kTypes[in.b % std::size(kTypes)] : static_cast<Type>(in.b % 80);
    if (m.type == Type::kRoutes || m.type == Type::kResolve) m.type = Type::kJoin;
    m.seq = in.f % 8u == 7 ? ctl::kBrokerSeq | in.c : 2;
    m.a = in.c % 8u == 7 ? PSTN_NONE : in.c % 4u;
    const uint32_t ports[] = {m.a, listens_at_, hostile_at_, uint32_t{in.c} << 4};
    if (m.type == Type::kSeek) m.a = ports[in.c % 4u];
    m.b = in.c / 8 % 4u;
    m.c = in.c;
    m.d = in.d % 16u;
    m.uuid = IdOfByte(in.d);
    m.peer = IdOfByte(in.e);
    m.id = (in.e & 0x40u) != 0 ? pstn_uuid{} : IdOfByte(static_cast<uint8_t>(in.e + 3));
    m.cookie = (in.f & 0x40u) != 0 ? token_ : in.f;
    m.addr.port = (in.f & 0x20u) != 0 ? listens_at_ : hostile_at_;
    Say(one, m, fds[in.f % std::size(fds)]);
  }

  void Answer(Speaker& one, const BrokerStep& in) {
    if (one.questions.empty()) return;
    Msg answer;
    const size_t which = in.b % one.questions.size();
    answer.type = one.questions[which].type;
    answer.seq = one.questions[which].seq;
    answer.status = in.c % 4;
    one.questions.erase(one.questions.begin() + static_cast<ptrdiff_t>(which));
    Say(one, answer, (in.d & 1u) != 0 ? memory_ : -1);
  }

  void Honest(const BrokerStep& in) {
    const uint32_t n = in.a % kHonests;
    Msg m;
    switch (in.b % 4) {
      case 0:
        FUZZ_CHECK(Asks(n, kHonestStack[n], Type::kOffer, listener_) == 0);
        return;
      case 1:
        m.peer = kHonestStack[1 - n];
        m.id = kHonestLink;
        m.a = n;
        FUZZ_CHECK(Asks(n, kHonestStack[n], Type::kHaveLink, -1, m) == 0);
        return;
      case 2:
        FUZZ_CHECK(Asks(n, kHonestStack[n], Type::kRegister) == 0);
        if ((in.c & 1u) == 0) return;  // a hostile one may have the token
        m.cookie = token_;
        FUZZ_CHECK(Asks(1 - n, {}, Type::kAttach, -1, m) == 0);
        return;
      default:
        m.a = 1;  // a second listener, and its end
        FUZZ_CHECK(Asks(n, {kHonestStack[n].hi, 2}, Type::kOffer, listener_, m) == 0);
        FUZZ_CHECK(Asks(n, {kHonestStack[n].hi, 2}, Type::kUnoffer, -1, m) == 0);
    }
  }

  sockaddr_un address_{};
  std::unique_ptr<Nursery> nursery_;
  int door_ = -1, memory_ = -1, pidfd_ = -1, route_ = -1, listener_ = -1, hostile_listener_ = -1;
  uint16_t listens_at_ = 0, hostile_at_ = 0;
  event_base* base_ = nullptr;
  daemon::BellSpace bells_;
  std::unique_ptr<daemon::Vis> vis_;
  std::unique_ptr<daemon::Broker> broker_;
  std::vector<Speaker> hostile_, honest_;
  int status_ = 0;
  uint64_t token_ = 0;
};

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* game = new postern::BrokerGame;
  game->Run(data, size);
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) {
  return postern::FuzzReplay(argc, argv, postern::kBrokerSteps * postern::kBrokerStepBytes);
}
#endif
