// SPDX-License-Identifier: Apache-2.0
// chaos_wait.cc - the calls that wait for a stream, chosen at random.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <unistd.h>

#include "chaos.h"

namespace chaos {
namespace {

constexpr int kStallMs = 120000;
constexpr timespec kStall = {kStallMs / 1000, 0};

// A set that the thread keeps, and that its children inherit: it is empty between the waits.
struct Kept {
  int set = -1;
  ~Kept() {
    if (set >= 0) close(set);
  }
};
thread_local Kept kept;

// Among descriptors of other kinds that never get ready.
int Poll(Stream& s, short events, const sigset_t* mask) {
  const int idle = eventfd(0, EFD_CLOEXEC);
  pollfd all[4] = {{-1, POLLIN, 0}, {idle, POLLIN, 0}, {s.fd, events, 0}, {idle, 0, 0}};
  const int n = Below(s.rng, 2) != 0 ? poll(all, 4, kStallMs) : ppoll(all, 4, &kStall, mask);
  const int error = errno;
  close(idle);
  if (n > 0 && (n != 1 || all[2].revents == 0)) Bad(&s, "poll tells of others", n);
  errno = error;
  return n;
}

int Select(Stream& s, short events, const sigset_t* mask) {
  fd_set in, out;
  FD_ZERO(&in);
  FD_ZERO(&out);
  if ((events & POLLIN) != 0) FD_SET(s.fd, &in);
  if ((events & POLLOUT) != 0) FD_SET(s.fd, &out);
  timeval patience{kStallMs / 1000, 0};
  return Below(s.rng, 2) != 0 ? select(s.fd + 1, &in, &out, nullptr, &patience)
                              : pselect(s.fd + 1, &in, &out, nullptr, &kStall, mask);
}

int EpollWait(Stream& s, int set, const sigset_t* mask) {
  epoll_event event{};
  const int n = Below(s.rng, 2) != 0 ? epoll_wait(set, &event, 1, kStallMs)
                                     : epoll_pwait(set, &event, 1, kStallMs, mask);
  if (n > 0 && event.data.fd != s.fd) Bad(&s, "epoll tells of another", event.data.fd);
  return n;
}

void Register(const Stream& s, int set, int op, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = s.fd;
  if (epoll_ctl(set, op, s.fd, &event) != 0) Bad(&s, "epoll_ctl", errno);
}

// A set that lives for one wait, perhaps looked at through another.
int Epoll(Stream& s, short events, const sigset_t* mask) {
  static constexpr uint32_t kKinds[] = {0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE};
  const int set = epoll_create1(EPOLL_CLOEXEC);
  if (set < 0) Bad(&s, "epoll_create1", errno);
  Register(s, set, EPOLL_CTL_ADD, static_cast<uint32_t>(events) | kKinds[Below(s.rng, 4)]);
  int n = 1;
  if (Below(s.rng, 4) == 0) {
    pollfd one{set, POLLIN, 0};
    n = poll(&one, 1, kStallMs);
  }
  if (n > 0) n = EpollWait(s, set, mask);
  const int error = errno;
  close(set);
  errno = error;
  return n;
}

int KeptEpoll(Stream& s, short events, const sigset_t* mask) {
  if (kept.set < 0) kept.set = epoll_create1(EPOLL_CLOEXEC);
  if (kept.set < 0) Bad(&s, "epoll_create1", errno);
  Register(s, kept.set, EPOLL_CTL_ADD, EPOLLONESHOT);
  Register(s, kept.set, EPOLL_CTL_MOD, static_cast<uint32_t>(events));
  const int n = EpollWait(s, kept.set, mask);
  const int error = errno;
  Register(s, kept.set, EPOLL_CTL_DEL, 0);
  errno = error;
  return n;
}

}  // namespace

void ForgetSet() { kept.set = -1; }

void WaitFor(Stream& s, short events) {
  sigset_t none;
  sigemptyset(&none);
  const sigset_t* mask = Below(s.rng, 2) != 0 ? &none : nullptr;
  const uint64_t how = Below(s.rng, s.fd < FD_SETSIZE ? 4 : 3);
  const int n = how == 0   ? Poll(s, events, mask)
                : how == 1 ? Epoll(s, events, mask)
                : how == 2 ? KeptEpoll(s, events, mask)
                           : Select(s, events, mask);
  if (n < 0 && !Interrupted()) Bad(&s, "a wait failed", errno);
  if (n == 0) Bad(&s, "no progress: waited for events", events);
}

}  // namespace chaos
