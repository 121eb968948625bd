// SPDX-License-Identifier: Apache-2.0
// mistakes_export.cc - descriptors that get to a program without the library: static children,
// SCM_RIGHTS.
//
// The stranger is `stranger`, a static program beside this one. Each case passes on the kernel
// alone.

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "mistakes.h"

namespace mistakes {
namespace {

constexpr size_t kEarly = 300000;  // sent before the descriptor is passed on, and not yet read
constexpr size_t kBulk = 8000000;  // of each direction after it

std::string Stranger() {
  const std::string self = Self();
  return self.substr(0, self.rfind('/')) + "/stranger";
}

// Byte i of a stream, so that a hole, a repetition or another order shows.
char At(size_t i) { return static_cast<char>((i * 2654435761u) >> 13); }
std::string Stream(size_t from, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = At(from + i);
  return text;
}

void ExpectStream(int fd, size_t from, size_t bytes) {
  std::string piece(65536, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = read(fd, piece.data(), std::min(piece.size(), bytes - done));
    EXPECT(n > 0);
    for (ssize_t i = 0; i < n; ++i)
      EXPECT(piece[static_cast<size_t>(i)] == At(from + done + static_cast<size_t>(i)));
    done += static_cast<size_t>(n);
  }
}

// A child that runs the stranger with `fd` as standard input and output, and nothing else.
pid_t Start(int fd, const char* what, const char* argument = nullptr) {
  const std::string path = Stranger();
  const pid_t child = fork();
  if (child != 0) return child;
  EXPECT(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
  closefrom(3);
  execl(path.c_str(), "stranger", what, argument, nullptr);
  Die(__FILE__, __LINE__, "exec of the stranger to succeed");
}

// Hands `fd` to a stranger that holds it for as long as `during` lasts, and then dies of a signal.
void WhilePassed(int fd, const std::function<void()>& during) {
  int channel[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
  SendFd(channel[0], fd);  // received by nobody: it is on its way all the same
  during();
  close(channel[0]);
  close(channel[1]);
}

// -- a stranger that echoes, with data already under way in the ring
void Exchange(int fd) {
  std::thread writer([fd] {
    for (size_t at = kEarly; at < kEarly + kBulk; at += 100000) Put(fd, Stream(at, 100000));
    EXPECT(shutdown(fd, SHUT_WR) == 0);
  });
  ExpectStream(fd, 0, kEarly + kBulk);
  ExpectEnd(fd);
  writer.join();
}

void EchoingConnect(uint16_t port) {
  const int fd = Connect(port);
  Put(fd, "first");
  Put(fd, Stream(0, kEarly));
  Exchange(fd);
}

void StaticChildServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  const pid_t child = Start(fd, "echo");
  close(fd);
  ExpectChild(child);
}

void SpawnedServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  EXPECT(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);  // only the file action makes it survive
  posix_spawn_file_actions_t actions;
  EXPECT(posix_spawn_file_actions_init(&actions) == 0);
  EXPECT(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
  EXPECT(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
  const std::string path = Stranger();
  char name[] = "stranger", what[] = "echo";
  char* argv[] = {name, what, nullptr};
  pid_t child = -1;
  EXPECT(posix_spawn(&child, path.c_str(), &actions, nullptr, argv, environ) == 0);
  close(fd);
  ExpectChild(child);
}

void PassedBulkServe(int listener) {
  int channel[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
  const pid_t child = Start(channel[1], "receive");
  close(channel[1]);
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  SendFd(channel[0], fd);
  close(fd);
  close(channel[0]);
  ExpectChild(child);
}

// The client's side is the one that leaves.
void ClientLeavesConnect(uint16_t port) {
  const int fd = Connect(port);
  const pid_t child = Start(fd, "echo");
  close(fd);
  ExpectChild(child);
}
void ClientLeavesServe(int listener) {
  const int fd = Accept(listener);
  Put(fd, Stream(0, kEarly));
  Exchange(fd);
}

// -- child and parent write in turns, the parent goes on with it; the names stay
void SharedServe(int listener) {
  const int fd = Accept(listener);
  sockaddr_in before{}, after{};
  socklen_t len = sizeof before;
  EXPECT(getpeername(fd, reinterpret_cast<sockaddr*>(&before), &len) == 0);
  ExpectText(fd, "first");
  Put(fd, "one");
  ExpectChild(Start(fd, "say", "two"));
  Put(fd, "three");
  ExpectChild(Start(fd, "say", "four"));
  ExpectText(fd, "second");
  EXPECT(getpeername(fd, reinterpret_cast<sockaddr*>(&after), &len) == 0);
  EXPECT(before.sin_port == after.sin_port && before.sin_addr.s_addr == after.sin_addr.s_addr);
  Put(fd, "five");
  EXPECT(shutdown(fd, SHUT_WR) == 0);
  ExpectText(fd, "third");
  ExpectEnd(fd);
}
void SharedConnect(uint16_t port) {
  const int fd = Connect(port);
  Put(fd, "first");
  ExpectText(fd, "onetwothreefour");
  Put(fd, "second");
  ExpectText(fd, "five");
  ExpectEnd(fd);
  Put(fd, "third");
}

// -- threads that wait on the socket while it is passed on: each is woken by what comes afterwards
void WaitersServe(int listener) {
  using Wait = std::function<void(int)>;
  const Wait waits[] = {
      [](int fd) { ExpectText(fd, "late"); },
      [](int fd) {
        EXPECT(Readable(fd, -1));
        ExpectText(fd, "late");
      },
      [](int fd) {
        const int set = epoll_create1(0);
        epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = 7}};
        EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        EXPECT(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 7);
        ExpectText(fd, "late");
        EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
        EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event) == 0);
        close(set);
      },
      [](int fd) {
        char text[4];
        EXPECT(recv(fd, text, 4, MSG_WAITALL) == 4 && memcmp(text, "late", 4) == 0);
      },
  };
  for (const Wait& wait : waits) {
    const int fd = Accept(listener);
    std::thread waiter([&] { wait(fd); });
    usleep(100000);  // so that it sleeps, usually; where it does not, the case is another one and
                     // passes, too
    WhilePassed(fd, [&] {
      Put(fd, "go");
      waiter.join();
    });
    Put(fd, "bye");
    close(fd);
  }
}
void WaitersConnect(uint16_t port) {
  for (int i = 0; i < 4; ++i) {
    const int fd = Connect(port);
    ExpectText(fd, "go");
    if (i == 3) Put(fd, "la"), usleep(50000), Put(fd, "te");
    if (i != 3) Put(fd, "late");
    ExpectText(fd, "bye");
    ExpectEnd(fd);
  }
}

// -- a writer that is blocked in a full ring
void BlockedWriterServe(int listener) {
  const int fd = Accept(listener);
  std::thread writer([fd] { Put(fd, Stream(0, kBulk)); });
  usleep(100000);
  WhilePassed(fd, [&] {
    Put(fd, "");
    char byte;
    EXPECT(recv(fd, &byte, 1, 0) == 1);
  });
  writer.join();
  close(fd);
}
void BlockedWriterConnect(uint16_t port) {
  const int fd = Connect(port);
  usleep(300000);
  Put(fd, "x");
  ExpectStream(fd, 0, kBulk);
  ExpectEnd(fd);
}

// -- a stranger that dies with data unread resets the connection
void StrangerResetsServe(int listener) {
  const int fd = Accept(listener);
  const pid_t child = Start(fd, "take", "5");
  close(fd);
  ExpectChild(child);
}
void StrangerResetsConnect(uint16_t port) {
  const int fd = Connect(port);
  Put(fd, Stream(0, kEarly));
  char byte;
  ssize_t n;
  while ((n = recv(fd, &byte, 1, 0)) > 0) {
  }
  EXPECT(n == -1 && errno == ECONNRESET);
}

// -- a listener: the stranger accepts
void ListenerServe(int listener) {
  const pid_t child = Start(listener, "accept", "1");
  const int ready = Accept(listener);  // so that the client comes for the stranger second
  Put(ready, "now");
  ExpectChild(child);
}
void ListenerConnect(uint16_t port) {
  // The order is not defined: two connections, one for each of the two processes that accept.
  const int a = Connect(port), b = Connect(port);
  pollfd both[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
  EXPECT(poll(both, 2, -1) == 1);
  const int stranger = both[0].revents != 0 ? b : a;
  Put(stranger, "hello");
  EXPECT(shutdown(stranger, SHUT_WR) == 0);
  ExpectText(stranger, "hello");
  ExpectEnd(stranger);
}

// -- a listener that leaves by exec while clients keep coming: each is served, by one or the other
constexpr int kClients = 4, kRounds = 100, kBefore = 57;

void ListenerExecServe(int listener) {
  for (int i = 0; i < kBefore; ++i) {
    const int fd = Accept(listener);
    std::string text = Get(fd, 5);
    Put(fd, text);
    ExpectEnd(fd);
    close(fd);
  }
  const std::string path = Stranger(), rest = std::to_string(kClients * kRounds - kBefore);
  EXPECT(dup2(listener, 0) == 0);
  close(listener);
  execl(path.c_str(), "stranger", "accept", rest.c_str(), nullptr);
  Die(__FILE__, __LINE__, "exec of the stranger to succeed");
}
void ListenerExecConnect(uint16_t port) {
  std::vector<std::thread> clients;
  for (int t = 0; t < kClients; ++t) {
    clients.emplace_back([port] {
      for (int i = 0; i < kRounds; ++i) {
        const int fd = Connect(port);
        Put(fd, "hello");
        EXPECT(shutdown(fd, SHUT_WR) == 0);
        ExpectText(fd, "hello");
        ExpectEnd(fd);
        close(fd);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

// -- a static child that holds no connection keeps none open
void NotHeldServe(int listener) {
  const int fd = Accept(listener), other = Accept(listener);
  EXPECT(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
  const int null = open("/dev/null", O_RDWR);
  const pid_t child = Start(null, "hold");
  close(fd);
  ExpectText(other, "ended");
  EXPECT(waitpid(child, nullptr, WNOHANG) == 0);  // and it lives
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}
void NotHeldConnect(uint16_t port) {
  const int fd = Connect(port), other = Connect(port);
  ExpectEnd(fd);
  Put(other, "ended");
  ExpectEnd(other);
}

// -- for the test that kills the keeper: the server passes the connection on, and waits for its end
void KeeperServe(int listener) {
  const int fd = Accept(listener);
  WhilePassed(fd, [&] {
    Put(fd, "passed");
    char byte;
    const ssize_t n = recv(fd, &byte, 1, 0);
    EXPECT(n == 0 || (n == -1 && errno == ECONNRESET));
  });
}
void KeeperConnect(uint16_t port) {
  const int fd = Connect(port);
  ExpectText(fd, "passed");
  puts("passed");
  fflush(stdout);
  char byte;
  const ssize_t n = recv(fd, &byte, 1, 0);
  EXPECT(n == 0 || (n == -1 && errno == ECONNRESET));
}

}  // namespace

const Case kExportCases[] = {
    {"static_child", StaticChildServe, EchoingConnect},
    {"static_spawned", SpawnedServe, EchoingConnect},
    {"passed_bulk", PassedBulkServe, EchoingConnect},
    {"client_leaves", ClientLeavesServe, ClientLeavesConnect},
    {"shared_with_stranger", SharedServe, SharedConnect},
    {"waiters", WaitersServe, WaitersConnect},
    {"blocked_writer", BlockedWriterServe, BlockedWriterConnect},
    {"stranger_resets", StrangerResetsServe, StrangerResetsConnect},
    {"listener_leaves", ListenerServe, ListenerConnect},
    {"listener_leaves_under_load", ListenerExecServe, ListenerExecConnect},
    {"static_child_holds_nothing", NotHeldServe, NotHeldConnect},
    {"keeper", KeeperServe, KeeperConnect},
    {nullptr, nullptr, nullptr},
};

}  // namespace mistakes
