// listener_watch_test.cc - how a closed listener is heard of: by a watch of its socket, and
// only where there is none by the kernel's news of all sockets, which cost every connection.
// SPDX-License-Identifier: Apache-2.0
#include "../../../controlplane/posternd/directory/listener_watch.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "../../../controlplane/posternd/directory/listener_check.h"
#include "../../../controlplane/posternd/kit/proc.h"
#include "../kit/catch.h"

namespace postern::daemon {
namespace {

struct Watched {
  Watched()
      : base(event_base_new(), event_base_free),
        watch(base.get(), [this](uint64_t cookie) { ended.push_back(cookie); }) {}
  // Until something has ended.
  void Run() {
    while (ended.empty()) event_base_loop(base.get(), EVLOOP_ONCE);
  }
  std::unique_ptr<event_base, void (*)(event_base*)> base;
  std::vector<uint64_t> ended;
  ListenerWatch watch;
};

int Listening(Listener& listener) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in any{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
  REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0);
  REQUIRE(listen(fd, 1) == 0);
  REQUIRE(CheckListener(fd, getpid(), getuid(), OwnNetnsIno(), listener) == 0);
  return fd;
}

// Of the sockets of sock_diag(7) in this process, so many are in a group.
int HearOfAll() {
  const std::string ours = std::to_string(getpid());
  std::ifstream table("/proc/self/net/netlink");
  std::string line, sk, family, port, groups;
  int count = 0;
  std::getline(table, line);
  while (table >> sk >> family >> port >> groups && std::getline(table, line))
    count += family == "4" && port == ours && groups != "00000000" ? 1 : 0;
  return count;
}

TEST_CASE("a listener's end is heard when the last descriptor is closed, by nobody's else cost") {
  Watched here;
  Listener listener;
  const int fd = Listening(listener), copy = dup(fd);
  here.watch.Add(listener);
  here.watch.Hear(listener, fd);
  CHECK(HearOfAll() == 0);
  close(fd);
  event_base_loop(here.base.get(), EVLOOP_NONBLOCK);
  CHECK(here.ended.empty());
  close(copy);
  here.Run();
  CHECK(here.ended == std::vector<uint64_t>{listener.cookie});
}

TEST_CASE("a watched listener does not keep its port") {
  Watched here;
  Listener listener;
  const int fd = Listening(listener);
  here.watch.Add(listener);
  here.watch.Hear(listener, fd);
  close(fd);
  const int next = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in there{AF_INET, htons(listener.local.port), {htonl(INADDR_LOOPBACK)}, {}};
  CHECK(bind(next, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0);
  close(next);
}

TEST_CASE("of a listener without its socket the kernel tells, as long as there is one") {
  Watched here;
  Listener first, second;
  const int one = Listening(first), two = Listening(second);
  for (const Listener& l : {first, second}) {
    here.watch.Add(l);
    here.watch.Hear(l, -1);
  }
  CHECK(HearOfAll() == 1);
  close(one);
  here.Run();
  CHECK(here.ended == std::vector<uint64_t>{first.cookie});
  CHECK(HearOfAll() == 1);
  here.ended.clear();
  close(two);
  here.Run();
  CHECK(here.ended == std::vector<uint64_t>{second.cookie});
  CHECK(HearOfAll() == 0);
}

TEST_CASE("nothing is kept of a listener that is forgotten, but of another stack's") {
  Watched here;
  Listener listener;
  const int fd = Listening(listener);
  here.watch.Add(listener);
  here.watch.Hear(listener, fd);
  CHECK(here.watch.Forget(listener));
  CHECK(shutdown(fd, SHUT_RDWR) == 0);
  here.watch.LookAt(listener.stack);
  CHECK(here.ended.empty());
  Listener others = listener;
  others.stack.lo = 1;
  here.watch.Add(listener);
  here.watch.Add(others);
  CHECK(here.watch.Forget(listener));
  here.watch.LookAt(others.stack);
  CHECK(here.ended == std::vector<uint64_t>{listener.cookie});
  close(fd);
}

TEST_CASE("a listener without its socket that has ended before") {
  Watched here;
  Listener listener;
  close(Listening(listener));
  here.watch.Add(listener);
  here.watch.Hear(listener, -1);
  CHECK(here.ended == std::vector<uint64_t>{listener.cookie});
  CHECK(HearOfAll() == 0);
}

}  // namespace
}  // namespace postern::daemon
