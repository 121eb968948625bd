// SPDX-License-Identifier: Apache-2.0
// chaos_hands.cc - a stream changes its descriptor or its process while its bytes flow.
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "chaos.h"

namespace chaos {
namespace {

constexpr uint64_t kSeldom = 50;  // one chance in so many, at each turn of a stream

int adopter_lines[2] = {-1, -1};  // [1]: one that was started before the first socket

// A stream, its descriptor, and a pipe whose writing end says by closing that it is at its end.
struct Parcel {
  Stream stream;
  char control[CMSG_SPACE(2 * sizeof(int))];
};

msghdr Header(Parcel& p, iovec& piece) {
  piece = {&p.stream, sizeof p.stream};
  msghdr h{};
  h.msg_iov = &piece;
  h.msg_iovlen = 1;
  h.msg_control = p.control;
  h.msg_controllen = sizeof p.control;
  return h;
}

void SendParcel(int line, const Stream& s, int pipe_end) {
  Parcel p{s, {}};
  iovec piece;
  msghdr h = Header(p, piece);
  cmsghdr* c = CMSG_FIRSTHDR(&h);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int fds[2] = {s.fd, pipe_end};
  memcpy(CMSG_DATA(c), fds, sizeof fds);
  while (sendmsg(line, &h, MSG_NOSIGNAL) < 0) {
    if (!Interrupted()) Bad(&s, "a stream could not be passed on", errno);
  }
}

// Each parcel gets a process of its own, so that one that fails is told from the others.
[[noreturn]] void Adopt(int line) {
  for (;;) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    Parcel p{};
    iovec piece;
    msghdr h = Header(p, piece);
    const ssize_t n = recvmsg(line, &h, 0);
    if (n < 0 && Interrupted()) continue;
    if (n <= 0) _exit(0);
    int fds[2];
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof fds);
    p.stream.fd = fds[0];
    const pid_t child = fork();
    if (child < 0) Bad(&p.stream, "fork", errno);
    if (child == 0) {
      Exchange(p.stream);
      const char done = 1;
      _exit(write(fds[1], &done, 1) == 1 ? 0 : 1);
    }
    close(fds[0]);
    close(fds[1]);
  }
}

void AwaitByte(const Stream& s, int fd) {
  char done = 0;
  ssize_t n;
  while ((n = read(fd, &done, 1)) < 0 && Interrupted()) {
  }
  close(fd);
  if (n != 1) Bad(&s, "who had the stream died with it", n);
}

bool ToAdopter(Stream& s, bool stranger) {
  int ends[2];
  if (adopter_lines[stranger ? 1 : 0] < 0 || pipe2(ends, O_CLOEXEC) != 0) return false;
  SendParcel(adopter_lines[stranger ? 1 : 0], s, ends[1]);
  close(ends[1]);
  close(s.fd);
  AwaitByte(s, ends[0]);
  return true;
}

// In the child, all numbers but the stream's are closed.
void CloseOthers(const Stream& s) {
  adopter_lines[0] = adopter_lines[1] = -1;
  ForgetSet();
  const auto fd = static_cast<unsigned>(s.fd);
  if (fd > 3) close_range(3, fd - 1, 0);
  close_range(fd + 1, ~0u, 0);
}

bool ToChild(Stream& s) {
  const pid_t child = Fork(s);
  if (child == 0) {
    if (Below(s.rng, 4) == 0) CloseOthers(s);
    Exchange(s);
    _exit(0);
  }
  close(s.fd);
  AwaitChild(s, child);
  return true;
}

// Its parent is gone when it goes on.
bool ToGrandchild(Stream& s) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const pid_t child = Fork(s);
  if (child == 0) {
    if (Fork(s) != 0) _exit(0);
    Exchange(s);
    const char done = 1;
    _exit(write(ends[1], &done, 1) == 1 ? 0 : 1);
  }
  close(ends[1]);
  close(s.fd);
  AwaitChild(s, child);
  AwaitByte(s, ends[0]);
  return true;
}

// Over a number that means something else until then.
void OverLiveNumber(Stream& s) {
  int ends[2] = {-1, -1};
  int live = -1;
  switch (Below(s.rng, 4)) {
    case 0:
      live = dup(s.fd);
      break;
    case 1:
      live = socket(AF_INET, SOCK_STREAM, 0);
      break;
    case 2:
      live = epoll_create1(EPOLL_CLOEXEC);
      break;
    default:
      if (pipe2(ends, O_CLOEXEC) == 0) live = ends[0];
      break;
  }
  if (live < 0) Bad(&s, "a descriptor", errno);
  const int r = Below(s.rng, 2) != 0 ? dup2(s.fd, live) : dup3(s.fd, live, O_CLOEXEC);
  if (r != live) Bad(&s, "dup2", errno);
  close(s.fd);
  if (ends[1] >= 0) close(ends[1]);
  s.fd = live;
}

void NewNumber(Stream& s) {
  const int fd = Below(s.rng, 2) != 0 ? dup(s.fd) : fcntl(s.fd, F_DUPFD_CLOEXEC, 200);
  if (fd < 0) Bad(&s, "dup", errno);
  close(s.fd);
  s.fd = fd;
}

}  // namespace

void StartAdopter(bool stranger) {
  int line[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0)
    Bad(nullptr, "socketpair", errno);
  const pid_t pid = fork();
  if (pid < 0) Bad(nullptr, "fork", errno);
  if (pid == 0) {
    close(line[1]);
    if (stranger) {  // a family of its own begins with its first socket
      close(socket(AF_INET, SOCK_STREAM, 0));
    }
    Adopt(line[0]);
  }
  close(line[0]);
  adopter_lines[stranger ? 1 : 0] = line[1];
}

pid_t Fork(Stream& s) {
  const pid_t child = fork();
  if (child < 0) Bad(&s, "fork", errno);
  if (child == 0) {
    may_start_threads = false;
    if (Below(s.rng, 2) != 0) StartSignals(s.rng);
  }
  return child;
}

void AwaitChild(const Stream& s, pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && Interrupted()) {
  }
  if (status != 0) Bad(&s, "a child that had the stream ended with status", status);
}

bool PassOn(Stream& s) {
  if (Below(s.rng, kSeldom) != 0) return false;
  const uint64_t how = Below(s.rng, 16);
  if (how < 3) NewNumber(s);
  if (how == 3 || how == 4) OverLiveNumber(s);
  if (how < 5 || s.hops == 0) return false;
  s.hops--;
  switch (how) {
    case 5:
      WithBystander(s);
      return false;
    case 6:
      return InTurns(s);
    case 7:
      return InHalves(s);
    case 8:
      return ToGrandchild(s);
    case 9:
      return ToAdopter(s, false);
    case 10:
      return ToAdopter(s, true);
    case 11:
      return ToImage(s, Start::kFork);
    case 12:
      return ToImage(s, Start::kVfork);
    case 13:
      return ToImage(s, Start::kSpawn);
    default:
      return ToChild(s);
  }
}

}  // namespace chaos
