// conform_sockets.cc - commands that make, name, end and set up sockets.
// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conform.h"
#include "ring_calls.h"

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
  return Made(args[0], by::Socket(family, type | SocketFlags(args, 3), 0));
}

// `socketraw NAME FAMILY TYPE PROTOCOL` by number.
std::string SocketRaw(const Args& args) {
  return Made(args[0], socket(static_cast<int>(Number(args[1])), static_cast<int>(Number(args[2])),
                              static_cast<int>(Number(args[3]))));
}

std::string SocketPair(const Args& args) {
  const int family = args[2] == "unix" ? AF_UNIX : args[2] == "inet6" ? AF_INET6 : AF_INET;
  int fds[2];
  if (socketpair(family, SOCK_STREAM | SocketFlags(args, 3), 0, fds) != 0) return Errno();
  return Made(args[0], fds[0]) + " " + Made(args[1], fds[1]);
}

std::string Bind(const Args& args) {
  Address a = ToAddress(args[1], args[2]);
  return Outcome(by::Bind(Fd(args[0]), a.get(), a.len));
}

// `socketbind NAME FAMILY HOST PORT OPTION VALUE`: one line for what has to be done in this order.
std::string SocketBind(const Args& args) {
  Address a = ToAddress(args[2], args[3]);
  const int on = static_cast<int>(Number(args[5]));
  const int fd = socket(args[1] == "inet6" ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
  const int option = args[4] == "REUSEPORT" ? SO_REUSEPORT : SO_REUSEADDR;
  if (setsockopt(fd, SOL_SOCKET, option, &on, sizeof on) != 0) return Errno();
  SetFd(args[0], fd);
  return Outcome(bind(fd, a.get(), a.len));
}

std::string Connect(const Args& args) {
  Address a = ToAddress(args[1], args[2]);
  if (args.size() > 3) a.len = static_cast<socklen_t>(Number(args[3]));
  return Outcome(by::Connect(Fd(args[0]), a.get(), a.len));
}

// `socketconnect NAME FAMILY HOST PORT`
std::string SocketConnect(const Args& args) {
  Address a = ToAddress(args[2], args[3]);
  SetFd(args[0], socket(args[1] == "inet6" ? AF_INET6 : AF_INET, SOCK_STREAM, 0));
  return Outcome(connect(Fd(args[0]), a.get(), a.len));
}

std::string Listen(const Args& args) {
  return Outcome(by::Listen(Fd(args[0]), static_cast<int>(Number(args[1]))));
}

std::string Accept(const Args& args) {
  Address a;
  a.len = sizeof a.storage;
  const int fd = by::Accept(Fd(args[0]), a.get(), &a.len, SocketFlags(args, 2));
  return fd < 0 ? Errno() : Made(args[1], fd) + " from " + Text(a);
}

std::string AcceptNull(const Args& args) {
  return Made(args[1], by::Accept(Fd(args[0]), nullptr, nullptr, 0));
}

std::string AcceptShort(const Args& args) {
  Address a;
  a.len = 4;
  const int fd = accept(Fd(args[0]), a.get(), &a.len);
  return fd < 0 ? Errno() : Made(args[1], fd) + " len " + std::to_string(a.len);
}

// `acceptbad L NAME FLAGS` by number, and accept with bad pointers.
std::string AcceptBad(const Args& args) {
  const int fd = Fd(args[0]);
  if (args[1] == "flags") return Outcome(accept4(fd, nullptr, nullptr, 0x5));
  Address a;
  a.len = args[1] == "negative" ? static_cast<socklen_t>(-1) : sizeof a.storage;
  if (args[1] == "address") return Outcome(accept(fd, static_cast<sockaddr*>(Nowhere()), &a.len));
  if (args[1] == "length") return Outcome(accept(fd, a.get(), static_cast<socklen_t*>(Nowhere())));
  return Outcome(accept(fd, a.get(), &a.len));
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

// How much of the name fits, and how long it would be.
std::string NameShort(const Args& args) {
  Address a;
  a.len = static_cast<socklen_t>(Number(args[1]));
  if (getsockname(Fd(args[0]), a.get(), &a.len) != 0) return Errno();
  return "len " + std::to_string(a.len) + " family " + std::to_string(a.storage.ss_family);
}

// Addresses and lengths where no memory is.
std::string BadAddress(const Args& args) {
  auto* nowhere = static_cast<sockaddr*>(Nowhere());
  auto* no_length = static_cast<socklen_t*>(Nowhere());
  const int fd = Fd(args[1]);
  Address a;
  a.len = sizeof a.storage;
  if (args[0] == "bind") return Outcome(bind(fd, nowhere, sizeof(sockaddr_in)));
  if (args[0] == "connect") return Outcome(connect(fd, nowhere, sizeof(sockaddr_in)));
  if (args[0] == "name") return Outcome(getsockname(fd, nowhere, &a.len));
  if (args[0] == "peer") return Outcome(getpeername(fd, nowhere, &a.len));
  if (args[0] == "namelen") return Outcome(getsockname(fd, a.get(), no_length));
  if (args[0] == "peerlen") return Outcome(getpeername(fd, a.get(), no_length));
  a.len = static_cast<socklen_t>(-1);
  if (args[0] == "negative") return Outcome(getsockname(fd, a.get(), &a.len));
  if (args[0] == "negativepeer") return Outcome(getpeername(fd, a.get(), &a.len));
  return "SCRIPT ERROR";
}

std::string Shutdown(const Args& args) {
  const int how = args[1] == "rd"     ? SHUT_RD
                  : args[1] == "wr"   ? SHUT_WR
                  : args[1] == "rdwr" ? SHUT_RDWR
                                      : 77;
  return Outcome(by::Shutdown(Fd(args[0]), how));
}

std::string Close(const Args& args) { return Outcome(by::Close(Fd(args[0]))); }

}  // namespace

const Entry kSocketCommands[] = {{"socket", 3, Socket},
                                 {"socketraw", 4, SocketRaw},
                                 {"socketpair", 3, SocketPair},
                                 {"socketbind", 6, SocketBind},
                                 {"socketconnect", 4, SocketConnect},
                                 {"bind", 3, Bind},
                                 {"connect", 3, Connect},
                                 {"listen", 2, Listen},
                                 {"accept", 2, Accept},
                                 {"acceptnull", 2, AcceptNull},
                                 {"acceptshort", 2, AcceptShort},
                                 {"acceptbad", 2, AcceptBad},
                                 {"nameshort", 2, NameShort},
                                 {"badaddress", 2, BadAddress},
                                 {"name", 1, Name},
                                 {"peer", 1, Peer},
                                 {"shutdown", 2, Shutdown},
                                 {"close", 1, Close},
                                 {nullptr, 0, nullptr}};

}  // namespace conform
