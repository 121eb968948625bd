// SPDX-License-Identifier: Apache-2.0
// descriptors_take.cc - what the numbers of all are: put there, moved and closed at any time; and
// the keepers, by which a lossless epoch's connections live until their end.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <new>

#include "descriptors_stress.h"

namespace stress {
namespace {

constexpr int kKeepersMost = 500;
int keepers[kKeepersMost];  // connections' ends
bool ended[kKeepersMost];
std::atomic<int> keeper_count;
std::mutex keepers_lock;
std::atomic<int> others[3];  // a listener and two sets, of this epoch
std::atomic<bool> parent{true};

// A number that nobody else uses; `fd` is closed.
int Private(int fd) {
  if (fd < 0) Bad("no descriptor: errno %d", errno);
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, kPrivate);
  if (high < 0) Bad("no private number: errno %d", errno);
  close(fd);
  return high;
}

sockaddr_in Loopback() {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

int Listening(uint16_t* port, int backlog) {
  const int fd = Private(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at = Loopback();
  socklen_t len = sizeof at;
  sockaddr* name = reinterpret_cast<sockaddr*>(&at);
  if (bind(fd, name, len) != 0 || listen(fd, backlog) != 0 || getsockname(fd, name, &len) != 0)
    Bad("listen: errno %d", errno);
  *port = ntohs(at.sin_port);
  return fd;
}

// The other end of `client`. A thread that connects to what Listener() was may come to this one,
// which has been given the same port since.
int AcceptFrom(int listener, int client) {
  sockaddr_in own{}, peer{};
  socklen_t len = sizeof own;
  if (getsockname(client, reinterpret_cast<sockaddr*>(&own), &len) != 0)
    Bad("getsockname: errno %d", errno);
  for (;;) {
    len = sizeof peer;
    const int fd = accept(listener, reinterpret_cast<sockaddr*>(&peer), &len);
    if (fd >= 0 && peer.sin_port == own.sin_port) return fd;
    if (fd >= 0) {
      close(fd);
    } else if (errno != EINTR && errno != 512 && errno != ECONNABORTED) {
      Bad("accept: errno %d", errno);
    }
  }
}

}  // namespace

bool MakePair(int ends[2]) {
  uint16_t port;
  const int listener = Listening(&port, 5);
  ends[0] = Private(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to = Loopback();
  to.sin_port = htons(port);
  int r;
  while ((r = connect(ends[0], reinterpret_cast<sockaddr*>(&to), sizeof to)) != 0 &&
         errno == EINTR) {
    pollfd one{ends[0], POLLOUT, 0};
    poll(&one, 1, 1000);
    r = 0;
    break;
  }
  if (r != 0) Bad("connect to a listener of its own: errno %d", errno);
  ends[1] = Private(AcceptFrom(listener, ends[0]));
  close(listener);
  shared->fresh++;
  return true;
}

namespace {

// A pair of which the epoch knows. False: it has enough of them.
bool KeepPair(int ends[2]) {
  const std::lock_guard<std::mutex> guard(keepers_lock);
  const int at = keeper_count;
  if (at + 2 > kKeepersMost || shared->stop) return false;
  MakePair(ends);
  keepers[at] = ends[0];
  keepers[at + 1] = ends[1];
  ended[at] = ended[at + 1] = false;
  keeper_count = at + 2;
  return true;
}

// What is to be at a number next.
int Any(Hand& h) {
  if (parent && shared->lossless && h.OneIn(6)) return others[h.Below(3)];
  const int n = keeper_count;
  if (parent && shared->lossless && n != 0) return keepers[h.Below(static_cast<uint64_t>(n))];
  return h.Number();
}

void PutFresh(Hand& h) {
  int ends[2];
  if (shared->lossless) {
    if (!KeepPair(ends)) return;
  } else {
    MakePair(ends);
  }
  dup2(ends[0], h.Number());
  dup2(ends[1], h.Number());
  if (shared->lossless) return;
  close(ends[0]);
  close(ends[1]);
}

void PutOther(Hand& h) {
  // A listener that only a call still has could not be shut at the end.
  if (shared->lossless || h.OneIn(2)) {
    if (!Has(Mode::kEpoll)) return;
    const int set = epoll_create1(0);
    dup2(set, h.Number());
    close(set);
    return;
  }
  uint16_t port;
  const int listener = Listening(&port, 50);
  if (!shared->lossless) shared->port = port;
  dup2(listener, h.Number());
  close(listener);
}

}  // namespace

void TakeAway(Hand& h) {
  const int number = h.Number();
  shared->taken_away++;
  int r = 0;
  switch (h.Below(9)) {
    case 0:
    case 1:
      At(h, "close", number);
      r = close(number);
      break;
    case 2:
      At(h, "dup2", number);
      r = dup2(Any(h), number);
      break;
    case 3: {
      At(h, "dup3", number);
      const int from = Any(h);
      if (from != number) r = dup3(from, number, O_CLOEXEC);
      break;
    }
    case 4: {  // the lowest number that is free, if it is one of these
      At(h, "F_DUPFD", number);
      r = fcntl(Any(h), h.OneIn(2) ? F_DUPFD : F_DUPFD_CLOEXEC, kFirst);
      if (r >= kFirst + kNumbers) close(r);
      break;
    }
    case 5: {
      At(h, "dup", number);
      const int copy = dup(number);
      r = copy;
      if (copy < 0) break;
      Transfer(h, copy, false);
      close(copy);
      break;
    }
    case 6: {
      At(h, "close_range", number);
      const auto n = static_cast<unsigned>(number);
      r = close_range(n, n, 0);
      break;
    }
    case 7:
      At(h, "a fresh pair", -1);
      if (h.OneIn(3) && (parent || !shared->lossless)) PutFresh(h);
      break;
    default:
      At(h, "a fresh listener or set", -1);
      if (h.OneIn(3)) PutOther(h);
      break;
  }
  if (r < 0) CheckError(h.seat->what, number, errno);
}

void MakeNumbers() {
  uint16_t port;
  others[0] = Listening(&port, 100);
  shared->port = port;
  for (int i = 1; i < 3; i++) others[i] = Private(epoll_create1(0));
  for (int i = 0; i < kNumbers; i += 2) {
    int ends[2];
    if (!KeepPair(ends)) Bad("no pair");
    for (const int end : ends) {
      // Small ones, so that calls that send have to wait.
      const int room = 8192;
      if (i % 4 == 0) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    }
    dup2(ends[0], kFirst + i);
    dup2(ends[1], kFirst + i + 1);
  }
  for (int i = 0; i < 3; i++) dup2(others[i], kFirst + i);
  if (shared->lossless) return;
  for (int i = 0; i < keeper_count; i++) close(keepers[i]);
  keeper_count = 0;
}

void ForgetKeepers() {
  parent = false;
  new (&keepers_lock) std::mutex;  // another thread of the parent may have had it
}

void UseKeeper(Hand& h) {
  const int n = keeper_count;
  if (n != 0) Transfer(h, keepers[h.Below(static_cast<uint64_t>(n))], false);
}

void ShutKeepers() {
  const int n = keeper_count;
  for (int i = 0; i < n; i++) shutdown(keepers[i], SHUT_WR);
  shutdown(others[0], SHUT_RDWR);
}

bool Drain() {
  static char space[65536];
  bool all = true;
  const int n = keeper_count;
  for (int i = 0; i < n; i++) {
    while (!ended[i]) {
      const ssize_t r = recv(keepers[i], space, sizeof space, MSG_DONTWAIT);
      if (r > 0) Take("recv by a keeper", keepers[i], space, static_cast<size_t>(r), false);
      if (r < 0 && errno == EAGAIN) break;
      if (r < 0) Bad("recv by a keeper: errno %d, though nobody has reset it", errno);
      ended[i] = r == 0;
    }
    all = all && ended[i];
  }
  return all;
}

void LoseNumbers() {
  for (int number = kFirst; number < kFirst + kNumbers; number++) close(number);
  for (int i = 0; i < keeper_count; i++) close(keepers[i]);
  for (auto& other : others) close(other);
  keeper_count = 0;
}

}  // namespace stress
