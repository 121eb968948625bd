// SPDX-License-Identifier: Apache-2.0
// chaos.cc - many connections whose ends change calls, descriptors and processes at random, under
// signals; every byte is compared with what it has to be by its position.
//
//   chaos serve PORT THREADS SEED               until it is ended
//   chaos load PORT THREADS SEED SECONDS        prints "ok CONNECTIONS BYTES", or what went wrong
//   chaos both PORT THREADS SEED SECONDS        one program family plays both parts
//   chaos carry STREAM                          goes on with a connection that it has inherited
//   chaos wrong overrun|race                    an error that a sanitizer has to report
//
// A program that knows nothing of postern.
#include "chaos.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
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
constexpr uint32_t kHops = 4;

struct Hello {
  uint64_t magic, seed, up, down, breaks;
};

std::atomic<uint64_t> connections, moved_bytes;
std::atomic<uint64_t> accepted, served;

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

void SendHello(int fd, const Hello& hello) {
  size_t done = 0;
  while (done < sizeof hello) {
    const ssize_t n =
        send(fd, reinterpret_cast<const char*>(&hello) + done, sizeof hello - done, 0);
    if (n < 0 && Interrupted()) continue;
    if (n <= 0) Bad(nullptr, "the greeting can't be sent", errno);
    done += static_cast<size_t>(n);
  }
}

bool RecvHello(int fd, Hello& hello) {
  size_t done = 0;
  while (done < sizeof hello) {
    const ssize_t n = recv(fd, reinterpret_cast<char*>(&hello) + done, sizeof hello - done, 0);
    if (n < 0 && Interrupted()) continue;
    // A client that was ended, or that breaks off: the greeting is part of what may get lost.
    if ((n == 0 && done == 0) || (n < 0 && errno == ECONNRESET)) return false;
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
    if (Interrupted()) {
      pollfd one{fd, POLLOUT, 0};
      while (poll(&one, 1, -1) < 0 && Interrupted()) {
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

// A client that has enough: what it has sent may get lost, but nothing else may come instead.
// Others may hold copies of the connection, the server's side among them: close() alone would not
// end it.
void Break(Stream s) {
  for (uint64_t n = Below(s.rng, 40); n != 0 && !Finished(s); n--) Turn(s);
  const linger reset{1, 0};
  setsockopt(s.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  if (Below(s.rng, 2) != 0) {
    connect(s.fd, &nowhere, sizeof nowhere);
  } else {
    shutdown(s.fd, SHUT_RDWR);
  }
  close(s.fd);
}

void Load(int port, uint64_t rng, long until) {
  while (Now() < until) {
    static constexpr uint64_t kSizes[] = {0, 100, 5000, 100000, 2000000};
    const Hello hello{kMagic, Next(rng), Below(rng, kSizes[Below(rng, 5)] + 1),
                      Below(rng, kSizes[Below(rng, 5)] + 1), Below(rng, 20) == 0 ? 1u : 0u};
    const int fd = Connect(port, rng);
    SendHello(fd, hello);
    const Stream s{fd,          kHops, Next(rng),  hello.seed, 0,     hello.up,
                   ~hello.seed, 0,     hello.down, false,      false, hello.breaks != 0};
    if (s.breaks) {
      Break(s);
      continue;
    }
    Exchange(s);
    connections++;
    moved_bytes += hello.up + hello.down;
  }
}

void Serve(int listener, uint64_t rng) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, Below(rng, 2) != 0 ? SOCK_CLOEXEC : 0);
    if (fd < 0 && (Interrupted() || errno == ECONNABORTED)) continue;
    if (fd < 0) Bad(nullptr, "accept", errno);
    accepted++;
    Hello hello;
    if (RecvHello(fd, hello)) {
      Exchange({fd, kHops, Next(rng), ~hello.seed, 0, hello.down, hello.seed, 0, hello.up, false,
                false, hello.breaks != 0});
    } else {
      close(fd);
    }
    served++;
  }
}

int Listen(int port) {
  // Not for the static twin: with it, the listener would leave shared memory.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
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
  // The other ends, if they are here: their last bytes are on the way.
  for (int quiet = 0; quiet < 20; quiet++) {
    usleep(10000);
    if (served != accepted) quiet = 0;
  }
  printf("ok %llu %llu\n", static_cast<unsigned long long>(connections),
         static_cast<unsigned long long>(moved_bytes));
  fflush(stdout);
  _exit(0);
}

}  // namespace

void Bad(const Stream* s, const char* what, long value) {
  char text[400], image[100];
  const ssize_t length = readlink("/proc/self/exe", image, sizeof image);
  const char* name =
      static_cast<char*>(memrchr(image, '/', static_cast<size_t>(length > 0 ? length : 0)));
  int n =
      snprintf(text, sizeof text, "BAD pid %d of %d, %.*s: %s (%ld)", getpid(), getppid(),
               name != nullptr ? static_cast<int>(image + length - name) : 0, name, what, value);
  if (s != nullptr)
    n += snprintf(
        text + n, sizeof text - static_cast<size_t>(n),
        ": fd %d, hops %u, breaks %d, sent %llu of %llu, got %llu of %llu, shut %d, ended %d",
        s->fd, s->hops, s->breaks, static_cast<unsigned long long>(s->sent),
        static_cast<unsigned long long>(s->to_send), static_cast<unsigned long long>(s->got),
        static_cast<unsigned long long>(s->to_get), s->shut, s->ended);
  text[n++] = '\n';
  if (write(1, text, static_cast<size_t>(n)) < 0) abort();
  if (getenv("CHAOS_STOP") != nullptr) raise(SIGSTOP);  // for a look with a debugger
  _exit(1);
}

// True: the peer has broken off, as it may.
static bool Broken(Stream& s, long error) {
  if (!s.breaks || (error != -ECONNRESET && error != -EPIPE && error != -ENOTCONN)) return false;
  s.shut = s.ended = true;
  return true;
}

void Turn(Stream& s) {
  if (s.sent == s.to_send && !s.shut) {
    if (shutdown(s.fd, SHUT_WR) != 0 && !Broken(s, -errno)) Bad(&s, "shutdown", errno);
    s.shut = true;
  }
  if (Finished(s)) return;
  const bool both = !s.shut && !s.ended;  // two blocking writers would wait for each other
  const bool may_block = !both && Below(s.rng, 2) != 0;
  if (!may_block) WaitFor(s, static_cast<short>((s.ended ? 0 : POLLIN) | (s.shut ? 0 : POLLOUT)));
  if (!s.shut && (s.ended || Below(s.rng, 2) != 0)) {
    const long r = SendSome(s, may_block);
    if (r < 0 && r != -EAGAIN && r != -EINTR && !Broken(s, r)) Bad(&s, "send", r);
  } else if (!s.ended) {
    const long r = RecvSome(s, may_block);
    if (r < 0 && r != -EAGAIN && r != -EINTR && !Broken(s, r)) Bad(&s, "recv", r);
    if (r == 0 && s.got != s.to_get && !s.breaks) Bad(&s, "the stream ends early", 0);
    s.ended = s.ended || r == 0;
  }
}

void Exchange(Stream s) {
  while (!Finished(s)) {
    if (PassOn(s)) return;
    Turn(s);
  }
  if (Below(s.rng, 8) == 0) {  // close() waits until the peer has everything
    const linger patient{1, 2};
    setsockopt(s.fd, SOL_SOCKET, SO_LINGER, &patient, sizeof patient);
  }
  close(s.fd);
}

void StartSignals(uint64_t seed) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = seed % 2 != 0 ? SA_RESTART : 0;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 5000}, {0, 5000}};
  setitimer(ITIMER_REAL, &often, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

}  // namespace chaos

int main(int argc, char** argv) {
  using namespace chaos;
  KnowImages(argv[0]);
  const char* role = argc > 2 ? argv[1] : "";
  if (strcmp(role, "carry") == 0) Carry(argv[2]);
  if (strcmp(role, "wrong") == 0) return DoWrong(argv[2]) ? 0 : 2;
  if (argc < 5) return 2;
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
