// mistakes_group.cc - listeners that share a port (SO_REUSEPORT): how many connections each of them
// gets.
// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "mistakes.h"

namespace mistakes {
namespace {

constexpr std::array kGroups = {2, 3, 5, 8};
constexpr int kEachOfOne = 120;  // connections for each listener, by one process
constexpr int kEachOfMany = 25;  // by a process for each
constexpr char kNextGroup = 'n';

int ListenInGroup(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  EXPECT(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  EXPECT(listen(fd, 64) == 0);
  return fd;
}

uint16_t PortOf(int fd) {
  sockaddr_in address{};
  socklen_t len = sizeof address;
  EXPECT(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &len) == 0);
  return ntohs(address.sin_port);
}

// Each connection is told the number of the listener that has it.
void ServeGroup(const std::vector<int>& listeners, int control) {
  std::vector<pollfd> fds;
  fds.reserve(listeners.size() + 1);
  for (const int fd : listeners) fds.push_back({fd, POLLIN, 0});
  fds.push_back({control, POLLIN, 0});
  for (;;) {
    EXPECT(poll(fds.data(), fds.size(), -1) > 0);
    for (size_t i = 0; i < listeners.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const int fd = accept(fds[i].fd, nullptr, nullptr);
      EXPECT(fd >= 0);
      Put(fd, std::string(1, static_cast<char>(i)));
      close(fd);
    }
    if (fds.back().revents != 0) {
      ExpectText(control, std::string(1, kNextGroup));
      return;
    }
  }
}

void GroupServe(int listener) {
  const int control = Accept(listener);
  for (const int size : kGroups) {
    std::vector<int> listeners{ListenInGroup(0)};
    const uint16_t port = PortOf(listeners[0]);
    while (listeners.size() < static_cast<size_t>(size)) listeners.push_back(ListenInGroup(port));
    Put(control, std::string(reinterpret_cast<const char*>(&port), sizeof port));
    ServeGroup(listeners, control);
    for (const int fd : listeners) close(fd);
  }
}

size_t WhoHasMe(uint16_t port) {
  const int fd = Connect(port);
  const std::string number = Get(fd, 1);
  close(fd);
  return static_cast<unsigned char>(number[0]);
}

void Print(const char* by, const std::vector<int>& counts) {
  printf("%s", by);
  for (const int count : counts) printf(" %d", count);
  printf("\n");
}

void GroupConnect(uint16_t control_port) {
  const int control = Connect(control_port);
  for (const int size : kGroups) {
    uint16_t port;
    const std::string bytes = Get(control, sizeof port);
    port = static_cast<uint16_t>(static_cast<unsigned char>(bytes[0]) |
                                 static_cast<unsigned char>(bytes[1]) << 8);
    std::vector<int> counts(static_cast<size_t>(size));
    for (int i = 0; i < kEachOfOne * size; ++i) ++counts.at(WhoHasMe(port));
    Print("one", counts);
    counts.assign(counts.size(), 0);
    fflush(stdout);
    for (int i = 0; i < kEachOfMany * size; ++i) {
      const pid_t child = fork();
      if (child == 0) _exit(static_cast<int>(WhoHasMe(port)));
      int status = -1;
      EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status));
      ++counts.at(static_cast<size_t>(WEXITSTATUS(status)));
    }
    Print("many", counts);
    Put(control, std::string(1, kNextGroup));
  }
}

}  // namespace

const Case kGroupCases[] = {{"reuseport_group", GroupServe, GroupConnect},
                            {nullptr, nullptr, nullptr}};

}  // namespace mistakes
