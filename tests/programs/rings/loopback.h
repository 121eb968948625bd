// SPDX-License-Identifier: Apache-2.0
// loopback.h - a listener, an address to connect to, and a pause, as small programs want them.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace loopback {

inline sockaddr_in Address(const char* port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

// -1: errno says why.
inline int Listen(const char* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in a = Address(port);
  const int on = 1;
  const bool listens = setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       bind(listener, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0 &&
                       listen(listener, 8) == 0;
  return listens ? listener : -1;
}

// SIGUSR1, for Hold() to wait for: before the first thread.
inline sigset_t HeldBy() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  return set;
}
inline void MayHold() {
  const sigset_t set = HeldBy();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}
// Says so, and waits to be told to go on. False: that failed.
inline bool Hold() {
  const sigset_t set = HeldBy();
  int number;
  std::puts("holding");
  std::fflush(stdout);
  return sigwait(&set, &number) == 0;
}

}  // namespace loopback
