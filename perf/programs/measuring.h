// measuring.h - what the measuring programs share: an address, plain blocking calls, a clock.
// SPDX-License-Identifier: Apache-2.0
//
// These programs stand for "an unmodified program": nothing here knows of Postern, no option is set
// that an ordinary program wouldn't set, and every failing call ends the program with its name and
// errno, so that a broken run can't pass for a fast one. One thread each; nothing is shared.

#ifndef POSTERN_PERF_PROGRAMS_ENDPOINT_H_
#define POSTERN_PERF_PROGRAMS_ENDPOINT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace postern::perf {

inline constexpr int kBacklog = 4096;

// Where to listen or connect: the Unix path if there is one, else 127.0.0.1 and the port.
struct Endpoint {
  const char* unix_path = nullptr;
  std::uint16_t port = 0;
};

[[noreturn]] inline void Die(const char* what) {
  std::fprintf(stderr, "error: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

[[noreturn]] inline void DieWith(const char* text) {
  std::fprintf(stderr, "error: %s\n", text);
  std::exit(1);
}

inline std::uint64_t ParseNumber(const char* text, std::uint64_t value_max) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value > value_max) {
    std::fprintf(stderr, "error: not a number from 0 to %llu: %s\n",
                 static_cast<unsigned long long>(value_max), text);
    std::exit(2);
  }
  return value;
}

// The kernel's address of an endpoint, in the form that bind() and connect() want.
class SocketAddress {
 public:
  explicit SocketAddress(const Endpoint& endpoint) {
    if (endpoint.unix_path != nullptr) {
      auto* name = reinterpret_cast<sockaddr_un*>(&storage_);
      name->sun_family = AF_UNIX;
      const std::string_view path(endpoint.unix_path);
      if (path.size() >= sizeof(name->sun_path)) DieWith("Unix path too long");
      std::memcpy(name->sun_path, path.data(), path.size());
      len_bytes_ = sizeof(sockaddr_un);
      return;
    }
    auto* name = reinterpret_cast<sockaddr_in*>(&storage_);
    name->sin_family = AF_INET;
    name->sin_port = htons(endpoint.port);
    name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    len_bytes_ = sizeof(sockaddr_in);
  }

  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t len_bytes() const { return len_bytes_; }

 private:
  sockaddr_storage storage_{};
  socklen_t len_bytes_ = 0;
};

inline int Listen(const Endpoint& endpoint) {
  const SocketAddress address(endpoint);
  const int fd = ::socket(address.family(), SOCK_STREAM, 0);
  if (fd < 0) Die("socket");
  const int on = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) Die("setsockopt");
  if (::bind(fd, address.get(), address.len_bytes()) != 0) Die("bind");
  if (::listen(fd, kBacklog) != 0) Die("listen");
  return fd;
}

inline int Dial(const SocketAddress& address) {
  const int fd = ::socket(address.family(), SOCK_STREAM, 0);
  if (fd < 0) Die("socket");
  if (::connect(fd, address.get(), address.len_bytes()) != 0) Die("connect");
  return fd;
}

inline int Accept(int listener) {
  const int fd = ::accept(listener, nullptr, nullptr);
  if (fd < 0) Die("accept");
  return fd;
}

inline void SendAll(int fd, const char* bytes, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::send(fd, bytes + done, size - done, 0);
    if (n < 0) Die("send");
    done += static_cast<std::size_t>(n);
  }
}

// Reads exactly size bytes. False if the peer closed before the first of them; a message cut short
// is an error.
inline bool RecvAll(int fd, char* bytes, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::recv(fd, bytes + done, size - done, 0);
    if (n < 0) Die("recv");
    if (n == 0) {
      if (done == 0) return false;
      DieWith("connection closed inside a message");
    }
    done += static_cast<std::size_t>(n);
  }
  return true;
}

inline void RaiseFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) Die("getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) Die("setrlimit");
}

inline double SecondsNow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace postern::perf

#endif  // POSTERN_PERF_PROGRAMS_ENDPOINT_H_
