// many.cc - many connections: opened and closed in a storm, or held without a word.
// SPDX-License-Identifier: Apache-2.0
//
//   many serve ADDRESS PORT                         answers each byte with its complement, until
//                                                   SIGTERM
//   many storm SOURCE ADDRESS PORT OPEN TOTAL SEED  opens TOTAL connections, OPEN at a time at
//   most,
//                                                   and closes them; all that twice
//   many hold  SOURCE ADDRESS PORT COUNT            opens COUNT connections and keeps them
//
// SOURCE is the address to connect from, or "any". The clients stop with the word "holding" and go
// on with SIGUSR1: `storm` when OPEN connections are open for the first time and when all are
// closed; `hold` after the first connection, after the last, and when it has used some once more.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

constexpr int kBacklog = 4096;  // as many as the kernel allows (net.core.somaxconn)
constexpr size_t kMessageMax = 64;
constexpr int kSample = 100;  // of the held connections, used once more at the end

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, strerror(errno));
  std::exit(1);
}

sockaddr_in Address(const char* ip, int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, ip, &a.sin_addr) != 1) Die(ip);
  return a;
}

// ---------------------------------------------------------------- server
volatile sig_atomic_t ended;

class Server {
 public:
  Server(const char* ip, int port)
      : listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), epoll_(epoll_create1(0)) {
    const sockaddr_in a = Address(ip, port);
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) Die("bind");
    if (listen(listener_, kBacklog) != 0) Die("listen");
    Watch(listener_);
  }

  void Run() {
    epoll_event events[256];
    while (ended == 0) {
      const int n = epoll_wait(epoll_, events, 256, -1);
      if (n < 0 && errno != EINTR) Die("epoll_wait");
      for (int i = 0; i < n; i++) {
        if (events[i].data.fd == listener_) {
          AcceptAll();
        } else {
          Answer(events[i].data.fd);
        }
      }
    }
    std::printf("served %zu\n", served_);
  }

 private:
  void Watch(int fd) const {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.fd = fd;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) != 0) Die("epoll_ctl");
  }
  void AcceptAll() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK)) >= 0; served_++)
      Watch(fd);
    if (errno != EAGAIN) Die("accept");
  }
  static void Answer(int fd) {
    unsigned char data[4096];
    const ssize_t n = recv(fd, data, sizeof data, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) Die("server's recv");
    if (n == 0) {
      close(fd);
      return;
    }
    for (ssize_t i = 0; i < n; i++) data[i] = static_cast<unsigned char>(~data[i]);
    if (send(fd, data, static_cast<size_t>(n), 0) != n) Die("server's send");
  }

  const int listener_, epoll_;
  size_t served_ = 0;
};

// ---------------------------------------------------------------- clients
class Client {
 public:
  Client(const char* source, const char* ip, int port, unsigned seed)
      : source_(strcmp(source, "any") == 0 ? nullptr : source),
        to_(Address(ip, port)),
        random_(seed) {
    sigemptyset(&go_on_);
    sigaddset(&go_on_, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go_on_, nullptr);
  }

  size_t Below(size_t n) { return random_() % n; }
  size_t open() const { return open_.size(); }

  void Open() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) Die("socket");
    if (source_ != nullptr) {
      const sockaddr_in from = Address(source_, 0);
      if (bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0) Die("bind");
    }
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to_), sizeof to_) != 0) Die("connect");
    open_.push_back(fd);
    Use(open_.size() - 1);
  }

  // A few bytes there and back. An end that got those of another connection sees it.
  void Use(size_t which) {
    unsigned char out[kMessageMax], in[kMessageMax];
    const size_t n = 1 + Below(kMessageMax);
    for (size_t i = 0; i < n; i++) out[i] = static_cast<unsigned char>(random_());
    if (send(open_[which], out, n, 0) != static_cast<ssize_t>(n)) Die("send");
    if (recv(open_[which], in, n, MSG_WAITALL) != static_cast<ssize_t>(n)) Die("recv");
    for (size_t i = 0; i < n; i++) {
      if (in[i] != static_cast<unsigned char>(~out[i])) {
        std::fprintf(stderr, "connection %zu: byte %zu of %zu is wrong\n", which, i, n);
        std::exit(1);
      }
    }
  }

  void Close(size_t which) {
    if (close(open_[which]) != 0) Die("close");
    open_[which] = open_.back();
    open_.pop_back();
  }

  void Stop() const {
    std::printf("holding\n");
    std::fflush(stdout);
    int sig = 0;
    sigwait(&go_on_, &sig);
  }

 private:
  const char* source_;
  const sockaddr_in to_;
  std::mt19937 random_;
  std::vector<int> open_;
  sigset_t go_on_;
};

void Storm(Client& client, size_t most, size_t total) {
  bool stopped = false;
  for (size_t opened = 0; opened < total || client.open() != 0;) {
    const size_t what =
        client.Below(8);  // more are opened than closed, as long as there are some to open
    if (opened < total && client.open() < most && (what < 4 || client.open() == 0)) {
      client.Open();
      opened++;
      if (client.open() == most && !stopped) {
        client.Stop();
        stopped = true;
      }
    } else if (what < 6 && client.open() != 0) {
      client.Use(client.Below(client.open()));
    } else if (client.open() != 0 && (stopped || what == 7)) {
      client.Close(client.Below(client.open()));
    }
  }
  client.Stop();
}

void HoldMany(Client& client, size_t count) {
  client.Open();
  client.Stop();
  while (client.open() < count) client.Open();
  client.Stop();
  for (int i = 0; i < kSample; i++) client.Use(client.Below(count));
  client.Stop();
}

int Number(const char* text) { return static_cast<int>(strtol(text, nullptr, 10)); }

}  // namespace

int main(int argc, char** argv) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (argc == 4 && strcmp(argv[1], "serve") == 0) {
    struct sigaction end {};
    end.sa_handler = [](int) { ended = 1; };
    sigaction(SIGTERM, &end, nullptr);
    Server(argv[2], Number(argv[3])).Run();
    return 0;
  }
  if (argc == 8 && strcmp(argv[1], "storm") == 0) {
    Client client(argv[2], argv[3], Number(argv[4]), static_cast<unsigned>(Number(argv[7])));
    for (int i = 0; i < 2; i++)
      Storm(client, static_cast<size_t>(Number(argv[5])), static_cast<size_t>(Number(argv[6])));
    return 0;
  }
  if (argc == 6 && strcmp(argv[1], "hold") == 0) {
    Client client(argv[2], argv[3], Number(argv[4]), 1);
    HoldMany(client, static_cast<size_t>(Number(argv[5])));
    return 0;
  }
  std::fprintf(stderr, "usage: see the head of many.cc\n");
  return 2;
}
