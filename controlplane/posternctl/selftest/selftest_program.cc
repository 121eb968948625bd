// selftest_program.cc - the programs that the self-test runs under `postern`: an echo server, and a
// client that does what it is told on standard input. Neither knows anything of Postern.
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>

#include "selftest.h"
#include "selftest_io.h"

namespace postern::ctl_command::selftest {
namespace {

constexpr size_t kRoomBytes = 64 * 1024;

// False: this client has gone.
bool EchoOnce(Wire& wire) {
  static uint8_t room[kRoomBytes];
  const ssize_t n = recv(wire.fd(), room, sizeof(room), 0);
  return n > 0 && wire.Send({room, static_cast<size_t>(n)});
}

// "connect IP PORT" -> "ok LOCAL" when the data has come back, else "failed WHY"; the connection
// stays until "close" or the next one.
std::string Obey(const std::string& line, Wire& wire) {
  std::istringstream words(line);
  std::string verb, ip;
  uint16_t port = 0;
  words >> verb >> ip >> port;
  wire.Close();
  if (verb == "close") return "closed";
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = Address(ip, port);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0)
    return std::string("failed connect: ") + strerror(errno);
  wire = Wire(std::move(socket));
  return wire.Exchange() ? "ok " + wire.local() : "failed data";
}

}  // namespace

int ServeEcho(unsigned port) {
  signal(SIGPIPE, SIG_IGN);
  Fd listener = Listen(Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
                       Address("0.0.0.0", static_cast<uint16_t>(port)));
  std::cout << "ready" << std::endl;
  std::vector<Wire> clients;
  for (;;) {
    std::vector<pollfd> polled{{listener.get(), POLLIN, 0}};
    for (const Wire& client : clients) polled.push_back({client.fd(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return 1;
    for (size_t i = clients.size(); i > 0; i--) {
      if (polled[i].revents != 0 && !EchoOnce(clients[i - 1]))
        clients.erase(clients.begin() + static_cast<ptrdiff_t>(i - 1));
    }
    if (polled[0].revents == 0) continue;
    // None, perhaps: a client with a handshake before it becomes one later.
    Fd taken(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (taken.ok()) clients.emplace_back(std::move(taken));
  }
}

int ServeCommands() {
  signal(SIGPIPE, SIG_IGN);
  std::cout << "ready" << std::endl;
  Wire wire;
  for (std::string line; std::getline(std::cin, line);) std::cout << Obey(line, wire) << std::endl;
  return 0;
}

}  // namespace postern::ctl_command::selftest
