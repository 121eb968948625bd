// xfer_wait.cc - the ways to wait for a socket.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include "xfer_io.h"

namespace xfer {
namespace {

int WaitSelect(WaitHow how, int fd, short events) {
  fd_set in, out;
  FD_ZERO(&in);
  FD_ZERO(&out);
  if (fd >= FD_SETSIZE) return -EBADF;
  if ((events & POLLIN) != 0) FD_SET(fd, &in);
  if ((events & POLLOUT) != 0) FD_SET(fd, &out);
  const int n = how == WaitHow::kSelect ? select(fd + 1, &in, &out, nullptr, nullptr)
                                        : pselect(fd + 1, &in, &out, nullptr, nullptr, nullptr);
  if (n < 0) return -errno;
  return n >= 1 && (FD_ISSET(fd, &in) || FD_ISSET(fd, &out)) ? 0 : -EPROTO;
}

int WaitPoll(WaitHow how, int fd, short events) {
  pollfd one{fd, events, 0};
  const int n = how == WaitHow::kPoll ? poll(&one, 1, -1) : ppoll(&one, 1, nullptr, nullptr);
  if (n < 0) return -errno;
  return n == 1 && one.revents != 0 ? 0 : -EPROTO;
}

// Edge triggered: registered once for both directions; the caller comes only after EAGAIN in each
// direction it wants. Level and one-shot: the set is told each time what is wanted.
int WaitEpoll(WaitHow how, int fd, short events, Lane* lane) {
  if (lane->epoll_fd < 0) lane->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (lane->epoll_fd < 0) return -errno;
  epoll_event event{};
  event.data.fd = fd;
  event.events =
      ((events & POLLIN) != 0 ? EPOLLIN : 0u) | ((events & POLLOUT) != 0 ? EPOLLOUT : 0u);
  if (how == WaitHow::kEpollEt) event.events = EPOLLIN | EPOLLOUT | EPOLLET;
  if (how == WaitHow::kEpollOneshot) event.events |= EPOLLONESHOT;
  if (lane->epoll_events == 0) {
    if (epoll_ctl(lane->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) return -errno;
  } else if (how == WaitHow::kEpollOneshot || lane->epoll_events != event.events) {
    if (epoll_ctl(lane->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0) return -errno;
  }
  lane->epoll_events = event.events;
  epoll_event got[4];
  const int n = epoll_wait(lane->epoll_fd, got, 4, -1);
  if (n < 0) return -errno;
  return n == 1 && got[0].data.fd == fd && got[0].events != 0 ? 0 : -EPROTO;
}

}  // namespace

int WaitFor(WaitHow how, int fd, short events, Lane* lane) {
  switch (how) {
    case WaitHow::kPoll:
    case WaitHow::kPpoll:
      return WaitPoll(how, fd, events);
    case WaitHow::kSelect:
    case WaitHow::kPselect:
      return WaitSelect(how, fd, events);
    case WaitHow::kEpollLt:
    case WaitHow::kEpollEt:
    case WaitHow::kEpollOneshot:
      return WaitEpoll(how, fd, events, lane);
    case WaitHow::kNone:
      break;
  }
  return -EINVAL;
}

}  // namespace xfer
