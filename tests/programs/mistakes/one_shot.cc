// SPDX-License-Identifier: Apache-2.0
// one_shot.cc - servers that serve one client each: accept, write, close the connection and the
// listener. Nothing of it may be lost, and no client refused.
//
//   one_shot serve PATH ROUNDS THREADS   each thread has a listener for each round
//   one_shot meet PATH ROUNDS THREADS    connects to each of them, and reads to the end
//
// The server tells the port of a listener over a Unix socket at PATH, once it listens: a client
// that is refused has not come too early.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kOrders = 3;  // of the last three steps of a server
constexpr uint32_t kWays = 3;    // of a client to connect and to read

struct Told {
  uint16_t port;
  uint16_t pad;
  uint32_t number;
};

[[noreturn]] void Die(const char* what) {
  perror(what);
  exit(1);
}

sockaddr_un PathName(const char* path) {
  sockaddr_un a = {};
  a.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof a.sun_path) Die(path);
  strcpy(a.sun_path, path);
  return a;
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = port;
  return a;
}

// What the client of that number is to read: of one byte to more than one line of a ring.
std::vector<uint32_t> Text(uint32_t number) {
  return std::vector<uint32_t>(1 + number % 40, number);
}

void ServeOne(int line, uint32_t number) {
  const int l = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = Loopback(0);
  socklen_t len = sizeof a;
  if (bind(l, reinterpret_cast<sockaddr*>(&a), len) != 0 || listen(l, 1) != 0 ||
      getsockname(l, reinterpret_cast<sockaddr*>(&a), &len) != 0)
    Die("listen");
  const Told told = {a.sin_port, 0, number};
  if (write(line, &told, sizeof told) != sizeof told) Die("tell");
  const int c = accept(l, nullptr, nullptr);
  if (c < 0) Die("accept");
  const std::vector<uint32_t> text = Text(number);
  const auto bytes = static_cast<ssize_t>(text.size() * sizeof text[0]);
  if (number % kOrders == 1) close(l);
  if (write(c, text.data(), static_cast<size_t>(bytes)) != bytes) Die("write");
  if (number % kOrders == 2) close(l);
  close(c);
  if (number % kOrders == 0) close(l);
}

bool Connect(int c, uint16_t port, uint32_t number) {
  const sockaddr_in a = Loopback(port);
  const auto* sa = reinterpret_cast<const sockaddr*>(&a);
  if (number % kWays == 0) return connect(c, sa, sizeof a) == 0;
  fcntl(c, F_SETFL, O_NONBLOCK);
  if (connect(c, sa, sizeof a) != 0 && errno != EINPROGRESS) return false;
  pollfd p = {c, POLLOUT, 0};
  int error = -1;
  socklen_t len = sizeof error;
  if (poll(&p, 1, -1) != 1 || getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len) != 0) return false;
  errno = error;
  return error == 0;
}

// What comes up to the end of the stream; null: an error came.
bool ReadAll(int c, std::vector<uint32_t>& got) {
  uint32_t room[64];
  auto* bytes = reinterpret_cast<uint8_t*>(room);
  size_t have = 0;
  for (;;) {
    const ssize_t n = read(c, bytes + have, sizeof room - have);
    if (n == 0) break;
    if (n > 0) {
      have += static_cast<size_t>(n);
      continue;
    }
    if (errno != EAGAIN) return false;
    pollfd p = {c, POLLIN, 0};
    poll(&p, 1, -1);
  }
  got.assign(room, room + have / sizeof room[0]);
  return have % sizeof room[0] == 0;
}

bool MeetOne(int line, uint32_t& number) {
  Told told;
  if (recv(line, &told, sizeof told, MSG_WAITALL) != sizeof told) Die("hear");
  number = told.number;
  const int c = socket(AF_INET, SOCK_STREAM, 0);
  std::vector<uint32_t> got;
  const bool connected = Connect(c, told.port, told.number);
  const bool read_all = connected && ReadAll(c, got);
  const bool good = read_all && got == Text(told.number);
  if (!good)
    printf("round %u: %s, %zu of %zu words: %s\n", told.number,
           !connected  ? "not connected"
           : !read_all ? "an error"
                       : "an end",
           got.size(), Text(told.number).size(), strerror(errno));
  close(c);
  return good;
}

uint32_t Serve(const char* path, uint32_t rounds, uint32_t threads) {
  const sockaddr_un a = PathName(path);
  const int l = socket(AF_UNIX, SOCK_STREAM, 0);
  if (bind(l, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0 || listen(l, 64) != 0)
    Die(path);
  puts("ready");
  fflush(stdout);
  std::vector<std::thread> all;
  for (uint32_t t = 0; t < threads; t++) {
    const int line = accept(l, nullptr, nullptr);
    all.emplace_back([=] {
      for (uint32_t i = 0; i < rounds; i++) ServeOne(line, i);
      close(line);
    });
  }
  for (std::thread& t : all) t.join();
  return 0;
}

uint32_t Meet(const char* path, uint32_t rounds, uint32_t threads) {
  const sockaddr_un a = PathName(path);
  std::vector<uint32_t> bad(threads);
  std::vector<std::thread> all;
  for (uint32_t t = 0; t < threads; t++) {
    const int line = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(line, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) Die(path);
    all.emplace_back([=, &bad] {
      for (uint32_t i = 0; i < rounds; i++) {
        uint32_t number = 0;
        if (!MeetOne(line, number)) bad[t]++;
      }
      close(line);
    });
  }
  for (std::thread& t : all) t.join();
  uint32_t sum = 0;
  for (const uint32_t b : bad) sum += b;
  printf("%u of %u clients had nothing, or not all\n", sum, rounds * threads);
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const auto rounds = static_cast<uint32_t>(atoi(argv[3]));
  const auto threads = static_cast<uint32_t>(atoi(argv[4]));
  const bool serves = strcmp(argv[1], "serve") == 0;
  return (serves ? Serve : Meet)(argv[2], rounds, threads) == 0 ? 0 : 1;
}
