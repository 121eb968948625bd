// conform_sockets.cc - commands that make, name, end and set up sockets.
// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "conform.h"

namespace conform {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t len = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address ToAddress(const std::string& host, const std::string& port) {
  Address a;
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&a.storage);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&a.storage);
  if (host.find(':') != std::string::npos) {
    v6->sin6_family = AF_INET6;
    inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr);
    v6->sin6_port = htons(static_cast<uint16_t>(Number(port)));
    a.len = sizeof *v6;
  } else {
    v4->sin_family = host == "unspec" ? AF_UNSPEC : AF_INET;
    inet_pton(AF_INET, host == "unspec" ? "0.0.0.0" : host.c_str(), &v4->sin_addr);
    v4->sin_port = htons(static_cast<uint16_t>(Number(port)));
    a.len = sizeof *v4;
  }
  return a;
}

std::string Text(const Address& a) {
  char host[64] = "?";
  if (a.len == 0) return "none";
  if (a.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&a.storage);
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    return std::string("[") + host + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  if (a.storage.ss_family != AF_INET) return "family " + std::to_string(a.storage.ss_family);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&a.storage);
  inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
  return std::string(host) + ":" + std::to_string(ntohs(v4->sin_port));
}

int SocketFlags(const Args& args, size_t from) {
  int flags = 0;
  for (size_t i = from; i < args.size(); ++i)
    flags |= args[i] == "nonblock" ? SOCK_NONBLOCK : args[i] == "cloexec" ? SOCK_CLOEXEC : 0;
  return flags;
}

std::string Socket(const Args& args) {
  const int family = args[1] == "inet6" ? AF_INET6 : args[1] == "unix" ? AF_UNIX : AF_INET;
  const int type = args[2] == "dgram" ? SOCK_DGRAM : SOCK_STREAM;
  return Made(args[0], socket(family, type | SocketFlags(args, 3), 0));
}

std::string Bind(const Args& args) {
  Address a = ToAddress(args[1], args[2]);
  return Outcome(bind(Fd(args[0]), a.get(), a.len));
}

std::string Connect(const Args& args) {
  Address a = ToAddress(args[1], args[2]);
  if (args.size() > 3) a.len = static_cast<socklen_t>(Number(args[3]));
  return Outcome(connect(Fd(args[0]), a.get(), a.len));
}

std::string Listen(const Args& args) {
  return Outcome(listen(Fd(args[0]), static_cast<int>(Number(args[1]))));
}

std::string Accept(const Args& args) {
  Address a;
  a.len = sizeof a.storage;
  const int fd = accept4(Fd(args[0]), a.get(), &a.len, SocketFlags(args, 2));
  return fd < 0 ? Errno() : Made(args[1], fd) + " from " + Text(a);
}

std::string AcceptNull(const Args& args) {
  return Made(args[1], accept(Fd(args[0]), nullptr, nullptr));
}

std::string AcceptShort(const Args& args) {
  Address a;
  a.len = 4;
  const int fd = accept(Fd(args[0]), a.get(), &a.len);
  return fd < 0 ? Errno() : Made(args[1], fd) + " len " + std::to_string(a.len);
}

std::string Name(const Args& args) {
  Address a;
  a.len = sizeof a.storage;
  return getsockname(Fd(args[0]), a.get(), &a.len) != 0 ? Errno() : Text(a);
}

std::string Peer(const Args& args) {
  Address a;
  a.len = sizeof a.storage;
  return getpeername(Fd(args[0]), a.get(), &a.len) != 0 ? Errno() : Text(a);
}

std::string Shutdown(const Args& args) {
  const int how = args[1] == "rd"     ? SHUT_RD
                  : args[1] == "wr"   ? SHUT_WR
                  : args[1] == "rdwr" ? SHUT_RDWR
                                      : 77;
  return Outcome(shutdown(Fd(args[0]), how));
}

std::string Close(const Args& args) { return Outcome(close(Fd(args[0]))); }
std::string CloseRange(const Args& args) {
  return Outcome(
      close_range(static_cast<unsigned>(Fd(args[0])), static_cast<unsigned>(Fd(args[0])), 0));
}
std::string Dup(const Args& args) { return Made(args[1], dup(Fd(args[0]))); }
std::string Dup2(const Args& args) { return Outcome(dup2(Fd(args[0]), Fd(args[1])) >= 0 ? 0 : -1); }
std::string Dup3(const Args& args) {
  return Outcome(dup3(Fd(args[0]), Fd(args[1]), O_CLOEXEC) >= 0 ? 0 : -1);
}
std::string DupFd(const Args& args) {
  return Made(args[1], fcntl(Fd(args[0]), F_DUPFD_CLOEXEC, 100));
}

// Whether a new descriptor gets the number that a closed one had.
std::string Lowest(const Args& args) {
  const int old = Fd(args[0]);
  const int fd = dup(0);
  const std::string result = fd == old  ? "same number"
                             : fd < old ? "lower number"
                                        : "higher number";
  close(fd);
  return result;
}

enum class Kind { kInt, kLinger, kTime, kText };
struct Option {
  int level, name;
  Kind kind;
};

const std::map<std::string, Option> kOptions = {
    {"ACCEPTCONN", {SOL_SOCKET, SO_ACCEPTCONN, Kind::kInt}},
    {"BROADCAST", {SOL_SOCKET, SO_BROADCAST, Kind::kInt}},
    {"DOMAIN", {SOL_SOCKET, SO_DOMAIN, Kind::kInt}},
    {"ERROR", {SOL_SOCKET, SO_ERROR, Kind::kInt}},
    {"KEEPALIVE", {SOL_SOCKET, SO_KEEPALIVE, Kind::kInt}},
    {"LINGER", {SOL_SOCKET, SO_LINGER, Kind::kLinger}},
    {"OOBINLINE", {SOL_SOCKET, SO_OOBINLINE, Kind::kInt}},
    {"PRIORITY", {SOL_SOCKET, SO_PRIORITY, Kind::kInt}},
    {"PROTOCOL", {SOL_SOCKET, SO_PROTOCOL, Kind::kInt}},
    {"RCVBUF", {SOL_SOCKET, SO_RCVBUF, Kind::kInt}},
    {"SNDBUF", {SOL_SOCKET, SO_SNDBUF, Kind::kInt}},
    {"RCVLOWAT", {SOL_SOCKET, SO_RCVLOWAT, Kind::kInt}},
    {"SNDLOWAT", {SOL_SOCKET, SO_SNDLOWAT, Kind::kInt}},
    {"RCVTIMEO", {SOL_SOCKET, SO_RCVTIMEO, Kind::kTime}},
    {"SNDTIMEO", {SOL_SOCKET, SO_SNDTIMEO, Kind::kTime}},
    {"REUSEADDR", {SOL_SOCKET, SO_REUSEADDR, Kind::kInt}},
    {"REUSEPORT", {SOL_SOCKET, SO_REUSEPORT, Kind::kInt}},
    {"TYPE", {SOL_SOCKET, SO_TYPE, Kind::kInt}},
    {"BUSY_POLL", {SOL_SOCKET, SO_BUSY_POLL, Kind::kInt}},
    {"DONTROUTE", {SOL_SOCKET, SO_DONTROUTE, Kind::kInt}},
    {"TIMESTAMP", {SOL_SOCKET, SO_TIMESTAMP, Kind::kInt}},
    {"NODELAY", {IPPROTO_TCP, TCP_NODELAY, Kind::kInt}},
    {"CORK", {IPPROTO_TCP, TCP_CORK, Kind::kInt}},
    {"KEEPIDLE", {IPPROTO_TCP, TCP_KEEPIDLE, Kind::kInt}},
    {"KEEPINTVL", {IPPROTO_TCP, TCP_KEEPINTVL, Kind::kInt}},
    {"KEEPCNT", {IPPROTO_TCP, TCP_KEEPCNT, Kind::kInt}},
    {"DEFER_ACCEPT", {IPPROTO_TCP, TCP_DEFER_ACCEPT, Kind::kInt}},
    {"QUICKACK", {IPPROTO_TCP, TCP_QUICKACK, Kind::kInt}},
    {"LINGER2", {IPPROTO_TCP, TCP_LINGER2, Kind::kInt}},
    {"SYNCNT", {IPPROTO_TCP, TCP_SYNCNT, Kind::kInt}},
    {"USER_TIMEOUT", {IPPROTO_TCP, TCP_USER_TIMEOUT, Kind::kInt}},
    {"NOTSENT_LOWAT", {IPPROTO_TCP, TCP_NOTSENT_LOWAT, Kind::kInt}},
    {"CONGESTION", {IPPROTO_TCP, TCP_CONGESTION, Kind::kText}},
    {"TOS", {IPPROTO_IP, IP_TOS, Kind::kInt}},
    {"TTL", {IPPROTO_IP, IP_TTL, Kind::kInt}},
    {"V6ONLY", {IPPROTO_IPV6, IPV6_V6ONLY, Kind::kInt}},
    {"UNKNOWN", {SOL_SOCKET, 9999, Kind::kInt}},
    {"UNKNOWN_TCP", {IPPROTO_TCP, 9999, Kind::kInt}},
    {"UNKNOWN_LEVEL", {7777, 1, Kind::kInt}}};

std::string GetOption(const Args& args) {
  const Option& o = kOptions.at(args[1]);
  char value[64] = {};
  socklen_t len = args.size() > 2           ? static_cast<socklen_t>(Number(args[2]))
                  : o.kind == Kind::kInt    ? sizeof(int)
                  : o.kind == Kind::kLinger ? sizeof(linger)
                  : o.kind == Kind::kTime   ? sizeof(timeval)
                                            : 16;
  if (getsockopt(Fd(args[0]), o.level, o.name, value, &len) != 0) return Errno();
  std::string out;
  if (o.kind == Kind::kText) return std::string(value) + " len " + std::to_string(len);
  if (o.kind == Kind::kTime) {
    timeval t;
    memcpy(&t, value, sizeof t);
    out = std::to_string(t.tv_sec) + "." + std::to_string(t.tv_usec);
  } else {
    int n[2];
    memcpy(n, value, sizeof n);
    out = std::to_string(n[0]) + (o.kind == Kind::kLinger ? "," + std::to_string(n[1]) : "");
    if (args[1] == "ERROR") out = n[0] == 0 ? "none" : strerrorname_np(n[0]);
  }
  return out + " len " + std::to_string(len);
}

std::string SetOption(const Args& args) {
  const Option& o = kOptions.at(args[1]);
  const int n[2] = {static_cast<int>(Number(args[2])),
                    args.size() > 3 ? static_cast<int>(Number(args[3])) : 0};
  const timeval t{n[0] / 1000, (n[0] % 1000) * 1000};
  if (o.kind == Kind::kTime) return Outcome(setsockopt(Fd(args[0]), o.level, o.name, &t, sizeof t));
  if (o.kind == Kind::kText)
    return Outcome(setsockopt(Fd(args[0]), o.level, o.name, args[2].c_str(),
                              static_cast<socklen_t>(args[2].size())));
  return Outcome(setsockopt(Fd(args[0]), o.level, o.name, n, o.kind == Kind::kLinger ? 8 : 4));
}

std::string SetOptionShort(const Args& args) {
  const Option& o = kOptions.at(args[1]);
  const int n = 1;
  return Outcome(
      setsockopt(Fd(args[0]), o.level, o.name, &n, static_cast<socklen_t>(Number(args[2]))));
}

// The states that programs look at, by number as in TCP_ESTABLISHED = 1.
std::string TcpState(const Args& args) {
  tcp_info info{};
  socklen_t len = sizeof info;
  return getsockopt(Fd(args[0]), IPPROTO_TCP, TCP_INFO, &info, &len) != 0
             ? Errno()
             : "state " + std::to_string(info.tcpi_state);
}

std::string GetFlags(const Args& args) {
  const int flags = fcntl(Fd(args[0]), F_GETFL), own = fcntl(Fd(args[0]), F_GETFD);
  if (flags < 0) return Errno();
  return std::string((flags & O_ACCMODE) == O_RDWR ? "rdwr" : "?") +
         ((flags & O_NONBLOCK) != 0 ? " nonblock" : "") + ((flags & O_ASYNC) != 0 ? " async" : "") +
         ((own & FD_CLOEXEC) != 0 ? " cloexec" : "");
}

std::string SetFlags(const Args& args) {
  return Outcome(fcntl(Fd(args[0]), F_SETFL, args[1] == "nonblock" ? O_NONBLOCK : 0));
}
std::string SetCloexec(const Args& args) {
  return Outcome(fcntl(Fd(args[0]), F_SETFD, args[1] == "on" ? FD_CLOEXEC : 0));
}

std::string Ioctl(const Args& args) {
  static const std::map<std::string, unsigned long> kRequests = {
      {"FIONREAD", FIONREAD},       {"SIOCOUTQ", SIOCOUTQ},     {"SIOCATMARK", SIOCATMARK},
      {"SIOCOUTQNSD", SIOCOUTQNSD}, {"TIOCGWINSZ", TIOCGWINSZ}, {"UNKNOWN", 0x12345678}};
  int value[8] = {};
  return ioctl(Fd(args[0]), kRequests.at(args[1]), value) != 0 ? Errno() : std::to_string(value[0]);
}

std::string Fionbio(const Args& args) {
  int on = static_cast<int>(Number(args[1]));
  return Outcome(ioctl(Fd(args[0]), FIONBIO, &on));
}

std::string Fstat(const Args& args) {
  struct stat s;
  return fstat(Fd(args[0]), &s) != 0 ? Errno() : S_ISSOCK(s.st_mode) ? "socket" : "something else";
}

}  // namespace

const Entry kSocketCommands[] = {{"socket", 3, Socket},
                                 {"bind", 3, Bind},
                                 {"connect", 3, Connect},
                                 {"listen", 2, Listen},
                                 {"accept", 2, Accept},
                                 {"acceptnull", 2, AcceptNull},
                                 {"acceptshort", 2, AcceptShort},
                                 {"name", 1, Name},
                                 {"peer", 1, Peer},
                                 {"shutdown", 2, Shutdown},
                                 {"close", 1, Close},
                                 {"closerange", 1, CloseRange},
                                 {"dup", 2, Dup},
                                 {"dup2", 2, Dup2},
                                 {"dup3", 2, Dup3},
                                 {"dupfd", 2, DupFd},
                                 {"lowest", 1, Lowest},
                                 {"getopt", 2, GetOption},
                                 {"setopt", 3, SetOption},
                                 {"setoptlen", 3, SetOptionShort},
                                 {"tcpstate", 1, TcpState},
                                 {"getfl", 1, GetFlags},
                                 {"setfl", 2, SetFlags},
                                 {"setfd", 2, SetCloexec},
                                 {"ioctl", 2, Ioctl},
                                 {"fionbio", 2, Fionbio},
                                 {"fstat", 1, Fstat},
                                 {nullptr, 0, nullptr}};

}  // namespace conform
