// SPDX-License-Identifier: Apache-2.0
// descriptors_acts.cc - calls by numbers that others take away: transfers, waits, connections.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "descriptors_stress.h"

namespace stress {
namespace {

constexpr uint32_t kMost = 4;  // ops in one call
thread_local char space[kMost * kOpBytes];

// ---- receiving

long ReceiveBy(Hand& h, int number, size_t bytes, int flags) {
  iovec parts[2] = {{space, bytes / 3}, {space + bytes / 3, bytes - bytes / 3}};
  msghdr one{};
  one.msg_iov = parts;
  one.msg_iovlen = 2;
  switch (h.Below(flags == 0 ? 5 : 3)) {
    case 0:
      At(h, "recv", number);
      return recv(number, space, bytes, flags);
    case 1:
      At(h, "recvmsg", number);
      return recvmsg(number, &one, flags);
    case 2:
      At(h, "recvfrom", number);
      return recvfrom(number, space, bytes, flags, nullptr, nullptr);
    case 3:
      At(h, "read", number);
      return read(number, space, bytes);
    default:
      At(h, "readv", number);
      return readv(number, parts, 2);
  }
}

// Several messages into one space, one after the other.
long ReceiveMany(Hand& h, int number, int flags) {
  mmsghdr m[3] = {};
  iovec parts[3];
  for (size_t i = 0; i < 3; i++) {
    parts[i] = {space + i * kOpBytes, kOpBytes};
    m[i].msg_hdr.msg_iov = &parts[i];
    m[i].msg_hdr.msg_iovlen = 1;
  }
  At(h, "recvmmsg", number);
  const int n = recvmmsg(number, m, 3, flags | MSG_WAITFORONE, nullptr);
  for (int i = 0; i < n; i++) {
    const auto at = static_cast<size_t>(i);
    Take("recvmmsg", number, space + at * kOpBytes, m[at].msg_len, false);
  }
  return n;
}

void Receive(Hand& h, int number, bool may_block) {
  static constexpr size_t kSizes[] = {16, 64, 1000, kOpBytes, kMost * kOpBytes};
  int flags = may_block ? 0 : MSG_DONTWAIT;
  long n;
  if (h.OneIn(8)) {
    n = ReceiveMany(h, number, flags);
  } else {
    const bool peeks = h.OneIn(10);
    if (peeks) flags |= MSG_PEEK;
    if (may_block && h.OneIn(6)) flags |= MSG_WAITALL;
    n = ReceiveBy(h, number, kSizes[h.Below(5)], flags);
    if (n > 0) Take(h.seat->what, number, space, static_cast<size_t>(n), peeks);
  }
  if (n < 0) CheckError(h.seat->what, number, errno);
}

// ---- sending

long SendBy(Hand& h, int number, size_t bytes, int flags) {
  iovec parts[2] = {{space, bytes / 3}, {space + bytes / 3, bytes - bytes / 3}};
  msghdr one{};
  one.msg_iov = parts;
  one.msg_iovlen = 2;
  switch (h.Below(flags == 0 ? 5 : 3)) {
    case 0:
      At(h, "send", number);
      return send(number, space, bytes, flags);
    case 1:
      At(h, "sendmsg", number);
      return sendmsg(number, &one, flags);
    case 2:
      At(h, "sendto", number);
      return sendto(number, space, bytes, flags, nullptr, 0);
    case 3:
      At(h, "write", number);
      return write(number, space, bytes);
    default:
      At(h, "writev", number);
      return writev(number, parts, 2);
  }
}

void Send(Hand& h, int number, bool may_block) {
  const uint32_t pieces = h.OneIn(4) ? 1 + static_cast<uint32_t>(h.Below(kMost)) : 1;
  uint32_t op[kMost], bytes[kMost], all = 0;
  for (uint32_t i = 0; i < pieces; i++) {
    bytes[i] = 8 * (1 + static_cast<uint32_t>(h.Below(h.OneIn(2) ? 20 : kOpBytes / 8)));
    op[i] = BeginOp(bytes[i], space + all);
    if (op[i] != kNoOp) all += bytes[i];
  }
  if (all == 0) return;
  const long n = SendBy(h, number, all, may_block ? 0 : MSG_DONTWAIT);
  const int error = errno;
  uint32_t left = n > 0 ? static_cast<uint32_t>(n) : 0;
  for (uint32_t i = 0; i < pieces; i++) {
    if (op[i] == kNoOp) continue;
    const uint32_t part = left < bytes[i] ? left : bytes[i];
    EndOp(op[i], static_cast<int32_t>(part));
    left -= part;
  }
  if (n < 0) CheckError(h.seat->what, number, error);
}

// ---- waiting

void Poll(Hand& h) {
  pollfd some[4];
  const nfds_t n = 1 + h.Below(4);
  for (nfds_t i = 0; i < n; i++)
    some[i] = {h.Number(), static_cast<short>(h.OneIn(3) ? POLLOUT : POLLIN), 0};
  const int ms = static_cast<int>(h.Below(20));
  const timespec ts{0, ms * 1000000};
  At(h, "poll", some[0].fd);
  const int r = h.OneIn(2) ? poll(some, n, ms) : ppoll(some, n, &ts, nullptr);
  if (r < 0) CheckError("poll", some[0].fd, errno);
  for (nfds_t i = 0; r > 0 && i < n; i++) {
    if ((some[i].revents & (POLLIN | POLLOUT)) != 0) Transfer(h, some[i].fd, false);
  }
}

void Select(Hand& h) {
  fd_set in, out;
  FD_ZERO(&in);
  FD_ZERO(&out);
  for (int i = 0; i < 4; i++) FD_SET(h.Number(), h.OneIn(3) ? &out : &in);
  timeval tv{0, static_cast<suseconds_t>(h.Below(20000))};
  At(h, "select", -1);
  const int r = select(kFirst + kNumbers, &in, &out, nullptr, &tv);
  if (r < 0) CheckError("select", -1, errno);
  for (int number = kFirst; r > 0 && number < kFirst + kNumbers; number++) {
    if (FD_ISSET(number, &in) || FD_ISSET(number, &out)) Transfer(h, number, false);
  }
}

void EpollWait(Hand& h) {
  epoll_event got[8];
  const int set = h.Number();
  At(h, "epoll_wait", set);
  const int r =
      epoll_wait(set, got, static_cast<int>(1 + h.Below(8)), static_cast<int>(h.Below(20)));
  if (r < 0) CheckError("epoll_wait", set, errno);
  for (int i = 0; i < r; i++) {
    // Registered by this program alone, and always with what this says.
    if (got[i].data.u64 >> 32 != 0x5eed || (got[i].data.u64 & 0xffff) < kFirst ||
        (got[i].data.u64 & 0xffff) >= kFirst + kNumbers)
      Bad("epoll_wait by %d: an event that nobody has registered: %llx", set,
          static_cast<unsigned long long>(got[i].data.u64));
    Transfer(h, static_cast<int>(got[i].data.u64 & 0xffff), false);
  }
}

void EpollCtl(Hand& h) {
  static constexpr uint32_t kEvents[] = {
      EPOLLIN, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLOUT | EPOLLET,
      0};
  static constexpr int kWays[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
  const int set = h.Number(), number = h.Number();
  epoll_event ev{};
  ev.events = kEvents[h.Below(6)];
  ev.data.u64 = uint64_t{0x5eed} << 32 | static_cast<uint64_t>(number);
  At(h, "epoll_ctl", set);
  if (epoll_ctl(set, kWays[h.Below(4)], number, &ev) != 0) CheckError("epoll_ctl", set, errno);
}

// ---- connections that are nobody's but the moment's

sockaddr_in Listener() {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(shared->port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return to;
}

void Connect(Hand& h) {
  // (A full backlog lets a blocked one wait for seconds; a lossless epoch does not interrupt it.)
  const bool waits = !shared->lossless && h.OneIn(2);
  const int fd = socket(AF_INET, SOCK_STREAM | (waits ? 0 : SOCK_NONBLOCK), 0);
  if (fd < 0) Bad("socket: errno %d", errno);
  const sockaddr_in to = Listener();
  int number = fd;
  if (!shared->lossless && h.OneIn(2)) {  // others may close it, or connect it, meanwhile
    number = h.Number();
    dup2(fd, number);
  }
  At(h, "connect", number);
  if (connect(number, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    CheckError("connect", number, errno);
  if (!shared->lossless && number == fd) dup2(fd, h.Number());
  close(fd);
}

void Accept(Hand& h) {
  const int number = h.Number();
  At(h, "accept", number);
  const int fd = accept4(number, nullptr, nullptr, h.OneIn(2) ? SOCK_NONBLOCK : 0);
  if (fd < 0) return CheckError("accept", number, errno);
  if (!shared->lossless) dup2(fd, h.Number());
  close(fd);
}

// Only where bytes may be lost.
void Shut(Hand& h) {
  const int number = h.Number();
  At(h, "shutdown", number);
  if (h.OneIn(3)) {
    const linger reset{1, 0};
    if (setsockopt(number, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) != 0)
      CheckError("setsockopt", number, errno);
  } else if (shutdown(number, static_cast<int>(h.Below(3))) != 0) {
    CheckError("shutdown", number, errno);
  }
}

void AskThings(Hand& h) {
  const int number = h.Number();
  sockaddr_storage at;
  socklen_t len = sizeof at;
  int value;
  socklen_t size = sizeof value;
  At(h, "getpeername", number);
  if (getpeername(number, reinterpret_cast<sockaddr*>(&at), &len) != 0)
    CheckError("getpeername", number, errno);
  At(h, "getsockopt", number);
  if (getsockopt(number, SOL_SOCKET, SO_TYPE, &value, &size) != 0)
    CheckError("getsockopt", number, errno);
  At(h, "fcntl", number);
  if (fcntl(number, F_GETFL) < 0) CheckError("fcntl", number, errno);
}

}  // namespace

void Transfer(Hand& h, int number, bool may_block) {
  if (h.OneIn(2)) {
    Receive(h, number, may_block);
  } else {
    Send(h, number, may_block);
  }
}

void Act(Hand& h) {
  const uint64_t what = h.Below(100);
  if (what < 45) {
    Transfer(h, h.Number(), h.OneIn(4));
  } else if (what < 65) {
    TakeAway(h);
  } else if (what < 70) {
    Poll(h);
  } else if (what < 74) {
    Select(h);
  } else if (what < 84) {
    if (Has(Mode::kEpoll)) h.OneIn(2) ? EpollWait(h) : EpollCtl(h);
  } else if (what < 87) {
    Connect(h);
  } else if (what < 90) {
    Accept(h);
  } else if (what < 92) {
    if (!shared->lossless) Shut(h);
  } else if (what < 94) {
    AskThings(h);
  } else if (what < 95) {
    ExchangePrivately(h);
  } else if (what < 97) {
    if (h.may_fork && h.OneIn(8)) MakeChild(h);
  } else {
    Pass(h);
  }
  h.seat->acts++;
}

}  // namespace stress
