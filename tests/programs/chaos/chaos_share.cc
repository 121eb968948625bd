// SPDX-License-Identifier: Apache-2.0
// chaos_share.cc - several processes and threads that hold a connection at once.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "chaos.h"

namespace chaos {

bool may_start_threads = true;

namespace {

// The stream goes over `line` with the turn; each has a number of its own for the connection.
void TakeTurns(Stream& s, int line, bool first) {
  for (bool mine = first; !Finished(s); mine = !mine) {
    ssize_t n;
    if (mine) {
      for (uint64_t left = 1 + Below(s.rng, 10); left != 0 && !Finished(s); left--) Turn(s);
      while ((n = send(line, &s, sizeof s, MSG_NOSIGNAL)) < 0 && Interrupted()) {
      }
    } else {
      const int fd = s.fd;
      while ((n = recv(line, &s, sizeof s, 0)) < 0 && Interrupted()) {
      }
      s.fd = fd;
    }
    if (n != static_cast<ssize_t>(sizeof s)) Bad(&s, "the other half of a pair is gone", n);
  }
}

// Looks at the connection in many ways, and takes nothing.
[[noreturn]] void Look(Stream& s) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    char bytes[5000];
    int waiting = 0;
    socklen_t len = sizeof waiting;
    pollfd one{s.fd, POLLIN, 0};
    switch (Below(s.rng, 6)) {
      case 0:
        recv(s.fd, bytes, 1 + Below(s.rng, sizeof bytes), MSG_PEEK | MSG_DONTWAIT);
        break;
      case 1:
        recv(s.fd, bytes, 1 + Below(s.rng, sizeof bytes), MSG_PEEK);
        break;
      case 2:
        poll(&one, 1, 1);
        break;
      case 3:
        close(dup(s.fd));
        break;
      case 4:
        ioctl(s.fd, FIONREAD, &waiting);
        getsockopt(s.fd, SOL_SOCKET, SO_RCVBUF, &waiting, &len);
        break;
      default: {
        const int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN;
        epoll_ctl(set, EPOLL_CTL_ADD, s.fd, &event);
        epoll_wait(set, &event, 1, 1);
        close(set);
        break;
      }
    }
  }
}

}  // namespace

bool InTurns(Stream& s) {
  int line[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0) return false;
  const pid_t child = Fork(s);
  close(line[child == 0 ? 1 : 0]);
  TakeTurns(s, line[child == 0 ? 0 : 1], child != 0);
  close(s.fd);
  if (child == 0) _exit(0);
  close(line[1]);
  AwaitChild(s, child);
  return true;
}

bool InHalves(Stream& s) {
  // A child of a process with threads may not have threads of its own, says ThreadSanitizer.
  if (!may_start_threads) return false;
  Stream out = s, in = s;
  out.ended = true;
  in.shut = true;
  in.rng = Next(out.rng);
  std::thread sender([&] {
    while (!Finished(out)) Turn(out);
  });
  while (!Finished(in)) Turn(in);
  sender.join();
  close(s.fd);
  return true;
}

void WithBystander(Stream& s) {
  const pid_t child = Fork(s);
  if (child == 0) Look(s);
  for (uint64_t left = Below(s.rng, 200); left != 0 && !Finished(s); left--) Turn(s);
  kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && Interrupted()) {
  }
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
    Bad(&s, "a bystander was not to be killed, but ended with status", status);
}

}  // namespace chaos
