// SPDX-License-Identifier: Apache-2.0
// uring.cc - sockets of libc's, which an io_uring reads and writes.
//
//   uring serve PORT HOW     echoes one connection
//   uring connect PORT HOW   the other side of that, which checks each byte; "holding" once a first
//                            answer has come
// HOW is a list of: -  late (the first rounds, and accept or connect, by libc)  sqpoll (a thread of
// the kernel's takes the entries)  fixed (the connection is a registered file)  poll (each receive
// is preceded by a poll through the ring)  epoll (the receiver waits in epoll_wait before)
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "loopback.h"
#ifdef RING_LIBURING
#include "uring_lib.h"
#else
#include "one_entry_ring.h"
#endif

namespace {

[[noreturn]] void Die(int line, const char* what) {
  std::fprintf(stderr, "uring.cc:%d: %s (%s)\n", line, what, strerror(errno));
  std::exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : Die(__LINE__, #condition))

constexpr int kRounds = 200, kLateFrom = 50;

std::string how;
bool Is(const char* word) { return how.find(word) != std::string::npos; }

io_uring_sqe Request(uint8_t op, int fd) {
  io_uring_sqe r{};
  r.opcode = op;
  r.fd = fd;
  return r;
}

// One connection, by the ring once `round` says so.
class Connection {
 public:
  Connection(const ring::Ring& ring, int fd) : ring_(ring), fd_(fd) {
    if (!Is("epoll")) return;
    set_ = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN;
    EXPECT(epoll_ctl(set_, EPOLL_CTL_ADD, fd_, &event) == 0);
  }
  bool ByRing() const { return !Is("late") || round_ >= kLateFrom; }
  void NextRound() { round_++; }

  // Some bytes; 0 at the end.
  size_t Receive(char* to, size_t bytes) {
    if (!ByRing()) {
      const ssize_t n = recv(fd_, to, bytes, 0);
      EXPECT(n >= 0);
      return static_cast<size_t>(n);
    }
    Register();
    if (Is("epoll")) {
      epoll_event event;
      EXPECT(epoll_wait(set_, &event, 1, -1) == 1 && (event.events & EPOLLIN) != 0);
    }
    if (Is("poll,")) {
      io_uring_sqe wait = OfConnection(IORING_OP_POLL_ADD);
      wait.poll32_events = POLLIN;
      const int events = ring_.Do(wait);
      EXPECT(events > 0 && (events & POLLIN) != 0);
    }
    io_uring_sqe take = OfConnection(IORING_OP_RECV);
    take.addr = reinterpret_cast<__u64>(to);
    take.len = static_cast<uint32_t>(bytes);
    const int n = ring_.Do(take);
    if (n < 0) errno = -n;
    EXPECT(n >= 0);
    return static_cast<size_t>(n);
  }
  void Send(const char* from, size_t bytes) {
    while (bytes > 0) {
      ssize_t n;
      if (ByRing()) {
        Register();
        io_uring_sqe give = OfConnection(IORING_OP_SEND);
        give.addr = reinterpret_cast<__u64>(from);
        give.len = static_cast<uint32_t>(bytes);
        n = ring_.Do(give);
        if (n < 0) errno = static_cast<int>(-n);
      } else {
        n = send(fd_, from, bytes, 0);
      }
      EXPECT(n > 0);
      from += n;
      bytes -= static_cast<size_t>(n);
    }
  }
  void Close() {
    if (Is("fixed")) {
      EXPECT(ring::Register(ring_.fd(), IORING_UNREGISTER_FILES, nullptr, 0) == 0);
      EXPECT(close(fd_) == 0);
      return;
    }
    EXPECT(ring_.Do(Request(IORING_OP_CLOSE, fd_)) == 0);
    EXPECT(close(fd_) == -1 && errno == EBADF);
  }

 private:
  void Register() {
    if (registered_ || !Is("fixed")) return;
    registered_ = true;
    EXPECT(ring::Register(ring_.fd(), IORING_REGISTER_FILES, &fd_, 1) == 0);
  }
  io_uring_sqe OfConnection(uint8_t op) const {
    io_uring_sqe r = Request(op, registered_ ? 0 : fd_);
    if (registered_) r.flags = IOSQE_FIXED_FILE;
    return r;
  }

  const ring::Ring& ring_;
  const int fd_;
  int set_ = -1, round_ = 0;
  bool registered_ = false;
};

void Serve(const char* port) {
  const int listener = loopback::Listen(port);
  EXPECT(listener >= 0);
  const ring::Ring ring(8, Is("sqpoll") ? IORING_SETUP_SQPOLL : 0);
  EXPECT(ring.made());
  const int fd = Is("late") ? accept(listener, nullptr, nullptr)
                            : ring.Do(Request(IORING_OP_ACCEPT, listener));
  EXPECT(fd >= 0);
  Connection connection(ring, fd);
  std::vector<char> data(65536);
  uint32_t length = 0;
  for (size_t have = 0, n; (n = connection.Receive(&data[have], data.size() - have)) > 0;) {
    have += n;
    while (have >= sizeof length) {  // a length, and so many bytes
      std::memcpy(&length, data.data(), sizeof length);
      if (have < sizeof length + length) break;
      connection.Send(data.data(), sizeof length + length);
      have -= sizeof length + length;
      std::memmove(data.data(), &data[sizeof length + length], have);
      connection.NextRound();
    }
  }
  connection.Close();
}

void Connect(const char* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in a = loopback::Address(port);
  const ring::Ring ring(8, Is("sqpoll") ? IORING_SETUP_SQPOLL : 0);
  EXPECT(ring.made());
  if (Is("late")) {
    EXPECT(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
  } else {
    io_uring_sqe request = Request(IORING_OP_CONNECT, fd);
    request.addr = reinterpret_cast<__u64>(&a);
    request.off = sizeof a;
    EXPECT(ring.Do(request) == 0);
  }
  Connection connection(ring, fd);
  for (int i = 0; i < kRounds; ++i) {
    const uint32_t length = static_cast<uint32_t>(i * 7919 % 30000);
    std::vector<char> out(sizeof length + length), in(out.size());
    std::memcpy(out.data(), &length, sizeof length);
    for (uint32_t k = 0; k < length; ++k)
      out[sizeof length + k] = static_cast<char>(k * 31 + static_cast<uint32_t>(i));
    connection.Send(out.data(), out.size());
    for (size_t have = 0; have < in.size();) {
      const size_t n = connection.Receive(&in[have], in.size() - have);
      EXPECT(n > 0);
      have += n;
    }
    EXPECT(in == out);
    if (i == 0) EXPECT(loopback::Hold());
    connection.NextRound();
  }
  connection.Close();
  std::puts("each byte right");
}

}  // namespace

int main(int argc, char** argv) {
  loopback::MayHold();
  const std::string what = argc > 3 ? argv[1] : "";
  how = argc > 3 ? std::string(argv[3]) + "," : "";
  if (what == "serve")
    Serve(argv[2]);
  else if (what == "connect")
    Connect(argv[2]);
  else
    return 2;
}
