// SPDX-License-Identifier: Apache-2.0
// chaos_io.cc - the calls that move bytes and wait, chosen at random; each byte is checked.
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "chaos.h"

namespace chaos {
namespace {

constexpr size_t kMost = 70000;
constexpr int kStallMs = 60000;
thread_local uint8_t buffer[kMost];

void Fill(uint64_t seed, uint64_t from, uint8_t* out, size_t n) {
  for (size_t i = 0; i < n; i++, from++)
    out[i] = static_cast<uint8_t>(Mix(seed + from / 8) >> 8 * (from % 8));
}

void Check(const Stream& s, const uint8_t* bytes, size_t n) {
  if (s.got + n > s.to_get) Bad(&s, "more bytes than were sent", static_cast<long>(n));
  for (size_t i = 0; i < n; i++) {
    uint8_t want;
    Fill(s.in_seed, s.got + i, &want, 1);
    if (bytes[i] != want) Bad(&s, "another byte, this far into a read", static_cast<long>(i));
  }
}

size_t Size(Stream& s) {
  static constexpr size_t kSizes[] = {1, 7, 64, 300, 1000, 4096, 16384, kMost};
  return 1 + Below(s.rng, kSizes[Below(s.rng, 8)]);
}

}  // namespace

long SendSome(Stream& s, bool may_block) {
  size_t n = Size(s);
  if (n > s.to_send - s.sent) n = s.to_send - s.sent;
  Fill(s.out_seed, s.sent, buffer, n);
  const int flags = may_block ? 0 : MSG_DONTWAIT;
  iovec parts[2] = {{buffer, n / 3}, {buffer + n / 3, n - n / 3}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  mmsghdr many{message, 0};
  ssize_t r;
  switch (Below(s.rng, may_block ? 6 : 4)) {
    case 0:
      r = send(s.fd, buffer, n, flags);
      break;
    case 1:
      r = sendto(s.fd, buffer, n, flags | MSG_NOSIGNAL, nullptr, 0);
      break;
    case 2:
      r = sendmsg(s.fd, &message, flags);
      break;
    case 3:
      r = sendmmsg(s.fd, &many, 1, flags);
      if (r == 1) r = many.msg_len;
      break;
    case 4:
      r = write(s.fd, buffer, n);
      break;
    default:
      r = writev(s.fd, parts, 2);
      break;
  }
  if (r < 0) return -errno;
  s.sent += static_cast<uint64_t>(r);
  return r;
}

long RecvSome(Stream& s, bool may_block) {
  const size_t n = Size(s);
  const int flags = may_block ? 0 : MSG_DONTWAIT;
  iovec parts[2] = {{buffer, n / 2}, {buffer + n / 2, n - n / 2}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  mmsghdr many{message, 0};
  ssize_t r;
  bool peek = false;
  switch (Below(s.rng, may_block ? 7 : 5)) {
    case 0:
      r = recv(s.fd, buffer, n, flags);
      break;
    case 1:
      r = recvmsg(s.fd, &message, flags);
      break;
    case 2:
      r = recv(s.fd, buffer, n, flags | MSG_PEEK);
      peek = r > 0;
      break;
    case 3:
      r = recvmmsg(s.fd, &many, 1, flags, nullptr);
      if (r == 1) r = many.msg_len;
      break;
    case 4:
      r = recvfrom(s.fd, buffer, n, flags, nullptr, nullptr);
      break;
    case 5:
      r = read(s.fd, buffer, n);
      break;
    default:
      r = readv(s.fd, parts, 2);
      break;
  }
  if (r < 0) return -errno;
  Check(s, buffer, static_cast<size_t>(r));
  if (!peek) s.got += static_cast<uint64_t>(r);
  return r;
}

void WaitFor(Stream& s, short events) {
  fd_set in, out;
  const uint64_t how = Below(s.rng, s.fd < FD_SETSIZE ? 3 : 2);
  int n = 0;
  if (how == 0) {
    pollfd one{s.fd, events, 0};
    n = poll(&one, 1, kStallMs);
  } else if (how == 1) {
    const int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = static_cast<uint32_t>(events) | (Below(s.rng, 2) != 0 ? EPOLLET : 0u);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, s.fd, &event) != 0) Bad(&s, "epoll", errno);
    n = epoll_wait(set, &event, 1, kStallMs);
    const int error = errno;
    close(set);
    errno = error;
  } else {
    FD_ZERO(&in);
    FD_ZERO(&out);
    if ((events & POLLIN) != 0) FD_SET(s.fd, &in);
    if ((events & POLLOUT) != 0) FD_SET(s.fd, &out);
    timeval patience{kStallMs / 1000, 0};
    n = select(s.fd + 1, &in, &out, nullptr, &patience);
  }
  if (n < 0 && errno != EINTR) Bad(&s, "a wait failed", errno);
  if (n == 0) Bad(&s, "no progress: waited for events", events);
}

}  // namespace chaos
