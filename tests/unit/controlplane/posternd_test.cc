// posternd_test.cc - posternd in one process: directory, alive mark, listener check, runtime dir.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "../../../controlplane/posternd/directory/directory.h"
#include "../../../controlplane/posternd/directory/listener_check.h"
#include "../../../controlplane/posternd/kit/proc.h"
#include "../../../controlplane/posternd/kit/runtime_dir.h"
#include "../kit/catch.h"
#include "base/atomic.h"
#include "base/schema/counters.h"
#include "base/schema/reasons.h"
#include "ctl/msg_packet.h"

namespace postern::daemon {
namespace {

constexpr pstn_uuid kStack{1, 2};

Listener ListenerOn(uint16_t port, uint32_t ep) {
  Listener listener;
  listener.stack = kStack;
  listener.ep_idx = ep;
  listener.ep_gen = 1;
  listener.local.port = port;
  listener.family = AF_INET;
  listener.shares_port = true;
  listener.cookie = 1000 + ep;
  return listener;
}

// As a client walks a port's chain.
std::vector<uint32_t> EndpointsOf(const pstn_dir& dir, uint16_t port) {
  std::vector<uint32_t> found;
  for (uint32_t next = dir.port_head[port]; next != 0; next = dir.listeners[next - 1].next) {
    REQUIRE(dir.listeners[next - 1].used == 1);
    found.push_back(dir.listeners[next - 1].ep_idx);
  }
  return found;
}

uint32_t AliveWord(const pstn_dir& dir) {
  uint32_t word = 0;
  memcpy(&word, dir.alive_mutex, sizeof(word));
  return word;
}

}  // namespace

TEST_CASE("posternd: directory chains listeners of one port") {
  Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  const pstn_dir& dir = *directory.map();
  for (uint32_t ep = 1; ep <= 3; ++ep) REQUIRE(directory.Publish(ListenerOn(80, ep)) == 0);
  REQUIRE(directory.Publish(ListenerOn(81, 4)) == 0);
  CHECK(EndpointsOf(dir, 80) == std::vector<uint32_t>{1, 2, 3});

  CHECK(directory.Withdraw(kStack, 2, 1));
  CHECK_FALSE(directory.Withdraw(kStack, 2, 1));
  CHECK(EndpointsOf(dir, 80) == std::vector<uint32_t>{1, 3});

  REQUIRE(directory.Publish(ListenerOn(81, 1)) == 0);  // the same endpoint, now elsewhere
  CHECK(EndpointsOf(dir, 80) == std::vector<uint32_t>{3});
  CHECK(EndpointsOf(dir, 81) == std::vector<uint32_t>{4, 1});
  CHECK(dir.seq % 2 == 0);

  directory.WithdrawIf([](const Listener&) { return true; });
  CHECK(EndpointsOf(dir, 80).empty());
  CHECK(EndpointsOf(dir, 81).empty());
}

namespace {

constexpr uint8_t kLocal[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
struct ListenPlace {
  const char* name;
  int family, v6only;
  bool wildcard, mapped;
};
constexpr ListenPlace kListenPlaces[] = {
    {"0.0.0.0", AF_INET, 0, true, false}, {"127.0.0.1", AF_INET, 0, false, true},
    {"::", AF_INET6, 0, true, false},     {":: v6only", AF_INET6, 1, true, false},
    {"::1", AF_INET6, 0, false, false},   {"::ffff:127.0.0.1", AF_INET6, 0, false, true}};

Listener ListenerAt(const ListenPlace& place, uint32_t ep) {
  Listener l = ListenerOn(80, ep);
  l.family = static_cast<uint32_t>(place.family);
  l.v6only = static_cast<uint32_t>(place.v6only);
  l.cookie = 100 + ep;
  l.shares_port = false;
  if (place.mapped) memcpy(l.local.ip, kLocal, sizeof(kLocal));
  if (!place.wildcard && !place.mapped) l.local.ip[15] = 1;
  return l;
}

// A listening socket of the kernel's, -1 if it refuses. Port 0: any, which is then told.
int ListenAt(const ListenPlace& place, in_port_t& port) {
  sockaddr_in in{};
  sockaddr_in6 in6{};
  in.sin_family = AF_INET;
  in6.sin6_family = AF_INET6;
  in.sin_port = in6.sin6_port = port;
  if (place.mapped) in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (place.mapped) memcpy(&in6.sin6_addr, kLocal, sizeof(kLocal));
  if (!place.mapped && !place.wildcard) in6.sin6_addr = in6addr_loopback;
  const bool is4 = place.family == AF_INET;
  auto* address = is4 ? reinterpret_cast<sockaddr*>(&in) : reinterpret_cast<sockaddr*>(&in6);
  socklen_t size = is4 ? sizeof(in) : sizeof(in6);
  const int fd = socket(place.family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!is4) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &place.v6only, sizeof(place.v6only));
  if (bind(fd, address, size) != 0 || listen(fd, 1) != 0) {
    close(fd);
    return -1;
  }
  getsockname(fd, address, &size);
  port = is4 ? in.sin_port : in6.sin6_port;
  return fd;
}

bool MayBothListen(const ListenPlace& a, const ListenPlace& b) {
  for (;;) {
    in_port_t port = 0;
    const int first = ListenAt(a, port);
    REQUIRE(first >= 0);
    const int second = ListenAt(b, port);
    close(first);
    if (second >= 0) return close(second) == 0;
    const int alone = ListenAt(b, port);  // refused without the first, too: some other program's
    if (alone >= 0) return close(alone) != 0;
  }
}

}  // namespace

// The kernel, which lets one socket listen at an address unless they share the port, is asked.
TEST_CASE("posternd: who listens anew withdraws who can't listen any more") {
  for (const ListenPlace& before : kListenPlaces) {
    for (const ListenPlace& after : kListenPlaces) {
      INFO(before.name << ", then " << after.name);
      Directory directory;
      REQUIRE(directory.Create({7, 8}) == 0);
      REQUIRE(directory.Publish(ListenerAt(before, 1)) == 0);
      Listener sharing = ListenerAt(after, 2);
      sharing.shares_port = true;
      REQUIRE(directory.Publish(sharing) == 0);
      CHECK(EndpointsOf(*directory.map(), 80) == std::vector<uint32_t>{1, 2});
      REQUIRE(directory.Publish(ListenerAt(after, 3)) == 0);
      const auto left = EndpointsOf(*directory.map(), 80);
      CHECK((left.front() == 1) == MayBothListen(before, after));
      CHECK(left.back() == 3);
    }
  }
}

TEST_CASE("posternd: one socket of the kernel's is one listener of a guests' stack") {
  Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  std::vector<uint32_t> lost;
  directory.on_lost = [&](const Listener& l) { lost.push_back(l.ep_idx); };
  Listener one = ListenerOn(80, 1), other = ListenerOn(80, 2), next = ListenerOn(80, 3);
  other.stack = {3, 4};
  one.guests = next.guests = true;
  other.cookie = next.cookie = one.cookie;
  REQUIRE(directory.Publish(one) == 0);
  REQUIRE(directory.Publish(other) == 0);  // of two families that share it
  REQUIRE(directory.Publish(one) == 0);
  CHECK(lost.empty());
  REQUIRE(directory.Publish(next) == 0);
  CHECK(lost == std::vector<uint32_t>{1});
  CHECK(EndpointsOf(*directory.map(), 80) == std::vector<uint32_t>{2, 3});
}

TEST_CASE("posternd: guests leave room in the directory") {
  Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  const auto guests = [](uid_t uid, uint32_t ep) {
    Listener l = ListenerOn(1000, ep);
    l.stack = {5, uid};
    l.guests = true;
    l.uid = uid;
    return l;
  };
  // One user has half of what it leaves free: a third.
  uint32_t all = 0;
  while (directory.Publish(guests(33, all)) == 0) ++all;
  CHECK(all == kGuestsMost / 3);
  CHECK(directory.Publish(guests(33, all)) == -ENOSPC);
  CHECK(directory.Publish(guests(33, 7)) == 0);  // it is there
  CHECK(directory.Publish(ListenerOn(1001, 1)) == 0);
  CHECK(directory.Withdraw({5, 33}, 7, 1));
  CHECK(directory.Publish(guests(33, all)) == 0);
  // However many users there are, each finds a place, until there is none.
  for (uid_t uid = 34; all < kGuestsMost; ++uid) {
    uint32_t its = 0;
    while (directory.Publish(guests(uid, its)) == 0) ++its;
    REQUIRE(its != 0);
    all += its;
  }
  CHECK(directory.Publish(guests(1000, 1)) == -ENOSPC);
}

TEST_CASE("posternd: a full directory says so and stays usable") {
  Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  for (uint32_t i = 0; i < 64; ++i) REQUIRE(directory.Publish(ListenerOn(1000, i)) == 0);
  CHECK(directory.listeners().size() == 64);
  CHECK(directory.Withdraw(kStack, 5, 1));
  CHECK(directory.Publish(ListenerOn(1001, 99)) == 0);  // takes the free entry
  CHECK(EndpointsOf(*directory.map(), 1001) == std::vector<uint32_t>{99});
}

TEST_CASE("posternd: nobody else can write the directory") {
  Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  const int fd = directory.fd()->get();
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(pwrite(fd, "x", 1, 0) == -1);
  CHECK(ftruncate(fd, 0) == -1);
  void* map = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(map != MAP_FAILED);
  CHECK(mprotect(map, 4096, PROT_READ | PROT_WRITE) == -1);
  munmap(map, 4096);
}

// The kernel's promise that clients rely on, tried with a real death.
TEST_CASE("posternd: kill -9 marks the alive mutex") {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Directory directory;
    if (directory.Create({7, 8}) != 0) _exit(1);
    const int fd = directory.fd()->get();
    const ctl::Msg message;
    ctl::Packet packet(message, fd);
    sendmsg(sockets[1], &packet.header, 0);
    for (;;) pause();
  }
  ctl::Msg message;
  ctl::Packet packet(message);
  REQUIRE(recvmsg(sockets[0], &packet.header, 0) == sizeof(message));
  const int fd = packet.TakeFd(close);
  void* map = mmap(nullptr, sizeof(pstn_dir), PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(map != MAP_FAILED);
  const auto& dir = *static_cast<const pstn_dir*>(map);
  CHECK(AliveWord(dir) == static_cast<uint32_t>(child));
  kill(child, SIGKILL);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK((AliveWord(dir) & 0x40000000u) != 0);
  munmap(map, sizeof(pstn_dir));
  for (const int f : {fd, sockets[0], sockets[1]}) close(f);
}

TEST_CASE("posternd: only a listening TCP socket is one") {
  Listener listener;
  UniqueFd tcp(socket(AF_INET, SOCK_STREAM, 0));
  CHECK(CheckListener(tcp.get(), getpid(), getuid(), OwnNetnsIno(), listener) ==
        -EINVAL);  // does not listen
  REQUIRE(listen(tcp.get(), 1) == 0);
  REQUIRE(CheckListener(tcp.get(), getpid(), getuid(), OwnNetnsIno(), listener) == 0);
  CHECK(listener.local.port != 0);
  CHECK(listener.cookie != 0);
  CHECK(listener.family == AF_INET);
  CHECK(listener.netns_ino == OwnNetnsIno());
  for (const uint8_t byte : listener.local.ip) CHECK(byte == 0);
  UniqueFd local(socket(AF_UNIX, SOCK_STREAM, 0));
  CHECK(CheckListener(local.get(), getpid(), getuid(), OwnNetnsIno(), listener) == -EINVAL);
  UniqueFd file(open("/dev/null", O_RDONLY));
  CHECK(CheckListener(file.get(), getpid(), getuid(), OwnNetnsIno(), listener) == -ENOTSOCK);
}

TEST_CASE("posternd: runtime directory") {
  char place[] = "/tmp/postern-unit-XXXXXX";
  REQUIRE(mkdtemp(place) != nullptr);
  const std::string inner = std::string(place) + "/run";
  RuntimeDir first(inner), second(inner);
  REQUIRE(first.Prepare() == 0);
  REQUIRE(second.Prepare() == 0);
  REQUIRE(first.Lock() == 0);
  UniqueFd listener = first.Listen();
  REQUIRE(listener.ok());
  const pid_t answers = fork();
  if (answers == 0) {
    pollfd comes{listener.get(), POLLIN, 0};
    if (poll(&comes, 1, 20'000) != 1) _exit(1);  // nobody asks
    const UniqueFd line(accept(listener.get(), nullptr, nullptr));
    ctl::Msg message;
    const bool asked = recv(line.get(), &message, sizeof message, 0) == sizeof message;
    _exit(asked && send(line.get(), &message, sizeof message, 0) == sizeof message ? 0 : 1);
  }
  CHECK(second.Lock() == -EALREADY);
  int status = -1;
  REQUIRE(waitpid(answers, &status, 0) == answers);
  CHECK(status == 0);
  CHECK(first.WritePid() == 0);
  first.RemoveSocket();
  chmod(place, 0777);
  CHECK(RuntimeDir(place).Prepare() == -EPERM);
  CHECK(RuntimeDir(inner + "/posternd.lock").Prepare() == -ENOTDIR);
  unlink((inner + "/posternd.lock").c_str());
  rmdir(inner.c_str());
  rmdir(place);
}

TEST_CASE("posternd: a pidfd knows a reused pid") {
  const uint64_t started = StartTime(getpid());
  CHECK(started != 0);
  CHECK(OpenPidfd(getpid(), started).ok());
  CHECK_FALSE(OpenPidfd(getpid(), started + 1).ok());
  CHECK(IsAlive(getpid(), started));
  CHECK_FALSE(IsAlive(getpid(), started + 1));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(IsAlive(child, 0));  // a zombie holds nothing
  const UniqueFd pidfd = OpenPidfd(child, 0);
  CHECK(PidfdIsDead(pidfd.get()));
  waitpid(child, nullptr, 0);
}

TEST_CASE("reasons and counters have texts for every number") {
  for (uint32_t i = 0; i < PSTN_COUNTERS + 1; ++i) {
    CHECK(std::string(ReasonText(i)).size() > 10);
    CHECK(std::string(ReasonName(i)).find(' ') == std::string::npos);
    CHECK((i >= kCounterCount) == (std::string(CounterName(i)) == "unknown"));
  }
  CHECK(std::string(ReasonName(kReasonNoListener)) == "no-listener");
}

}  // namespace postern::daemon
