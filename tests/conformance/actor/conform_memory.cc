// conform_memory.cc - calls whose memory is not there, can only be read, or ends too soon; lengths.
// SPDX-License-Identifier: Apache-2.0
//
// `bad CALL WHERE NAME [NAME]`: what of the call lies at WHERE is said by CALL's name; WHERE is
// said by where.h. `cut CALL SIZE GOOD WHERE NAME`: so many bytes, of which the first are there.

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "conform.h"
#include "where.h"

namespace conform {
namespace {

struct Call {
  const std::string what, where;
  const int fd, other;
};

sockaddr_in Loopback(int listener) {
  sockaddr_in name{};
  socklen_t len = sizeof name;
  (void)getsockname(listener, reinterpret_cast<sockaddr*>(&name), &len);
  return name;
}

// The pieces of a vector; "second" is the last of two.
std::string Vectors(const Call& c) {
  char good[5] = {'g', 'o', 'o', 'd', '.'};
  const Memory buffer(c.where, "0123456789", 10);
  iovec pieces[2] = {{good, sizeof good}, {buffer.As<void>(), 10}};
  const Memory vector(c.where, iovec{good, sizeof good});
  if (c.what == "writev") return Outcome(writev(c.fd, vector.As<iovec>(), 1));
  if (c.what == "readv") return Outcome(readv(c.fd, vector.As<iovec>(), 1));
  if (c.what == "writevsecond") return Outcome(writev(c.fd, pieces, 2));
  if (c.what == "readvsecond") return Outcome(readv(c.fd, pieces, 2));
  return "";
}

std::string Plain(const Call& c) {
  const Memory buffer(c.where, "0123456789", 10);
  void* at = buffer.As<void>();
  if (c.what == "read") return Outcome(read(c.fd, at, 10));
  if (c.what == "write") return Outcome(write(c.fd, at, 10));
  if (c.what == "recv") return Outcome(recv(c.fd, at, 10, MSG_DONTWAIT));
  if (c.what == "peek") return Outcome(recv(c.fd, at, 10, MSG_DONTWAIT | MSG_PEEK));
  if (c.what == "send") return Outcome(send(c.fd, at, 10, MSG_NOSIGNAL));
  if (c.what == "sendoob") return Outcome(send(c.fd, at, 10, MSG_NOSIGNAL | MSG_OOB));
  const std::string many(3 * kPage / 2, 'm');
  const Memory large(c.where, many.data(), many.size());
  if (c.what == "sendlarge")
    return Outcome(send(c.fd, large.As<void>(), many.size(), MSG_NOSIGNAL));
  if (c.what == "recvlarge")
    return Outcome(recv(c.fd, large.As<void>(), many.size(), MSG_DONTWAIT));
  off_t start = 0;
  const Memory offset(c.where, start);
  if (c.what == "sendfile") return Outcome(sendfile(c.fd, c.other, offset.As<off_t>(), 4));
  if (c.what == "splice")
    return Outcome(splice(c.other, offset.As<off64_t>(), c.fd, nullptr, 4, SPLICE_F_NONBLOCK));
  return "";
}

std::string Messages(const Call& c) {
  char byte[4] = {};
  iovec piece{byte, sizeof byte};
  msghdr plain{};
  plain.msg_iov = &piece;
  plain.msg_iovlen = 1;
  const Memory header(c.where, plain), vector(c.where, piece);
  if (c.what == "sendmsg") return Outcome(sendmsg(c.fd, header.As<msghdr>(), MSG_NOSIGNAL));
  if (c.what == "recvmsg") return Outcome(recvmsg(c.fd, header.As<msghdr>(), MSG_DONTWAIT));
  mmsghdr two[2] = {{plain, 0}, {plain, 0}};
  if (c.what == "sendmmsgsecond" || c.what == "recvmmsgsecond") {
    const Memory buffer(c.where, "second", 6);
    iovec bad{buffer.As<void>(), 6};
    two[1].msg_hdr.msg_iov = &bad;
    return Outcome(c.what[0] == 's' ? sendmmsg(c.fd, two, 2, MSG_NOSIGNAL)
                                    : recvmmsg(c.fd, two, 2, MSG_DONTWAIT, nullptr));
  }
  const Memory both(c.where, two);
  if (c.what == "sendmmsg") return Outcome(sendmmsg(c.fd, both.As<mmsghdr>(), 2, MSG_NOSIGNAL));
  if (c.what == "recvmmsg")
    return Outcome(recvmmsg(c.fd, both.As<mmsghdr>(), 2, MSG_DONTWAIT, nullptr));
  timespec none{};
  const Memory time(c.where, none);
  if (c.what == "recvmmsgtime")
    return Outcome(recvmmsg(c.fd, two, 1, MSG_DONTWAIT, time.As<timespec>()));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  const Memory address(c.where, name);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  const Memory ancillary(c.where, control, sizeof control);
  msghdr with = plain;
  if (c.what.find("iov") != std::string::npos) with.msg_iov = vector.As<iovec>();
  if (c.what.find("name") != std::string::npos) {
    with.msg_name = address.As<void>();
    with.msg_namelen = sizeof name;
  }
  if (c.what.find("control") != std::string::npos) {
    with.msg_control = ancillary.As<void>();
    with.msg_controllen = sizeof control;
  }
  if (c.what.rfind("sendmsg", 0) == 0) return Outcome(sendmsg(c.fd, &with, MSG_NOSIGNAL));
  if (c.what.rfind("recvmsg", 0) == 0) return Outcome(recvmsg(c.fd, &with, MSG_DONTWAIT));
  if (c.what == "sendto")
    return Outcome(sendto(c.fd, "to", 2, MSG_NOSIGNAL, address.As<sockaddr>(), sizeof name));
  socklen_t room = sizeof name;
  const Memory length(c.where, room);
  if (c.what == "recvfrom")
    return Outcome(recvfrom(c.fd, byte, 1, MSG_DONTWAIT, address.As<sockaddr>(), &room));
  if (c.what == "recvfromlen")
    return Outcome(recvfrom(c.fd, byte, 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&name),
                            length.As<socklen_t>()));
  return "";
}

std::string Names(const Call& c) {
  sockaddr_in name = c.what == "connect" ? Loopback(c.other) : sockaddr_in{};
  name.sin_family = AF_INET;
  auto* sa = reinterpret_cast<sockaddr*>(&name);
  socklen_t room = sizeof name;
  const Memory address(c.where, name), length(c.where, room);
  auto* at = address.As<sockaddr>();
  auto* len = length.As<socklen_t>();
  if (c.what == "connect") return Outcome(connect(c.fd, at, sizeof name));
  if (c.what == "bind") return Outcome(bind(c.fd, at, sizeof name));
  if (c.what == "name") return Outcome(getsockname(c.fd, at, &room));
  if (c.what == "namelen") return Outcome(getsockname(c.fd, sa, len));
  if (c.what == "peer") return Outcome(getpeername(c.fd, at, &room));
  if (c.what == "peerlen") return Outcome(getpeername(c.fd, sa, len));
  if (c.what != "accept" && c.what != "acceptlen") return "";
  const int fd = c.what == "accept" ? accept(c.fd, at, &room) : accept(c.fd, sa, len);
  if (fd >= 0) close(fd);
  return fd >= 0 ? "ok" : Errno();
}

std::string Options(const Call& c) {
  const struct {
    const char* name;
    int level, option;
  } all[] = {{"reuse", SOL_SOCKET, SO_REUSEADDR},   {"nodelay", IPPROTO_TCP, TCP_NODELAY},
             {"sndbuf", SOL_SOCKET, SO_SNDBUF},     {"linger", SOL_SOCKET, SO_LINGER},
             {"rcvtimeo", SOL_SOCKET, SO_RCVTIMEO}, {"rcvlowat", SOL_SOCKET, SO_RCVLOWAT},
             {"error", SOL_SOCKET, SO_ERROR},       {"info", IPPROTO_TCP, TCP_INFO},
             {"cork", IPPROTO_TCP, TCP_CORK},       {"quickack", IPPROTO_TCP, TCP_QUICKACK},
             {"mss", IPPROTO_TCP, TCP_MAXSEG},      {"congestion", IPPROTO_TCP, TCP_CONGESTION},
             {"peername", SOL_SOCKET, SO_PEERNAME}, {"device", SOL_SOCKET, SO_BINDTODEVICE}};
  uint64_t value[2] = {1, 0};
  socklen_t room = sizeof value;
  const Memory option(c.where, value), length(c.where, room);
  std::string out;
  for (const auto& o : all) {
    if (c.what == "set")
      out += " " + Outcome(setsockopt(c.fd, o.level, o.option, option.As<void>(), sizeof value));
    if (c.what == "get")
      room = sizeof value,
      out += " " + Outcome(getsockopt(c.fd, o.level, o.option, option.As<void>(), &room));
    if (c.what == "getlen")
      out += " " + Outcome(getsockopt(c.fd, o.level, o.option, value, length.As<socklen_t>()));
  }
  return out;
}

std::string Waits(const Call& c) {
  pollfd fds[2] = {{c.fd, POLLIN | POLLOUT, 0}, {c.other, POLLIN | POLLOUT, 0}};
  const Memory all(c.where, fds);
  const timespec now{};
  if (c.what == "poll") return Outcome(poll(all.As<pollfd>(), 2, 0));
  if (c.what == "ppoll") return Outcome(ppoll(all.As<pollfd>(), 2, &now, nullptr));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(c.fd, &set);
  timeval zero{};
  const Memory bits(c.where, &set, sizeof(long));  // of more the kernel looks at what it likes
  auto* at = bits.As<fd_set>();
  constexpr int kAll = 8 * sizeof(long);
  if (c.what == "selectr") return Outcome(select(kAll, at, nullptr, nullptr, &zero));
  if (c.what == "selectw") return Outcome(select(kAll, nullptr, at, nullptr, &zero));
  if (c.what == "pselect")
    return Outcome(pselect(kAll, at, bits.As<fd_set>(), bits.As<fd_set>(), &now, nullptr));
  const Memory fine(c.where, now), coarse(c.where, zero);
  sigset_t none;
  sigemptyset(&none);
  const Memory mask(c.where, none);
  if (c.what == "ppolltime")
    return c.where == "null" ? "for ever" : Outcome(ppoll(fds, 2, fine.As<timespec>(), nullptr));
  if (c.what == "ppollmask") return Outcome(ppoll(fds, 2, &now, mask.As<sigset_t>()));
  if (c.what == "selecttime")
    return c.where == "null" ? "for ever"
                             : Outcome(select(kAll, &set, nullptr, nullptr, coarse.As<timeval>()));
  if (c.what == "pselecttime")
    return c.where == "null"
               ? "for ever"
               : Outcome(pselect(kAll, &set, nullptr, nullptr, fine.As<timespec>(), nullptr));
  if (c.what == "pselectmask")
    return Outcome(pselect(kAll, &set, nullptr, nullptr, &now, mask.As<sigset_t>()));
  epoll_event events[2] = {};
  events[0].events = EPOLLIN | EPOLLOUT;
  const Memory event(c.where, events[0]), room(c.where, events);
  if (c.what == "add")
    return Outcome(epoll_ctl(c.fd, EPOLL_CTL_ADD, c.other, event.As<epoll_event>()));
  if (c.what == "mod")
    return Outcome(epoll_ctl(c.fd, EPOLL_CTL_MOD, c.other, event.As<epoll_event>()));
  if (c.what == "del")
    return Outcome(epoll_ctl(c.fd, EPOLL_CTL_DEL, c.other, event.As<epoll_event>()));
  if (c.what == "wait") return Outcome(epoll_wait(c.fd, room.As<epoll_event>(), 2, 0));
  if (c.what == "waitone") return Outcome(epoll_wait(c.fd, room.As<epoll_event>(), 1, 0));
  if (c.what == "pwaitmask") return Outcome(epoll_pwait(c.fd, events, 2, 0, mask.As<sigset_t>()));
  if (c.what == "pwait2time")
    return c.where == "null" ? "for ever"
                             : Outcome(epoll_pwait2(c.fd, events, 2, fine.As<timespec>(), nullptr));
  if (c.what == "pwait") return Outcome(epoll_pwait(c.fd, room.As<epoll_event>(), 2, 0, nullptr));
  return "";
}

std::string Others(const Call& c) {
  int number[2] = {1, 0};
  const Memory two(c.where, number), one(c.where, number[0]);
  if (c.what == "fionread") return Outcome(ioctl(c.fd, FIONREAD, one.As<int>()));
  if (c.what == "fionbio") return Outcome(ioctl(c.fd, FIONBIO, one.As<int>()));
  if (c.what == "outq") return Outcome(ioctl(c.fd, TIOCOUTQ, one.As<int>()));
  if (c.what == "lock") return Outcome(fcntl(c.fd, F_GETLK, one.As<int>()));
  if (c.what == "pipe") return pipe(two.As<int>()) == 0 ? "ok" : Errno();
  if (c.what == "socketpair")
    return socketpair(AF_UNIX, SOCK_STREAM, 0, two.As<int>()) == 0 ? "ok" : Errno();
  char name[] = "/nowhere/none";
  char* strings[] = {name, nullptr};
  const Memory list(c.where, strings), path(c.where, name, sizeof name);
  if (c.what == "execpath") return Outcome(execve(path.As<char>(), strings, strings));
  if (c.what == "execenv") return Outcome(execve("/bin/true", strings, list.As<char*>()));
  if (c.what == "execvar") {
    char* variables[] = {path.As<char>(), nullptr};
    return Outcome(execve("/bin/true", strings, variables));
  }
  return "";
}

std::string Bad(const Args& a) {
  const Call call = {a[0], a[1], Fd(a[2]), a.size() > 3 ? Fd(a[3]) : -1};
  for (const auto kind : {Plain, Vectors, Messages, Names, Options, Waits, Others}) {
    errno = 0;
    const std::string out = kind(call);
    if (!out.empty()) return out;
  }
  return "SCRIPT ERROR: no such call";
}

// `odd WHAT NAME`: lengths that are no lengths, or that say of nothing how long it is.
std::string Odd(const Args& a) {
  const int fd = Fd(a[1]);
  const std::string& what = a[0];
  char byte = 'o';
  sockaddr_storage name{};
  auto* sa = reinterpret_cast<sockaddr*>(&name);
  auto* nowhere = static_cast<sockaddr*>(Nowhere());
  constexpr auto kNegative = static_cast<socklen_t>(-1);
  constexpr int kSend = MSG_NOSIGNAL, kRecv = MSG_DONTWAIT;
  socklen_t len = what == "recvfrom-negative" ? kNegative : sizeof name;
  iovec piece{&byte, 1};
  msghdr m{};
  m.msg_iov = &piece;
  m.msg_iovlen = 1;
  if (what == "sendto-negative") return Outcome(sendto(fd, &byte, 1, kSend, sa, kNegative));
  if (what == "sendto-long") return Outcome(sendto(fd, &byte, 1, kSend, sa, 129));
  if (what == "sendto-short") return Outcome(sendto(fd, &byte, 1, kSend, sa, 1));
  if (what == "sendto-none") return Outcome(sendto(fd, &byte, 1, kSend, nowhere, 0));
  if (what == "sendto-nowhere") return Outcome(sendto(fd, &byte, 1, kSend, nowhere, 16));
  if (what == "sendto-null") return Outcome(sendto(fd, &byte, 1, kSend, nullptr, kNegative));
  if (what == "recvfrom-negative") return Outcome(recvfrom(fd, &byte, 1, kRecv, sa, &len));
  if (what == "recvfrom-length") {
    auto* no_length = static_cast<socklen_t*>(Nowhere());
    return Outcome(recvfrom(fd, &byte, 1, kRecv, sa, no_length));
  }
  if (what == "recvfrom-null") return Outcome(recvfrom(fd, &byte, 1, kRecv, nullptr, &len));
  if (what == "name-negative") m.msg_name = sa, m.msg_namelen = kNegative;
  if (what == "name-long") m.msg_name = sa, m.msg_namelen = 4096;
  if (what == "name-null") m.msg_namelen = kNegative;
  if (what == "name-nowhere") m.msg_name = nowhere, m.msg_namelen = 16;
  if (what == "control-huge") m.msg_control = sa, m.msg_controllen = size_t{1} << 32;
  if (what == "control-null") m.msg_controllen = 64;
  if (what == "pieces-many") m.msg_iovlen = 1025;
  if (what == "piece-negative") piece.iov_len = static_cast<size_t>(-1);
  const ssize_t sent = sendmsg(fd, &m, kSend);
  std::string out = "send " + Outcome(sent);
  piece.iov_len = what == "piece-negative" ? static_cast<size_t>(-1) : 1;
  const ssize_t got = recvmsg(fd, &m, kRecv);
  return out + " recv " + Outcome(got) +
         (got >= 0 ? " namelen " + std::to_string(static_cast<int>(m.msg_namelen)) : "");
}

// The data of a call, whose end is missing; what it has got of them is compared.
std::string Cut(const Args& a) {
  const std::string& what = a[0];
  const auto size = static_cast<size_t>(Number(a[1]));
  const auto good = static_cast<size_t>(Number(a[2]));
  const int fd = Fd(a[4]);
  const Halves memory(a[3], good);
  char* const at = memory.at();
  constexpr int kSend = MSG_NOSIGNAL, kRecv = MSG_DONTWAIT;
  iovec pieces[2] = {{at, good / 2}, {at + good / 2, size - good / 2}};
  msghdr one{};
  one.msg_iov = pieces;
  one.msg_iovlen = 2;
  mmsghdr two[2] = {{one, 0}, {one, 0}};
  if (what == "send") return Outcome(send(fd, at, size, kSend));
  if (what == "sendnow") return Outcome(sendto(fd, at, size, kSend | MSG_DONTWAIT, nullptr, 0));
  if (what == "write") return Outcome(write(fd, at, size));
  if (what == "writev") return Outcome(writev(fd, pieces, 2));
  if (what == "sendmsg") return Outcome(sendmsg(fd, &one, kSend));
  if (what == "sendmmsg") return Outcome(sendmmsg(fd, two, 2, kSend));
  memset(at, '.', good);
  ssize_t n = -1;
  errno = ENOSYS;
  if (what == "recv") n = recv(fd, at, size, kRecv);
  if (what == "recvall") n = recv(fd, at, size, kRecv | MSG_WAITALL);
  if (what == "peek") n = recv(fd, at, size, kRecv | MSG_PEEK);
  if (what == "trunc") n = recv(fd, at, size, kRecv | MSG_TRUNC);
  if (what == "recvfrom") n = recvfrom(fd, at, size, kRecv, nullptr, nullptr);
  if (what == "read") n = read(fd, at, size);
  if (what == "readv") n = readv(fd, pieces, 2);
  if (what == "recvmsg") n = recvmsg(fd, &one, kRecv);
  if (what == "recvmmsg") n = recvmmsg(fd, two, 2, kRecv, nullptr);
  const auto told = static_cast<size_t>(what == "recvmmsg" && n > 0 ? two[0].msg_len : n);
  return n < 0 ? Errno() : std::to_string(n) + " " + Data(std::string(at, std::min(told, good)));
}

}  // namespace

const Entry kMemoryCommands[] = {
    {"bad", 3, Bad}, {"cut", 5, Cut}, {"odd", 2, Odd}, {nullptr, 0, nullptr}};

}  // namespace conform
