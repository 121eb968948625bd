// SPDX-License-Identifier: Apache-2.0
// hostile_honest.cc - the victim, an ordinary epoll server, and the third party, a client that
// checks what it gets.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <string>

#include "../kit/sha256.h"
#include "hostile.h"

namespace hostile {
namespace {

constexpr size_t kBulk = 65536, kSmall = 64, kSmallsPerRound = 20;
constexpr int kRoundsPerConnection = 50;

volatile sig_atomic_t stop = 0;

// Echoes; what does not go out at once is kept, and until it is gone nothing more is read.
class Server {
 public:
  explicit Server(int port)
      : epoll_(epoll_create1(0)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 ||
        listen(listener_, 1024) != 0)
      Die("listen");
    Watch(EPOLL_CTL_ADD, listener_, EPOLLIN);
  }
  void Run() {
    while (stop == 0) {
      epoll_event got[64];
      const int n = epoll_wait(epoll_, got, 64, 1000);
      for (int i = 0; i < n; i++) {
        if (got[i].data.fd == listener_) {
          AcceptAll();
        } else {
          Serve(got[i].data.fd);
        }
      }
    }
    for (const auto& [fd, unsent] : unsent_) close(fd);
    close(listener_);
  }

 private:
  void Watch(int how, int fd, uint32_t events) const {
    epoll_event e = {};
    e.events = events;
    e.data.fd = fd;
    if (epoll_ctl(epoll_, how, fd, &e) != 0) Die("epoll_ctl");
  }
  void AcceptAll() {
    for (int i = 0; i < 64; i++) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK);
      if (fd < 0) return;
      unsent_[fd] = {};
      Watch(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
  }
  void Serve(int fd) {
    std::string& unsent = unsent_[fd];
    char data[kBulk];
    if (unsent.empty()) {
      const ssize_t n = recv(fd, data, sizeof data, 0);
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) return Close(fd);
      unsent.assign(data, static_cast<size_t>(n));
    }
    const ssize_t sent = send(fd, unsent.data(), unsent.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return Close(fd);
    if (sent > 0) unsent.erase(0, static_cast<size_t>(sent));
    Watch(EPOLL_CTL_MOD, fd, unsent.empty() ? EPOLLIN : EPOLLOUT);
  }
  void Close(int fd) {
    close(fd);
    unsent_.erase(fd);
  }

  int epoll_, listener_;
  std::map<int, std::string> unsent_;
};

bool All(int fd, char* at, size_t bytes, bool out) {
  while (bytes != 0) {
    const ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool Exchange(int fd, std::string& out, std::string& in, size_t bytes, Random& random,
              xfer::Sha256* sums) {
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t v = random.Next();
    memcpy(&out[i], &v, 8);
  }
  if (!All(fd, out.data(), bytes, true) || !All(fd, in.data(), bytes, false)) return false;
  sums[0].Update(out.data(), bytes);
  sums[1].Update(in.data(), bytes);
  return memcmp(out.data(), in.data(), bytes) == 0;
}

}  // namespace

int Victim(int port) {
  struct sigaction a = {};
  a.sa_handler = [](int) { stop = 1; };
  sigaction(SIGTERM, &a, nullptr);
  const rlimit many = {65536, 65536};
  (void)setrlimit(RLIMIT_NOFILE, &many);
  Server(port).Run();
  printf("ended\n");
  return 0;
}

int Honest(int port, double seconds, uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  Random random(seed);
  std::string out(kBulk, 0), in(kBulk, 0);
  xfer::Sha256 sums[2];
  int fd = -1;
  uint64_t rounds = 0;
  const auto start = Clock::now();
  auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double longest = 0;
  for (; passed() < seconds; rounds++) {
    const double began = passed();
    if (rounds % kRoundsPerConnection == 0) {
      if (fd >= 0) close(fd);
      if ((fd = Connect(port)) < 0) Die("connect");
    }
    bool right = Exchange(fd, out, in, kBulk, random, sums);
    for (size_t i = 0; i < kSmallsPerRound; i++)
      right = right && Exchange(fd, out, in, kSmall, random, sums);
    if (!right) Die("the echo is wrong");
    if (passed() - began > longest) longest = passed() - began;
  }
  close(fd);
  const std::string sent = sums[0].Hex(), got = sums[1].Hex();
  printf("%.1f rounds/s, longest %.1f ms, sha256 %s %s\n", static_cast<double>(rounds) / passed(),
         longest * 1e3, sent.c_str(), sent == got ? "same" : "DIFFERENT");
  return sent == got ? 0 : 1;
}

}  // namespace hostile
