// mistakes_calls.cc - calls, flags, time-outs and ends of a connection.
// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "mistakes.h"

namespace mistakes {
namespace {

void SetTimeout(int fd, int option, int ms) {
  const timeval time{ms / 1000, (ms % 1000) * 1000};
  EXPECT(setsockopt(fd, SOL_SOCKET, option, &time, sizeof time) == 0);
}

// The client says nothing until it is greeted. A server that waits some 200 ms for a sign of
// acceleration does so for each of them, so the *fastest* of 20 tells, however loaded the machine
// is: the one time bound in these tests.
void GreetServe(int listener) {
  for (int i = 0; i < 20; ++i) {
    const int fd = Accept(listener);
    Put(fd, "220 hello");
    ExpectText(fd, "bye");
    close(fd);
  }
}

void GreetConnect(uint16_t port) {
  int64_t fastest_ms = 1000000;
  for (int i = 0; i < 20; ++i) {
    const int64_t start = NowMs();
    const int fd = Connect(port);
    ExpectText(fd, "220 hello");
    fastest_ms = std::min(fastest_ms, NowMs() - start);
    Put(fd, "bye");
    close(fd);
  }
  EXPECT(fastest_ms < 150);
}

void NonblockingConnect(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int copy = dup(fd), set = epoll_create1(0);  // both made before there is a connection
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {}};
  EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  EXPECT(result == 0 || errno == EINPROGRESS);
  do {
    EXPECT(epoll_wait(set, &event, 1, -1) == 1);
  } while ((event.events & EPOLLOUT) == 0 || (event.events & EPOLLHUP) != 0);
  int error = -1;
  socklen_t len = sizeof error;
  EXPECT(getsockopt(copy, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
  EXPECT(send(copy, "hello", 5, 0) == 5);
  do {
    EXPECT(epoll_wait(set, &event, 1, -1) == 1);
  } while ((event.events & EPOLLIN) == 0);
  ExpectText(copy, "hello");
  WaitForDriver();  // it looks at the connection
  close(fd);
  EXPECT(send(copy, "again", 5, 0) == 5);
  EXPECT(Readable(copy, -1));
  ExpectText(copy, "again");
}

void EchoOneServe(int listener) {
  const int fd = Accept(listener);
  std::array<char, 4096> data;
  for (ssize_t n; (n = read(fd, data.data(), data.size())) != 0;) {
    EXPECT(n > 0);
    Put(fd, std::string(data.data(), static_cast<size_t>(n)));
  }
}

void ExpectAgain(int fd) {
  char byte;
  EXPECT(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
}

// O_NONBLOCK belongs to the open file: changed at any time, by fcntl or ioctl, through a dup, in a
// child.
void NonblockFlagConnect(uint16_t port) {
  const int fd = Connect(port), copy = dup(fd);
  const int flags = fcntl(fd, F_GETFL);
  EXPECT(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
  ExpectAgain(fd);
  ExpectAgain(copy);
  EXPECT(fcntl(copy, F_SETFL, flags) == 0);
  SetTimeout(fd, SO_RCVTIMEO, 60);
  int64_t start = NowMs();
  ExpectAgain(fd);  // blocks again, so only the time-out ends it
  EXPECT(NowMs() - start >= 50);
  int on = 1;
  EXPECT(ioctl(copy, FIONBIO, &on) == 0);
  EXPECT((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  SetTimeout(fd, SO_RCVTIMEO, 0);  // for ever, but non-blocking
  ExpectAgain(fd);
  on = 0;
  EXPECT(ioctl(fd, FIONBIO, &on) == 0);
  const pid_t child = fork();
  if (child == 0) {
    EXPECT(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
    _exit(0);
  }
  ExpectChild(child);
  ExpectAgain(copy);
  EXPECT(recv(fd, &on, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

void IdleServe(int listener) {
  const int fd = Accept(listener);
  ExpectEnd(fd);
}

void PeekServe(int listener) {
  const int fd = Accept(listener);
  Put(fd, "abcdef");
  ExpectText(fd, "1");
  for (const char* part : {"gh", "ij", "kl", "mn", "op"}) {
    usleep(20000);
    Put(fd, part);
  }
  ExpectText(fd, "2");
  Put(fd, "qr");
  EXPECT(shutdown(fd, SHUT_WR) == 0);
  ExpectText(fd, "3");
  usleep(400000);  // reads nothing while the client fills the buffers
  std::array<char, 65536> data;
  while (read(fd, data.data(), data.size()) > 0) {
  }
}

void PeekConnect(uint16_t port) {
  const int fd = Connect(port);
  char data[64] = {};
  EXPECT(recv(fd, data, 2, MSG_PEEK) >= 1);
  EXPECT(recv(fd, data, 6, MSG_WAITALL | MSG_PEEK) == 6);
  EXPECT(memcmp(data, "abcdef", 6) == 0);
  EXPECT(recv(fd, data, 3, MSG_PEEK) == 3);
  EXPECT(recv(fd, data, 3, 0) == 3 && memcmp(data, "abc", 3) == 0);
  iovec piece{data, 10};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  EXPECT(recvmsg(fd, &message, MSG_PEEK) == 3 && memcmp(data, "def", 3) == 0);
  SetTimeout(fd, SO_RCVTIMEO, 100);
  int64_t start = NowMs();
  EXPECT(recv(fd, data, 10, MSG_WAITALL) == 3);  // the time-out ends it with what there is
  EXPECT(NowMs() - start >= 90);
  start = NowMs();
  EXPECT(recv(fd, data, 10, 0) == -1 && errno == EAGAIN);
  EXPECT(NowMs() - start >= 90);
  SetTimeout(fd, SO_RCVTIMEO, 0);
  Put(fd, "1");
  EXPECT(recv(fd, data, 10, MSG_WAITALL) == 10 && memcmp(data, "ghijklmnop", 10) == 0);
  Put(fd, "2");
  EXPECT(recv(fd, data, 10, MSG_WAITALL) == 2 &&
         memcmp(data, "qr", 2) == 0);  // the end of the stream ends it too
  EXPECT(recv(fd, data, 10, MSG_WAITALL) == 0);
  Put(fd, "3");
  SetTimeout(fd, SO_SNDTIMEO, 100);
  const std::string block(8 << 20, 'x');
  ssize_t n;
  start = NowMs();
  while ((n = send(fd, block.data(), block.size(), 0)) == static_cast<ssize_t>(block.size())) {
  }
  EXPECT(n == -1 ? errno == EAGAIN : n > 0);
  EXPECT(NowMs() - start >= 90);
}

// Each connection is closed in another way; the server has to see the end of each, and in no other
// order.
void CloseWaysConnect(uint16_t port) {
  std::vector<int> fds;
  for (int i = 0; i < 7; ++i) fds.push_back(Connect(port));
  const int null = open("/dev/null", O_RDONLY);
  const auto say = [&](size_t i) { Put(fds[i], "x"); };
  const auto unsign = [&](size_t i) { return static_cast<unsigned>(fds[i]); };
  say(0);
  EXPECT(close_range(unsign(0), unsign(0), 0) == 0);
  say(1);
  EXPECT(close_range(unsign(1), unsign(1), CLOSE_RANGE_CLOEXEC) == 0);  // closes nothing yet
  say(1);
  EXPECT(close(fds[1]) == 0);
  say(2);
  EXPECT(fclose(fdopen(fds[2], "r+")) == 0);
  say(3);
  EXPECT(syscall(SYS_close, fds[3]) == 0);
  say(4);
  EXPECT(dup2(null, fds[4]) == fds[4]);  // closes by replacing
  say(5);
  const int copy = fcntl(fds[5], F_DUPFD, 200);
  close(fds[5]);
  Put(copy, "y");
  EXPECT(close_range(200, ~0u, 0) == 0);
  char byte;
  EXPECT(recv(fds[0], &byte, 1, 0) == -1 && errno == EBADF);
  EXPECT(recv(copy, &byte, 1, 0) == -1 && errno == EBADF);
  say(6);
  closefrom(3);
  EXPECT(recv(fds[6], &byte, 1, 0) == -1 && errno == EBADF);
  const int reused = Connect(port);  // numbers come again and belong to somebody else
  Put(reused, "z");
  ExpectText(reused, "z");
}

void CloseWaysServe(int listener) {
  std::vector<int> fds;
  for (int i = 0; i < 7; ++i) fds.push_back(Accept(listener));
  for (size_t i = 0; i < fds.size(); ++i) {
    ExpectText(fds[i], i == 1 ? "xx" : i == 5 ? "xy" : "x");
    ExpectEnd(fds[i]);
  }
  const int reused = Accept(listener);
  ExpectText(reused, "z");
  Put(reused, "z");
  ExpectEnd(reused);
}

// vmsplice and tee into a socket; preadv2 and pwritev2 on one.
void PipesConnect(uint16_t port) {
  const int fd = Connect(port);
  int one[2], two[2];
  EXPECT(pipe(one) == 0 && pipe(two) == 0);
  char text[] = "through the pipes";
  const size_t len = sizeof text - 1;
  iovec piece{text, len};
  EXPECT(vmsplice(one[1], &piece, 1, 0) == static_cast<ssize_t>(len));
  EXPECT(tee(one[0], two[1], len, 0) == static_cast<ssize_t>(len));
  EXPECT(splice(one[0], nullptr, fd, nullptr, len, 0) == static_cast<ssize_t>(len));
  ExpectText(two[0], text);
  ExpectText(fd, text);
  EXPECT(pwritev2(fd, &piece, 1, -1, 0) == static_cast<ssize_t>(len));
  std::array<char, 64> data{};
  piece = {data.data(), len};
  EXPECT(Readable(fd, -1));
  EXPECT(preadv2(fd, &piece, 1, -1, 0) == static_cast<ssize_t>(len) &&
         memcmp(data.data(), text, len) == 0);
  EXPECT(preadv(fd, &piece, 1, 0) == -1 && errno == ESPIPE);
  EXPECT(pread(fd, data.data(), 1, 0) == -1 && errno == ESPIPE);
  EXPECT(lseek(fd, 0, SEEK_CUR) == -1 && errno == ESPIPE);
}

volatile sig_atomic_t sigpipes;

// Closing with data unread resets. The peer sees ECONNRESET once, then the end; writing gives
// EPIPE, and SIGPIPE unless told not to.
void ResetServe(int listener) {
  int fd = Accept(listener);
  Put(fd, "go");
  int have = 0;
  while (ioctl(fd, FIONREAD, &have) == 0 && have < 100) usleep(1000);
  Get(fd, 1);
  close(fd);
  fd = Accept(listener);  // now by linger 0
  const linger now{1, 0};
  EXPECT(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
  ExpectText(fd, "x");
  close(fd);
}

void ResetConnect(uint16_t port) {
  struct sigaction action {};
  action.sa_handler = [](int) { sigpipes = sigpipes + 1; };
  sigaction(SIGPIPE, &action, nullptr);
  for (int round = 0; round < 2; ++round) {
    const int fd = Connect(port);
    if (round == 0) {
      ExpectText(fd, "go");
      Put(fd, std::string(100, 'u'));
    } else {
      Put(fd, "x");
    }
    char byte;
    EXPECT(recv(fd, &byte, 1, 0) == -1 && errno == ECONNRESET);
    EXPECT(recv(fd, &byte, 1, 0) == 0);
    sigpipes = 0;
    EXPECT(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    EXPECT(sigpipes == 0);
    EXPECT(write(fd, "x", 1) == -1 && errno == EPIPE);
    EXPECT(sigpipes == 1);
    close(fd);
  }
}

// Half close: the writer's end is found, the other direction goes on; writing after SHUT_WR is
// EPIPE.
void HalfCloseServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "question");
  ExpectEnd(fd);
  ExpectEnd(fd);
  Put(fd, std::string(300000, 'a'));
  close(fd);
}

void HalfCloseConnect(uint16_t port) {
  const int fd = Connect(port);
  Put(fd, "question");
  const int copy = dup(fd);
  EXPECT(shutdown(copy, SHUT_WR) == 0);  // of the connection, not of one descriptor
  EXPECT(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
  EXPECT(Get(fd, 300000) == std::string(300000, 'a'));
  ExpectEnd(copy);
}

// N idle connections: 20, and 500 more on SIGUSR1; each carries 1 KiB both ways once.
void ManyConnect(uint16_t port) {
  std::vector<int> fds;
  for (const size_t count : {size_t{20}, size_t{500}}) {
    for (size_t i = 0; i < count; ++i) {
      fds.push_back(Connect(port));
      const std::string text(1024, static_cast<char>('a' + i % 26));
      Put(fds.back(), text);
      ExpectText(fds.back(), text);
    }
    printf("open %zu\n", fds.size());
    fflush(stdout);
    WaitForDriver();
  }
}

// One thread and poll for all, so that the server's memory is the connections' and not the
// threads'.
void ManyServe(int listener) {
  std::vector<pollfd> fds{{listener, POLLIN, 0}};
  std::array<char, 4096> data;
  for (;;) {
    EXPECT(poll(fds.data(), fds.size(), -1) > 0);
    for (size_t i = fds.size(); i-- > 1;) {
      if (fds[i].revents == 0) continue;
      const ssize_t n = read(fds[i].fd, data.data(), data.size());
      if (n > 0) {
        Put(fds[i].fd, std::string(data.data(), static_cast<size_t>(n)));
      } else {
        close(fds[i].fd);
        fds.erase(fds.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (fds[0].revents != 0) fds.push_back({Accept(listener), POLLIN, 0});
  }
}

// Both sides write a good part of what the kernel would buffer before either reads; blocking, and
// with poll() before each write.
void WriteFirst(int fd) {
  for (const size_t chunk : {size_t{100}, size_t{1000}, size_t{50000}}) {
    for (const bool polled : {false, true}) {
      const size_t total = 400000 / chunk * chunk;
      const std::string piece(chunk, static_cast<char>('a' + chunk % 7));
      for (size_t done = 0; done < total; done += chunk) {
        if (polled) {
          pollfd one{fd, POLLOUT, 0};
          EXPECT(poll(&one, 1, 20000) == 1);
        }
        Put(fd, piece);
      }
      const std::string got = Get(fd, total);
      EXPECT(got == std::string(total, piece[0]));
    }
  }
}
void WriteFirstServe(int listener) {
  const int fd = Accept(listener);
  WriteFirst(fd);
  ExpectEnd(fd);
}
void WriteFirstConnect(uint16_t port) { WriteFirst(Connect(port)); }

// pthread_cancel ends a thread that waits in any of these, and leaves the socket usable.
void CancelServe(int listener) {
  const int fd = Accept(listener);
  using Wait = void (*)(int);
  const Wait waits[] = {
      [](int s) {
        char byte;
        (void)!read(s, &byte, 1);
      },
      [](int s) { Readable(s, -1); },
      [](int s) {
        const int set = epoll_create1(0);
        epoll_event event{.events = EPOLLIN, .data = {}};
        epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
        epoll_wait(set, &event, 1, -1);
      },
      [](int s) {
        std::string data(1 << 20, 'x');
        for (;;) (void)!write(s, data.data(), data.size());
      },
  };
  for (const Wait wait : waits) {
    struct Job {
      Wait wait;
      int fd;
    } job{wait, fd};
    pthread_t thread;
    const auto body = [](void* p) -> void* {
      static_cast<Job*>(p)->wait(static_cast<Job*>(p)->fd);
      return nullptr;
    };
    EXPECT(pthread_create(&thread, nullptr, body, &job) == 0);
    usleep(50000);
    EXPECT(pthread_cancel(thread) == 0);
    void* result = nullptr;
    EXPECT(pthread_join(thread, &result) == 0);
    EXPECT(result == PTHREAD_CANCELED);
  }
  const int another = Accept(listener);  // and a thread in accept()
  pthread_t thread;
  const auto accepting = [](void* p) -> void* {
    accept(*static_cast<int*>(p), nullptr, nullptr);
    return nullptr;
  };
  EXPECT(pthread_create(&thread, nullptr, accepting, &listener) == 0);
  usleep(50000);
  EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, nullptr) == 0);
  Put(another, "over");
  ExpectEnd(another);
}
void CancelConnect(uint16_t port) {
  const int fd = Connect(port), another = Connect(port);
  ExpectText(another, "over");
  close(another);
  std::array<char, 65536> data;
  ssize_t n;
  while ((n = read(fd, data.data(), data.size())) > 0) {
  }
  EXPECT(n == 0);  // what was written, then the end
}

// Many small sends to a reader that is awake: counted with strace by the driver.
constexpr int kSmallSends = 50000;

void SmallSendsConnect(uint16_t port) {
  const int fd = Connect(port);
  const std::string text(64, 's');
  for (int i = 0; i < kSmallSends; ++i) Put(fd, text);
}

void SmallSendsServe(int listener) {
  const int fd = Accept(listener);
  size_t total = 0;
  std::array<char, 65536> data;
  for (ssize_t n; (n = read(fd, data.data(), data.size())) > 0;) total += static_cast<size_t>(n);
  EXPECT(total == size_t{kSmallSends} * 64);
}

}  // namespace

// More threads that wait, or sets, than a stack has waiters (2,048): each of its own connection.
constexpr int kCrowd = 2200;

bool AwaitByPoll(int fd) { return Readable(fd, 60000); }
bool AwaitBySet(int fd) {
  const int set = epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  const int n = epoll_wait(set, &event, 1, 60000);
  close(set);
  return n == 1 && event.data.fd == fd;
}
void CrowdServe(int listener, bool (*await)(int fd)) {
  // Beyond the backlog of the frame clients would take the kernel's way.
  EXPECT(listen(listener, 2 * kCrowd) == 0);
  std::vector<std::thread> crowd;
  for (int i = 0; i < kCrowd; i++) {
    const int fd = Accept(listener);
    crowd.emplace_back([fd, await] {
      EXPECT(await(fd));
      ExpectText(fd, "question");
      Put(fd, "answer");
      ExpectEnd(fd);
      close(fd);
    });
  }
  for (auto& each : crowd) each.join();
}
void CrowdPollServe(int listener) { CrowdServe(listener, AwaitByPoll); }
void CrowdSetServe(int listener) { CrowdServe(listener, AwaitBySet); }
void CrowdConnect(uint16_t port) {
  std::vector<int> crowd;
  for (int i = 0; i < kCrowd; i++) crowd.push_back(Connect(port));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // so that all of them wait
  for (const int fd : crowd) {
    Put(fd, "question");
    ExpectText(fd, "answer");
    close(fd);
  }
}

const Case kCallCases[] = {{"accept_not_waiting", GreetServe, GreetConnect},
                           {"nonblocking_connect", EchoOneServe, NonblockingConnect},
                           {"nonblock_flag_reread", IdleServe, NonblockFlagConnect},
                           {"peek_waitall_timeouts", PeekServe, PeekConnect},
                           {"close_ways", CloseWaysServe, CloseWaysConnect},
                           {"pipes", EchoOneServe, PipesConnect},
                           {"reset", ResetServe, ResetConnect},
                           {"half_close", HalfCloseServe, HalfCloseConnect},
                           {"many", ManyServe, ManyConnect},
                           {"small_sends", SmallSendsServe, SmallSendsConnect},
                           {"crowd_poll", CrowdPollServe, CrowdConnect},
                           {"crowd_set", CrowdSetServe, CrowdConnect},
                           {"cancel", CancelServe, CancelConnect},
                           {"write_first", WriteFirstServe, WriteFirstConnect},
                           {nullptr, nullptr, nullptr}};

}  // namespace mistakes
