// notify_test.cc - bits, doorbells and futexes: set when they have to be, quiet when nobody sleeps.
// SPDX-License-Identifier: Apache-2.0
#include "smcd/notify.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <thread>
#include <vector>

#include "../kit/catch.h"
#include "base/schema/counters.h"
#include "ring_pair.h"

namespace postern {
namespace {

struct BellWorld {
  RingWorld world;
  uint64_t counters[PSTN_COUNTERS] = {};
  Bells bells = {-1, -1, counters};
  ConnEnd client = world.End(0, 70), server = world.End(1, 70);

  ~BellWorld() {
    if (bells.sender >= 0) sys::Close(bells.sender);
  }
  const pstn_uuid& id() { return world.stack().hdr.id; }
  pstn_evmap& Map(uint32_t side, uint32_t waiter) { return LgrEvmap(world.lgr(), side, waiter); }
};

// A waiter's doorbell; Rung() takes what has come.
struct Bell {
  Bell(const pstn_uuid& id, uint32_t waiter) : fd(OpenBell({id, waiter, 0})) { REQUIRE(fd >= 0); }
  ~Bell() { sys::Close(fd); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;
  bool Rung() const {
    pollfd p = {fd, POLLIN, 0};
    const bool rung = poll(&p, 1, 0) == 1;
    Bells none;
    CHECK(DrainBell(none, fd));
    return rung;
  }
  const int fd;
};

bool HasBit(const pstn_evmap& map, uint32_t conn) {
  return (map.leaf[conn / 64] >> (conn % 64) & 1u) != 0 && (map.summary >> (conn / 64) & 1u) != 0;
}

TEST_CASE("notify: a doorbell has one holder, and one that is gone cannot be rung") {
  BellWorld p;
  const int sender = BellSender(p.bells);
  REQUIRE(sender >= 0);
  CHECK(BellSender(p.bells) == sender);
  CHECK((fcntl(sender, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_FALSE(RingBell(p.bells, {p.id(), 5, 0}));
  {
    const Bell bell(p.id(), 5);
    CHECK(OpenBell({p.id(), 5, 0}) == -EADDRINUSE);
    CHECK(RingBell(p.bells, {p.id(), 5, 0}));
    CHECK_FALSE(RingBell(p.bells, {p.id(), 6, 0}));
    CHECK_FALSE(RingBell(p.bells, {p.id(), 5, 1}));
    CHECK(bell.Rung());
    CHECK_FALSE(bell.Rung());
    for (int i = 0; i < 10000; i++)
      REQUIRE(RingBell(p.bells, {p.id(), 5, 0}));  // a full queue counts as rung
    CHECK(bell.Rung());
  }
  CHECK_FALSE(RingBell(p.bells, {p.id(), 5, 0}));
}

// The kernel lets a socket have some 270 datagrams under way.
TEST_CASE("notify: any number of bells may ring that nobody has answered") {
  constexpr uint32_t kBells = 400;
  BellWorld p;
  p.bells.confined = GENERATE(false, true);
  std::vector<std::unique_ptr<Bell>> bells;
  for (uint32_t w = 0; w < kBells; w++) bells.push_back(std::make_unique<Bell>(p.id(), w));
  std::thread late;  // where no other sender may be made, a ring waits for one that is answered
  std::atomic<uint32_t> rung = 0;
  if (p.bells.confined) {
    late = std::thread([&] {
      for (uint32_t w = 0; w < kBells; w++) {
        pollfd one = {bells[w]->fd, POLLIN, 0};
        if (poll(&one, 1, 5000) != 1) return;
        rung++;
        Bells none;
        (void)DrainBell(none, bells[w]->fd);
      }
    });
  }
  for (uint32_t w = 0; w < kBells; w++) CHECK(RingBell(p.bells, {p.id(), w, 0}));
  if (late.joinable()) late.join();
  for (const auto& bell : bells) rung += bell->Rung() ? 1u : 0u;
  CHECK(rung == kBells);
}

constexpr int kPassRights = 83;  // SO_PASSRIGHTS

// A ring with one end of a pipe, which is the message's alone from then on. -errno: refused.
int RingWithPipe(const Bell& bell, int& other_end) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  other_end = ends[0];
  sockaddr_un name;
  socklen_t len = sizeof name;
  REQUIRE(getsockname(bell.fd, reinterpret_cast<sockaddr*>(&name), &len) == 0);
  char byte = '!';
  iovec iov = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr m = {};
  m.msg_name = &name;
  m.msg_namelen = len;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &ends[1], sizeof(int));
  const int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int result = sendmsg(sender, &m, 0) == 1 ? 0 : -errno;
  sys::Close(sender);
  sys::Close(ends[1]);
  return result;
}

bool IsHungUp(int pipe_end) {
  pollfd p = {pipe_end, 0, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
}

TEST_CASE("notify: no descriptor comes with a ring, where the kernel can keep it out") {
  BellWorld p;
  const Bell bell(p.id(), 5);
  int passes = 1;
  socklen_t len = sizeof passes;
  if (getsockopt(bell.fd, SOL_SOCKET, kPassRights, &passes, &len) != 0) {
    WARN("skipped: this kernel has no SO_PASSRIGHTS");
    return;
  }
  CHECK(passes == 0);
  int end = -1;
  CHECK(RingWithPipe(bell, end) == -EPERM);
  CHECK_FALSE(bell.Rung());
  sys::Close(end);
  CHECK(RingBell(p.bells, {p.id(), 5, 0}));
  CHECK(DrainBell(p.bells, bell.fd));
  CHECK(p.bells.rights == static_cast<uint32_t>(PassRights::kNever));
}

// Whoever takes it closes it, and that takes as long as its maker likes: a socket with SO_LINGER
// holds up the thread for hours.
TEST_CASE("notify: a descriptor that comes with a ring is not taken, nor is what is behind it") {
  BellWorld p;
  const Bell bell(p.id(), 5);
  const int on = 1;  // as before Linux 6.16
  (void)setsockopt(bell.fd, SOL_SOCKET, kPassRights, &on, sizeof on);
  int first = -1, second = -1;
  CHECK(RingBell(p.bells, {p.id(), 5, 0}));
  REQUIRE(RingWithPipe(bell, first) == 0);
  REQUIRE(RingWithPipe(bell, second) == 0);
  CHECK_FALSE(DrainBell(p.bells, bell.fd));
  CHECK_FALSE(DrainBell(p.bells, bell.fd));
  CHECK_FALSE(IsHungUp(first));
  CHECK_FALSE(IsHungUp(second));
  CHECK(p.bells.rights == static_cast<uint32_t>(PassRights::kPerhaps));
  char byte = 0;
  CHECK(recv(bell.fd, &byte, 1, MSG_DONTWAIT) == 1);  // so it would have been taken
  CHECK(IsHungUp(first));
  CHECK(recv(bell.fd, &byte, 1, MSG_DONTWAIT) == 1);
  sys::Close(first);
  sys::Close(second);
}

// A hostile peer's bells, whose rings nobody takes, and an honest peer's, all in a network
// namespace that is not the ringer's. 77: there can be none here; else what goes wrong.
#define EXPECT(x) \
  if (!(x)) return __LINE__ % 70 + 1
int RingBesideDeafBells() {
  constexpr uint32_t kDeaf = 40, kHonest = 3, kSecond = 9, kNewsOf = 70;
  BellWorld p;
  const int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) return 77;
  std::vector<std::unique_ptr<Bell>> deaf;
  for (uint32_t w = 0; w < kDeaf; w++) deaf.push_back(std::make_unique<Bell>(p.id(), 100 + w));
  const Bell honest(p.id(), kHonest), second(p.id(), kSecond);
  const int senders[] = {socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0),
                         socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)};
  if (setns(here, CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) return 77;
  p.bells.wide_sender = senders[0];
  LgrHdr(p.world.lgr()).waiters_hw[1] = PSTN_WAITERS;
  const auto sleeps = [&](uint32_t w) {
    p.Map(1, w).in_use = PSTN_EV_USED;
    p.Map(1, w).sleeping = 1;
  };
  for (int round = 0; round < 20; round++) {
    for (uint32_t w = 0; w < kDeaf; w++) {
      sleeps(100 + w);
      PostBit(p.bells, p.world.lgr(), 1, 100 + w, kNewsOf);
    }
  }
  EXPECT(p.bells.owed == 1);
  sleeps(kHonest);
  sleeps(kSecond);
  PostBit(p.bells, p.world.lgr(), 1, kSecond, kNewsOf);
  EXPECT(!second.Rung());
  EXPECT(p.Map(1, kSecond).sleeping == 1);  // it is still to be rung
  EXPECT(p.bells.owed == 1);
  p.bells.owed = 0;
  p.bells.wide_sender = senders[1];  // as PayRings has it
  RingOwed(p.bells, p.world.lgr(), 1);
  EXPECT(second.Rung());
  EXPECT(p.Map(1, kSecond).sleeping == 0);
  EXPECT(!honest.Rung());  // it has no news
  EXPECT(p.Map(1, kHonest).sleeping == 1);
  return 0;
}

// `fn` makes a network namespace, so it runs in a process of its own. 77: there can be none here.
void CheckInChild(int (*fn)()) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(fn());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    WARN("skipped: no network namespace can be made here");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("notify: who can't be rung because others do not answer is rung by another socket") {
  CheckInChild(RingBesideDeafBells);
}

// In a network namespace whose bells keep many rings. 77: there can be none here.
int DrainOfMany() {
  constexpr int kRings = 200;
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return 77;
  FILE* const limit = fopen("/proc/sys/net/unix/max_dgram_qlen", "we");
  if (limit == nullptr || fprintf(limit, "%d", kRings) < 0 || fclose(limit) != 0) return 77;
  const pstn_uuid id = NewUuid();
  Bells bells;
  const int bell = OpenBell({id, 5, 0});
  for (int i = 0; i < kRings; i++)
    if (!RingBell(bells, {id, 5, 0})) return 1;
  if (!DrainBell(bells, bell)) return 2;
  int left = 0;
  for (char byte = 0; recv(bell, &byte, 1, MSG_DONTWAIT) == 1;) left++;
  return left > 0 && left < kRings ? 0 : 3;
}

TEST_CASE("notify: who rings faster than is taken does not keep the bell's owner at it") {
  CheckInChild(DrainOfMany);
}

TEST_CASE("notify: data sets the bit, and rings only a sleeper, once") {
  BellWorld p;
  const Bell bell(p.id(), 5);
  StoreRelaxed(p.server.ctl().rx_notify, 6u);  // waiter + 1
  AnnounceData(p.bells, p.client);
  CHECK(HasBit(p.Map(1, 5), 70));
  CHECK_FALSE(HasBit(p.Map(0, 5), 70));
  CHECK_FALSE(bell.Rung());
  p.Map(1, 5).sleeping = 1;
  AnnounceData(p.bells, p.client);
  CHECK(bell.Rung());
  CHECK(p.Map(1, 5).sleeping == 0);
  AnnounceData(p.bells, p.client);
  CHECK_FALSE(bell.Rung());
  CHECK(p.counters[kCounterDoorbells] == 1);
}

TEST_CASE("notify: nobody asked, nothing is set") {
  BellWorld p;
  const Bell bell(p.id(), 5);
  p.Map(1, 5).sleeping = 1;
  AnnounceData(p.bells, p.client);
  CHECK(p.Map(1, 5).summary == 0);
  CHECK_FALSE(bell.Rung());
}

TEST_CASE("notify: to all, of whom those who sleep are rung, and no more than a few") {
  BellWorld p;
  const Bell three(p.id(), 3), four(p.id(), 4), beyond(p.id(), 9);
  LgrHdr(p.world.lgr()).waiters_hw[1] = 5;
  for (const uint32_t w : {3u, 4u, 9u}) p.Map(1, w).sleeping = 1;
  p.Map(1, 3).in_use = p.Map(1, 9).in_use = PSTN_EV_USED;
  StoreRelaxed(p.server.ctl().rx_notify, PSTN_NOTIFY_ALL);
  AnnounceData(p.bells, p.client);
  CHECK(HasBit(p.Map(1, PSTN_EVMAP_ALL), 70));
  CHECK(three.Rung());
  CHECK_FALSE(four.Rung());
  CHECK_FALSE(beyond.Rung());
  LgrHdr(p.world.lgr()).waiters_hw[1] = PSTN_WAITERS;
  for (uint32_t w = 1; w < PSTN_WAITERS; w++) p.Map(1, w).in_use = p.Map(1, w).sleeping = 1;
  const uint64_t before = p.counters[kCounterDoorbells];
  AnnounceData(p.bells, p.client);
  CHECK(p.counters[kCounterDoorbells] - before <= 4 * kRingsPerPost);
  CHECK(three.Rung());
}

TEST_CASE("notify: new connections are told to those who wait for a listener") {
  BellWorld p;
  const Bell three(p.id(), 3), four(p.id(), 4);
  LgrHdr(p.world.lgr()).waiters_hw[1] = 5;
  p.Map(1, 3).in_use = PSTN_EV_USED;
  p.Map(1, 4).in_use = PSTN_EV_USED | PSTN_EV_SYN;
  p.Map(1, 3).sleeping = p.Map(1, 4).sleeping = 1;
  AnnounceSyn(p.bells, p.world.lgr(), 4095);
  CHECK(HasBit(p.Map(1, PSTN_EVMAP_SYN), 4095));
  CHECK_FALSE(three.Rung());
  CHECK(four.Rung());
  AnnounceAll(p.bells, p.world.lgr(), 1);
  CHECK(three.Rung());
}

TEST_CASE("notify: inside the stack") {
  BellWorld p;
  const Bell bell(p.id(), 8);
  PostWaiter(p.bells, p.world.stack(), 8);
  CHECK(p.world.stack().waiters.Own(WaiterIndex(8)).posted == 1);
  CHECK_FALSE(bell.Rung());
  p.world.stack().waiters.Own(WaiterIndex(8)).sleeping = 1;
  PostWaiter(p.bells, p.world.stack(), 8);
  CHECK(bell.Rung());
  PostWaiter(p.bells, p.world.stack(), PSTN_WAITERS);
}

TEST_CASE("notify: words that the other side made up are survived") {
  BellWorld p;
  TestRandom random(17);
  LgrHdr(p.world.lgr()).waiters_hw[0] = LgrHdr(p.world.lgr()).waiters_hw[1] = ~0u;
  LgrHdr(p.world.lgr()).stack[1] = {random.Next(), random.Next()};
  for (uint32_t w = 0; w < PSTN_WAITERS; w++)
    p.Map(1, w).in_use = p.Map(1, w).sleeping = static_cast<uint32_t>(random.Next());
  for (int i = 0; i < 2000; i++) {
    p.server.ctl().rx_notify = random.Below(4) == 0
                                   ? PSTN_NOTIFY_ALL
                                   : static_cast<uint32_t>(random.Next() >> random.Below(33));
    p.server.ctl().tx_wait = static_cast<uint32_t>(random.Next());
    p.server.ctl().rx_wait = static_cast<uint32_t>(random.Next());
    AnnounceData(p.bells, p.client);
    AnnounceSpace(p.bells, p.client);
  }
  CHECK(p.server.ctl().rx_wait == 0);
}

// Starts a sleeper on `word`, calls `wake` until it has gone on: more than once only if it was slow
// to sleep.
template <typename Wake>
void WakesSleeper(uint32_t& word, uint32_t value, Wake wake) {
  uint32_t awake = 0;
  std::thread sleeper([&] {
    StoreRelaxed(word, value);
    while (LoadRelaxed(word) == value) sys::FutexWait(&word, value, nullptr);
    StoreRelease(awake, 1u);
  });
  while (LoadRelaxed(word) != value) usleep(100);
  usleep(20000);
  wake();
  sleeper.join();
  CHECK(awake == 1);
  CHECK(word == 0);
}

TEST_CASE("notify: futex sleepers wake") {
  BellWorld p;
  WakesSleeper(p.server.ctl().rx_wait, 1, [&] { AnnounceData(p.bells, p.client); });
  WakesSleeper(p.server.ctl().tx_wait, PSTN_TXW_FUTEX, [&] { AnnounceSpace(p.bells, p.client); });
  AnnounceLocal(p.bells, p.client);  // nobody of ours sleeps: the kernel is not asked
  StoreRelaxed(p.client.ep->sleepers, 1u);
  WakesSleeper(p.client.ctl().rx_wait, 1, [&] { AnnounceLocal(p.bells, p.client); });
  CHECK(p.counters[kCounterFutexWakes] == 3);
  WakesSleeper(p.client.ctl().rx_wait, 1, [&] {
    StoreRelaxed(p.client.ctl().rx_wait, 0u);  // the peer's doing: shutdown() must not depend on it
    AnnounceLocal(p.bells, p.client);
  });
}

TEST_CASE("notify: returned space is posted to whom wanted it so") {
  BellWorld p;
  StoreRelaxed(p.server.ctl().rx_notify, 8u);
  AnnounceSpace(p.bells, p.client);
  CHECK(p.Map(1, 7).summary == 0);
  StoreRelaxed(p.server.ctl().tx_wait, PSTN_TXW_POST);
  AnnounceSpace(p.bells, p.client);
  CHECK(HasBit(p.Map(1, 7), 70));
  CHECK(p.server.ctl().tx_wait == 0);
  CHECK(p.counters[kCounterFutexWakes] == 0);
}

// RingRead publishes in the middle; a writer that sees the ring drained then may take it away
// before RingRead looks for more. What it leaves behind is the same as that of a second, empty
// look.
TEST_CASE("notify: a writer is told of space when its ring was taken away during the read") {
  BellWorld p;
  std::vector<uint8_t> data(3000);
  iovec iov = {data.data(), data.size()};
  IovCursor from(&iov, 1);
  REQUIRE(RingWrite(p.server, from, {}) == data.size());
  StoreRelaxed(p.server.ctl().tx_wait, PSTN_TXW_FUTEX);
  iov = {data.data(), data.size()};
  IovCursor to(&iov, 1);
  REQUIRE(RingRead(p.client, &to, data.size(), ReadMode::kTake).bytes == data.size());
  REQUIRE(RingDetach(p.server, Pages::kKeep));
  REQUIRE(RingRead(p.client, &to, 1, ReadMode::kTake).status == ReadStatus::kEmpty);
  ReturnSpace(p.bells, p.client);
  CHECK(p.server.ctl().tx_wait == 0);
  CHECK(p.counters[kCounterFutexWakes] == 1);
}

}  // namespace
}  // namespace postern
