// SPDX-License-Identifier: Apache-2.0
// descriptors_peer.cc - the other end of the connections: a process that does one thing after the
// other, as it is told over a Unix socket.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "descriptors.h"

namespace descriptors {
namespace {

enum class Do : uint32_t { kPort, kListen, kAccept, kAcceptThere, kDial, kSend, kGet, kShut, kEnd };
struct Order {
  Do what;
  int32_t peer, number;
  uint64_t want;
  char text[64];
};
struct Answer {
  int64_t result;
  uint64_t bytes, hash;
  char state, text[63];
};

int line = -1;  // to the peer

Answer Ask(const Order& order) {
  Answer answer{};
  if (send(line, &order, sizeof order, 0) != sizeof order) Die("the peer is gone");
  pollfd one{line, POLLIN, 0};
  for (const long end = NowMs() + 40000; poll(&one, 1, 1000) <= 0;) {
    if (NowMs() > end) Die("the peer hangs");
  }
  if (recv(line, &answer, sizeof answer, 0) != sizeof answer) Die("the peer has ended");
  return answer;
}

Answer Ask(Do what, int peer = -1, int number = 0) {
  Order order{};
  order.what = what;
  order.peer = peer;
  order.number = number;
  return Ask(order);
}

// ---- in the peer

int listener = -1, there = -1;
uint16_t port;
std::vector<int> conns;

int64_t Keep(int fd) {
  if (fd < 0) return -errno;
  conns.push_back(fd);
  return static_cast<int64_t>(conns.size()) - 1;
}

int64_t AcceptFrom(int from) {
  pollfd one{from, POLLIN, 0};
  if (poll(&one, 1, 10000) != 1) return -ETIMEDOUT;
  return Keep(accept4(from, nullptr, nullptr, SOCK_CLOEXEC));
}

int64_t DialTo(uint16_t to) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(to);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0) return Keep(fd);
  const int error = errno;
  close(fd);
  return -error;
}

void Get(int fd, uint64_t want, int patience_ms, Answer& answer) {
  std::vector<char> space(65536);
  answer.hash = Hash(nullptr, 0);
  answer.state = 'w';
  while (answer.bytes < want) {
    pollfd one{fd, POLLIN, 0};
    if (poll(&one, 1, patience_ms) != 1) {
      answer.state = 'n';
      return;
    }
    const size_t most = std::min(space.size(), static_cast<size_t>(want - answer.bytes));
    const ssize_t n = recv(fd, space.data(), most, MSG_DONTWAIT);
    if (n <= 0) {
      answer.state = n == 0 ? 'e' : errno == ECONNRESET ? 'r' : '!';
      return;
    }
    for (ssize_t i = 0; i < n && answer.bytes + static_cast<uint64_t>(i) < 60; i++)
      answer.text[answer.bytes + static_cast<uint64_t>(i)] = space[static_cast<size_t>(i)];
    answer.bytes += static_cast<uint64_t>(n);
    answer.hash = Hash(space.data(), static_cast<size_t>(n), answer.hash);
  }
}

void End(int& fd, bool reset) {
  if (reset) {
    const linger now{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  close(fd);
  fd = -1;
}

Answer Obey(const Order& order) {
  Answer a{};
  int none = -1;
  int& fd = order.peer >= 0 ? conns[static_cast<size_t>(order.peer)] : none;
  switch (order.what) {
    case Do::kPort:
      a.result = port;
      break;
    case Do::kListen: {
      uint16_t at;
      if (there >= 0) close(there);
      there = Listen(&at, order.number);
      a.result = at;
      break;
    }
    case Do::kAccept:
      a.result = AcceptFrom(listener);
      break;
    case Do::kAcceptThere:
      a.result = AcceptFrom(there);
      break;
    case Do::kDial:
      a.result = DialTo(static_cast<uint16_t>(order.number));
      break;
    case Do::kSend:
      a.result = send(fd, order.text, strlen(order.text), 0);
      break;
    case Do::kGet:
      Get(fd, order.want, order.number, a);
      break;
    case Do::kShut:
      a.result = shutdown(fd, SHUT_WR);
      break;
    case Do::kEnd:
      End(fd, order.number != 0);
      break;
  }
  return a;
}

int Serve(int orders) {
  fcntl(orders, F_SETFD, FD_CLOEXEC);
  listener = Listen(&port, 100);
  Order order;
  while (recv(orders, &order, sizeof order, 0) == sizeof order) {
    const Answer answer = Obey(order);
    if (send(orders, &answer, sizeof answer, 0) != sizeof answer) break;
  }
  return 0;
}

bool Name(const char* path, sockaddr_un& at) {
  at.sun_family = AF_UNIX;
  const size_t len = strlen(path);
  if (len >= sizeof at.sun_path) return false;
  memcpy(at.sun_path, path, len + 1);
  return true;
}

}  // namespace

int PeerMain(const char* path) {
  const int at = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un name{};
  if (!Name(path, name) || bind(at, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
      listen(at, 1) != 0)
    Die("the peer can't listen");
  const int orders = accept(at, nullptr, nullptr);
  return orders < 0 ? 1 : Serve(orders);
}

void StartPeer(const char* path) {
  if (path == nullptr) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) Die("socketpair");
    close(Socket());  // the child is of the family
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      _exit(Serve(ends[1]));
    }
    close(ends[1]);
    line = fcntl(ends[0], F_DUPFD_CLOEXEC, 200);
    close(ends[0]);
    return;
  }
  const int to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  if (!Name(path, name)) Die("the path is too long");
  const long end = NowMs() + 15000;
  while (connect(to, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) {
    if (NowMs() > end) Die("no peer");
    NapMs(5);
  }
  line = fcntl(to, F_DUPFD_CLOEXEC, 200);  // away from the numbers that the cases use
  close(to);
}

uint16_t PeerPort() {
  static uint16_t known;
  if (known == 0) known = static_cast<uint16_t>(Ask(Do::kPort).result);
  return known;
}
uint16_t PeerListen(int backlog) {
  return static_cast<uint16_t>(Ask(Do::kListen, -1, backlog).result);
}
int PeerAccept() {
  const int peer = static_cast<int>(Ask(Do::kAccept).result);
  if (peer < 0) Die("the peer can't accept");
  return peer;
}
int PeerAcceptThere() { return static_cast<int>(Ask(Do::kAcceptThere).result); }
int PeerDial(uint16_t to) { return static_cast<int>(Ask(Do::kDial, -1, to).result); }
void PeerSend(int peer, const char* text) {
  Order order{};
  order.what = Do::kSend;
  order.peer = peer;
  snprintf(order.text, sizeof order.text, "%s", text);
  if (Ask(order).result != static_cast<int64_t>(strlen(text))) Die("the peer can't send");
}
Got PeerGet(int peer, uint64_t want, int patience_ms) {
  Order order{};
  order.what = Do::kGet;
  order.peer = peer;
  order.number = patience_ms;
  order.want = want;
  const Answer a = Ask(order);
  return {a.bytes, a.hash, a.text, a.state};
}
void PeerShut(int peer) { Ask(Do::kShut, peer); }
void PeerClose(int peer) { Ask(Do::kEnd, peer, 0); }
void PeerReset(int peer) { Ask(Do::kEnd, peer, 1); }

void SayGot(const char* what, int peer, int patience_ms) {
  const Got got = PeerGet(peer, 1 << 30, patience_ms);
  const char* state = got.state == 'e'   ? "the end"
                      : got.state == 'r' ? "a reset"
                      : got.state == 'n' ? "nothing more"
                                         : "an error";
  Say("%s: %llu bytes %016llx, then %s", what, static_cast<unsigned long long>(got.bytes),
      static_cast<unsigned long long>(got.hash), state);
}

void ExpectQuiet(const char* what, int peer) {
  const Got got = PeerGet(peer, 1, 60);
  Expect(what, got.state == 'n');
}

}  // namespace descriptors
