// SPDX-License-Identifier: Apache-2.0
// hostile_promise.cc - a peer takes back what poll() has told the victim, and a blocking victim
// that believes poll().
//
// SIGUSR1 lets either go on, when the test has seen the other's last line.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hostile.h"

namespace hostile {
namespace {

void Say(const char* line) {
  printf("%s\n", line);
  fflush(stdout);
}

// Before the first line of a process is said: no signal is lost.
sigset_t BlockGo() {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  sigprocmask(SIG_BLOCK, &go, nullptr);
  return go;
}
void AwaitGo(const sigset_t& go) {
  int number = 0;
  sigwait(&go, &number);
}

}  // namespace

int Believer(int port) {
  const sigset_t go = BlockGo();
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 || listen(listener, 1) != 0)
    Die("listen");
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) Die("accept");
  pollfd p = {fd, POLLIN, 0};
  if (poll(&p, 1, -1) != 1 || (p.revents & POLLIN) == 0) Die("poll");
  Say("told");
  AwaitGo(go);
  char byte;
  const ssize_t n = recv(fd, &byte, 1, 0);
  Say(n == 1 ? "a byte" : n == 0 ? "the end" : strerrorname_np(errno));
  return 0;
}

int Promiser(int port, bool end) {
  const sigset_t go = BlockGo();
  const int fd = Connect(port);
  if (fd < 0) Die("connect");
  if (end ? shutdown(fd, SHUT_WR) != 0 : send(fd, "x", 1, 0) != 1) Die("send");
  Say("promised");
  AwaitGo(go);
  uint32_t found = 0;
  for (const Link& link : Links()) {
    for (uint32_t i = 0; i < PSTN_CONNS; i++) {
      pstn_conn& c = link.conn(i);
      const uint64_t place = c.ctl[0].ring & PSTN_RING_PLACE;
      if (c.setup.state != PSTN_CS_ESTABLISHED || (!end && place == 0)) continue;
      found++;
      if (end) {
        __atomic_store_n(&c.ctl[0].flags, 0u, __ATOMIC_RELEASE);
      } else {
        __atomic_store_n(reinterpret_cast<uint64_t*>(link.base + place * 4096), uint64_t{0},
                         __ATOMIC_RELEASE);
      }
    }
  }
  printf("taken back %u\n", found);
  fflush(stdout);
  AwaitGo(go);
  _exit(0);
}

}  // namespace hostile
