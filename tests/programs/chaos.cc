// SPDX-License-Identifier: Apache-2.0
// chaos.cc - many connections whose ends change calls, descriptors and processes at random, under
// signals; every byte is compared with what it has to be by its position.
//
//   chaos serve PORT THREADS SEED               until it is ended
//   chaos load PORT THREADS SEED SECONDS        prints "ok CONNECTIONS BYTES", or what went wrong
//   chaos both PORT THREADS SEED SECONDS        one program family plays both parts
//
// A program that knows nothing of postern.
#include "chaos.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace chaos {
namespace {

constexpr uint64_t kMagic = 0x63686170736f7321u;
constexpr uint32_t kHops = 3;

struct Hello {
  uint64_t magic, seed, up, down;
};

std::atomic<uint64_t> connections, bytes;

long Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec;
}

sockaddr_in Address(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

// A timer interrupts whatever call is under way; with SA_RESTART or without.
void StartSignals(uint64_t seed) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = seed % 2 != 0 ? SA_RESTART : 0;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 5000}, {0, 5000}};
  setitimer(ITIMER_REAL, &often, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void SendHello(int fd, const Hello& hello) {
  size_t done = 0;
  while (done < sizeof hello) {
    const ssize_t n =
        send(fd, reinterpret_cast<const char*>(&hello) + done, sizeof hello - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Bad(nullptr, "the greeting can't be sent", errno);
    done += static_cast<size_t>(n);
  }
}

bool RecvHello(int fd, Hello& hello) {
  size_t done = 0;
  while (done < sizeof hello) {
    const ssize_t n = recv(fd, reinterpret_cast<char*>(&hello) + done, sizeof hello - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 && done == 0) return false;  // a client that was ended
    if (n <= 0) Bad(nullptr, "no greeting", n < 0 ? errno : 0);
    done += static_cast<size_t>(n);
  }
  if (hello.magic != kMagic) Bad(nullptr, "a wrong greeting", 0);
  return true;
}

int Connect(int port, uint64_t& rng) {
  for (;;) {
    const int fd = socket(AF_INET, SOCK_STREAM | (Below(rng, 2) != 0 ? SOCK_CLOEXEC : 0), 0);
    if (fd < 0) Bad(nullptr, "socket", errno);
    const sockaddr_in to = Address(port);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return fd;
    // An interrupted connect() goes on by itself (POSIX).
    if (errno == EINTR) {
      pollfd one{fd, POLLOUT, 0};
      while (poll(&one, 1, -1) < 0 && errno == EINTR) {
      }
      int error = 0;
      socklen_t len = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
      if (error == 0) return fd;
      errno = error;
    }
    if (errno != ECONNREFUSED && errno != EADDRNOTAVAIL) Bad(nullptr, "connect", errno);
    close(fd);
    usleep(10000);
  }
}

void Load(int port, uint64_t rng, long until) {
  while (Now() < until) {
    static constexpr uint64_t kSizes[] = {0, 100, 5000, 100000, 2000000};
    const Hello hello{kMagic, Next(rng), Below(rng, kSizes[Below(rng, 5)] + 1),
                      Below(rng, kSizes[Below(rng, 5)] + 1)};
    const int fd = Connect(port, rng);
    SendHello(fd, hello);
    Exchange(
        {fd, kHops, Next(rng), hello.seed, 0, hello.up, ~hello.seed, 0, hello.down, false, false});
    connections++;
    bytes += hello.up + hello.down;
  }
}

void Serve(int listener, uint64_t rng) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, Below(rng, 2) != 0 ? SOCK_CLOEXEC : 0);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) Bad(nullptr, "accept", errno);
    Hello hello;
    if (!RecvHello(fd, hello)) {
      close(fd);
      continue;
    }
    Exchange(
        {fd, kHops, Next(rng), ~hello.seed, 0, hello.down, hello.seed, 0, hello.up, false, false});
  }
}

int Listen(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in at = Address(port);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 || listen(fd, 512) != 0)
    Bad(nullptr, "listen", errno);
  return fd;
}

void StartServing(int port, int threads, uint64_t seed) {
  const int listener = Listen(port);
  StartAdopter(false);
  for (int i = 0; i < threads; i++)
    std::thread(Serve, listener, seed + 1000 * static_cast<uint64_t>(i)).detach();
}

int RunLoad(int port, int threads, uint64_t seed, long seconds) {
  const long until = Now() + seconds;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++)
    all.emplace_back(Load, port, seed + 7777 * static_cast<uint64_t>(i), until);
  for (auto& one : all) one.join();
  printf("ok %llu %llu\n", static_cast<unsigned long long>(connections),
         static_cast<unsigned long long>(bytes));
  fflush(stdout);
  _exit(0);
}

}  // namespace

void Bad(const Stream* s, const char* what, long value) {
  char text[400];
  int n = snprintf(text, sizeof text, "BAD pid %d: %s (%ld)", getpid(), what, value);
  if (s != nullptr)
    n += snprintf(text + n, sizeof text - static_cast<size_t>(n),
                  ": fd %d, hops %u, sent %llu of %llu, got %llu of %llu, shut %d, ended %d", s->fd,
                  s->hops, static_cast<unsigned long long>(s->sent),
                  static_cast<unsigned long long>(s->to_send),
                  static_cast<unsigned long long>(s->got),
                  static_cast<unsigned long long>(s->to_get), s->shut, s->ended);
  text[n++] = '\n';
  if (write(1, text, static_cast<size_t>(n)) < 0) abort();
  if (getenv("CHAOS_STOP") != nullptr) raise(SIGSTOP);  // for a look with a debugger
  _exit(1);
}

void Exchange(Stream s) {
  for (;;) {
    if (s.sent == s.to_send && !s.shut) {
      if (shutdown(s.fd, SHUT_WR) != 0) Bad(&s, "shutdown", errno);
      s.shut = true;
    }
    if (s.shut && s.ended) break;
    if (PassOn(s)) return;
    const bool both = !s.shut && !s.ended;  // two blocking writers would wait for each other
    const bool may_block = !both && Below(s.rng, 2) != 0;
    if (!may_block) WaitFor(s, static_cast<short>((s.ended ? 0 : POLLIN) | (s.shut ? 0 : POLLOUT)));
    if (!s.shut && (s.ended || Below(s.rng, 2) != 0)) {
      const long r = SendSome(s, may_block);
      if (r < 0 && r != -EAGAIN && r != -EINTR) Bad(&s, "send", r);
    } else if (!s.ended) {
      const long r = RecvSome(s, may_block);
      if (r < 0 && r != -EAGAIN && r != -EINTR) Bad(&s, "recv", r);
      if (r == 0 && s.got != s.to_get) Bad(&s, "the stream ends early", 0);
      s.ended = r == 0;
    }
  }
  close(s.fd);
}

}  // namespace chaos

int main(int argc, char** argv) {
  using namespace chaos;
  if (argc < 5) return 2;
  const char* role = argv[1];
  const int port = atoi(argv[2]), threads = atoi(argv[3]);
  const uint64_t seed = strtoull(argv[4], nullptr, 10);
  StartSignals(seed);
  StartAdopter(true);
  if (strcmp(role, "load") != 0) StartServing(port, threads, seed);
  if (strcmp(role, "serve") == 0) {
    for (;;) pause();
  }
  if (argc < 6) return 2;
  if (strcmp(role, "load") == 0) {
    close(socket(AF_INET, SOCK_STREAM, 0));
    StartAdopter(false);
  }
  return RunLoad(port, threads, seed, atol(argv[5]));
}
