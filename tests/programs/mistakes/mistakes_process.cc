// mistakes_process.cc - fork, exec, spawn, passed descriptors and death.
// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "mistakes.h"

extern "C" int pidfd_getfd(int pidfd, int target,
                           unsigned flags);  // glibc 2.36 forgets extern "C" in <sys/pidfd.h>

namespace mistakes {
namespace {

// -- two producers, two consumers
// Each byte carries its producer (top bit) and the low 7 bits of a counter, so any interleaving can
// be taken apart again.
constexpr unsigned kMessages = 20000, kMessageBytes = 64;

void Produce(int fd, unsigned who) {
  unsigned counter = 0;
  for (unsigned i = 0; i < kMessages; ++i) {
    std::string message(kMessageBytes, '\0');
    for (char& c : message) c = static_cast<char>((who << 7) | (counter++ & 127));
    Put(fd, message);
  }
}

void TwoProducersConnect(uint16_t port) {
  const int fd = Connect(port);
  const pid_t child = fork();
  Produce(fd, child == 0 ? 1 : 0);
  if (child == 0) _exit(0);
  ExpectChild(child);
}

void TwoProducersServe(int listener) {
  const int fd = Accept(listener);
  std::array<unsigned, 2> next{};
  std::array<unsigned char, 65536> data;
  for (ssize_t n; (n = read(fd, data.data(), data.size())) != 0;) {
    EXPECT(n > 0);
    for (ssize_t i = 0; i < n; ++i) {
      const unsigned char byte = data[static_cast<size_t>(i)];
      EXPECT((byte & 127) == (next[byte >> 7]++ & 127));
    }
  }
  EXPECT(next[0] == kMessages * kMessageBytes);
  EXPECT(next[1] == kMessages * kMessageBytes);
}

void TwoConsumersConnect(uint16_t port) {
  const int fd = Connect(port);
  Produce(fd, 0);
}

void TwoConsumersServe(int listener) {
  const int fd = Accept(listener);
  int results[2];
  EXPECT(pipe(results) == 0);
  const pid_t child = fork();
  std::array<unsigned, 256> seen{};
  std::array<unsigned char, 1000> data;
  for (ssize_t n; (n = read(fd, data.data(), data.size())) != 0;) {
    EXPECT(n > 0);
    for (ssize_t i = 0; i < n; ++i) ++seen[data[static_cast<size_t>(i)]];
  }
  if (child == 0) {
    EXPECT(write(results[1], seen.data(), sizeof seen) == sizeof seen);
    _exit(0);
  }
  std::array<unsigned, 256> other{};
  EXPECT(read(results[0], other.data(), sizeof other) == sizeof other);
  ExpectChild(child);
  for (size_t value = 0; value < 256; ++value)
    EXPECT(seen[value] + other[value] == (value < 128 ? kMessages * kMessageBytes / 128 : 0));
}

// -- exec
void ExecConnect(uint16_t port) {
  const int kept = Connect(port), closed = Connect(port);
  EXPECT(fcntl(closed, F_SETFD, FD_CLOEXEC) == 0);
  Put(kept, "before");
  EXPECT(Readable(kept, -1));  // data is there, unread, at the time of exec
  execl(Self(), "mistakes", "resume", "exec", std::to_string(kept).c_str(), nullptr);
  Die(__FILE__, __LINE__, "exec to succeed");
}

void ExecServe(int listener) {
  const int kept = Accept(listener), closed = Accept(listener);
  Put(kept, "unread");
  ExpectText(kept, "before");
  ExpectEnd(closed);  // close-on-exec closed the only descriptor
  ExpectText(kept, "after");
  ExpectEnd(kept);
}

// -- passing
int ReceiveFd(int channel) {
  char byte;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  EXPECT(recvmsg(channel, &message, 0) == 1);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  EXPECT(header != nullptr && header->cmsg_type == SCM_RIGHTS);
  int fd = -1;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

// The acceptor passes the connection to another program and forgets it; with `stranger` that one
// has no preload.
void PassServe(int listener, bool stranger) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  int channel[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, channel) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(fd);
    close(listener);
    close(channel[0]);
    if (stranger) unsetenv("LD_PRELOAD");
    execl(Self(), "mistakes", "resume", "passed", std::to_string(channel[1]).c_str(), nullptr);
    _exit(1);
  }
  close(channel[1]);
  SendFd(channel[0], fd);
  close(fd);
  ExpectChild(child);
}

void PassedServe(int listener) { PassServe(listener, false); }
void PassedStrangerServe(int listener) { PassServe(listener, true); }

void EchoRounds(int fd) {
  for (int i = 0; i < 100; ++i) {
    const std::string text(static_cast<size_t>(1 + i * 97), static_cast<char>('a' + i % 26));
    Put(fd, text);
    ExpectText(fd, text);
  }
  EXPECT(shutdown(fd, SHUT_WR) == 0);
  ExpectEnd(fd);
}

void EchoedConnect(uint16_t port) {
  const int fd = Connect(port);
  Put(fd, "first");
  EchoRounds(fd);
}

void EchoConnect(uint16_t port) { EchoRounds(Connect(port)); }

// -- a child that serves: `cat` on the socket
void InheritServe(int listener, bool stranger) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  const pid_t child = fork();
  if (child == 0) {
    dup2(fd, 0);
    dup2(fd, 1);
    closefrom(3);
    if (stranger) unsetenv("LD_PRELOAD");
    execlp("cat", "cat", nullptr);
    _exit(1);
  }
  close(fd);
  ExpectChild(child);
}

void CatServe(int listener) { InheritServe(listener, false); }
void CatStrangerServe(int listener) { InheritServe(listener, true); }

// `cat` with the connection as its input and output, started by `spawn(actions, argv)`.
template <typename Spawn>
void SpawnCat(int fd, Spawn spawn) {
  posix_spawn_file_actions_t actions;
  EXPECT(posix_spawn_file_actions_init(&actions) == 0);
  EXPECT(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
  EXPECT(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
  EXPECT(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
  char name[] = "cat";
  char* argv[] = {name, nullptr};
  EXPECT(spawn(&actions, argv) == 0);
  (void)posix_spawn_file_actions_destroy(&actions);
  close(fd);
}

void SpawnServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  pid_t child = -1;
  SpawnCat(fd, [&](const posix_spawn_file_actions_t* actions, char** argv) {
    return posix_spawnp(&child, "cat", actions, nullptr, argv, environ);
  });
  ExpectChild(child);
}

// Which glibc has since 2.39, and older headers do not.
void PidfdSpawnServe(int listener) {
  using Function = int (*)(int*, const char*, const posix_spawn_file_actions_t*,
                           const posix_spawnattr_t*, char* const*, char* const*);
  const auto spawn = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "pidfd_spawnp"));
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  int pidfd = -1;
  SpawnCat(fd, [&](const posix_spawn_file_actions_t* actions, char** argv) {
    return spawn(&pidfd, "cat", actions, nullptr, argv, environ);
  });
  siginfo_t ended = {};
  constexpr auto kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD
  EXPECT(waitid(kByPidfd, static_cast<id_t>(pidfd), &ended, WEXITED) == 0);
  EXPECT(ended.si_code == CLD_EXITED && ended.si_status == 0);
}

// The shell is started inside libc, past every hook on exec.
void SystemServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  const std::string command = "cat <&" + std::to_string(fd) + " >&" + std::to_string(fd);
  EXPECT(system(command.c_str()) == 0);
}

void PopenServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  const std::string command =
      "cat <&" + std::to_string(fd) + " >&" + std::to_string(fd) + "; echo over";
  FILE* shell = popen(command.c_str(), "re");
  EXPECT(shell != nullptr);
  char line[16] = "";
  EXPECT(fgets(line, sizeof line, shell) != nullptr && std::string(line) == "over\n");
  EXPECT(pclose(shell) == 0);
}

void Clone3Serve(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  clone_args args{};
  args.exit_signal = SIGCHLD;
  const long child = syscall(SYS_clone3, &args, sizeof args);
  EXPECT(child >= 0);
  if (child == 0) {
    Echo(fd);
    _exit(0);
  }
  close(fd);
  ExpectChild(static_cast<pid_t>(child));
}

void UnderscoreForkServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  const pid_t child = _Fork();
  EXPECT(child >= 0);
  if (child == 0) {
    Echo(fd);
    _exit(0);
  }
  close(fd);
  ExpectChild(child);
}

// More processes than one stack has slots for (256). Returns the write end of a pipe: they go when
// it is closed.
int Crowd(int listener, int connection, std::vector<pid_t>* crowd) {
  int hold[2];
  EXPECT(pipe(hold) == 0);
  for (int i = 0; i < 300; i++) {
    const pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
      close(hold[1]);
      close(listener);
      close(connection);
      char byte;
      _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    crowd->push_back(pid);
  }
  close(hold[0]);
  return hold[1];
}
void CrowdForkServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  std::vector<pid_t> crowd;
  const int hold = Crowd(listener, fd, &crowd);
  const pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    Echo(fd);
    _exit(0);
  }
  close(fd);
  ExpectChild(child);
  close(hold);
  for (const pid_t pid : crowd) ExpectChild(pid);
}
void CrowdSpawnServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  std::vector<pid_t> crowd;
  const int hold = Crowd(listener, fd, &crowd);
  const std::string command = "cat <&" + std::to_string(fd) + " >&" + std::to_string(fd);
  EXPECT(system(command.c_str()) == 0);
  close(hold);
  for (const pid_t pid : crowd) ExpectChild(pid);
}

// libc's clone(), which runs no fork handlers.
int EchoOn(void* fd) {
  Echo(*static_cast<int*>(fd));
  return 0;
}
void CloneServe(int listener) {
  int fd = Accept(listener);
  ExpectText(fd, "first");
  std::vector<char> stack(1 << 20);
  const int child = clone(EchoOn, stack.data() + stack.size(), SIGCHLD, &fd);
  EXPECT(child > 0);
  close(fd);
  ExpectChild(child);
}

// In another network namespace the same port is somebody else's, or nobody's.
void UnshareServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "here");
  ExpectEnd(fd);
}
void UnshareConnect(uint16_t port) {
  const int fd = Connect(port);
  Put(fd, "here");
  EXPECT(unshare(CLONE_NEWNET) == 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT(connect(other, reinterpret_cast<sockaddr*>(&at), sizeof at) == -1);
}

void VforkServe(int listener) {
  const int fd = Accept(listener);
  ExpectText(fd, "first");
  const std::string number = std::to_string(fd);
  const char* self = Self();
  const pid_t child = vfork();
  if (child == 0) {
    execl(self, "mistakes", "resume", "echo", number.c_str(), nullptr);
    _exit(1);
  }
  close(fd);
  ExpectChild(child);
}

void PidfdGetfdServe(int listener) {
  int ready[2];
  EXPECT(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = Accept(listener);
    EXPECT(write(ready[1], &fd, sizeof fd) == sizeof fd);
    pause();
  }
  int remote = -1;
  EXPECT(read(ready[0], &remote, sizeof remote) == sizeof remote);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  const int fd = pidfd_getfd(pidfd, remote, 0);
  EXPECT(fd >= 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ExpectText(fd, "first");
  Echo(fd);
}

// -- death
// Connections 1-5 meet a server that reads, polls, is in epoll_wait, is in send, has not accepted
// yet; the client dies by SIGKILL. 6: it dies with data of ours unread, which is a reset.
void DeathConnect(uint16_t port) {
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const int fd = Connect(port);
      Put(fd, "hello");
      if (i == 3) usleep(300000);  // the server fills the buffers meanwhile
      if (i == 5) EXPECT(Readable(fd, -1));
      usleep(50000);
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
}

void DeathServe(int listener) {
  int fd = Accept(listener);
  ExpectText(fd, "hello");
  ExpectEnd(fd);
  close(fd);
  fd = Accept(listener);
  ExpectText(fd, "hello");
  EXPECT(Readable(fd, -1));
  ExpectEnd(fd);
  close(fd);
  fd = Accept(listener);
  ExpectText(fd, "hello");
  const int set = epoll_create1(0);
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {}};
  EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  EXPECT(epoll_wait(set, &event, 1, -1) == 1);
  EXPECT((event.events & EPOLLRDHUP) != 0);
  ExpectEnd(fd);
  close(fd);
  fd = Accept(listener);
  ExpectText(fd, "hello");
  const std::string block(1 << 20, 'z');
  ssize_t n;
  while ((n = send(fd, block.data(), block.size(), MSG_NOSIGNAL)) > 0) {
  }
  EXPECT(n == -1 && (errno == ECONNRESET || errno == EPIPE));
  close(fd);
  usleep(300000);  // the client connects, sends and dies before this accept
  fd = Accept(listener);
  ExpectText(fd, "hello");
  ExpectEnd(fd);
  close(fd);
  fd = Accept(listener);
  ExpectText(fd, "hello");
  Put(fd, "unread");
  char byte;
  EXPECT(read(fd, &byte, 1) == -1 && errno == ECONNRESET);
}

// -- fork in a threaded program; children die inside calls
void LockOwnerConnect(uint16_t port) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const int fd = Connect(port);
      for (unsigned i = 0; !stop; ++i) {
        const std::string text(1 + i % 5000,
                               static_cast<char>('A' + (i + static_cast<unsigned>(t)) % 26));
        Put(fd, text);
        ExpectText(fd, text);
      }
      close(fd);
    });
  }
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      const int fd = Connect(port);
      for (;;) {
        Put(fd, "child");
        ExpectText(fd, "child");
      }
    }
    usleep(static_cast<useconds_t>(500 + (round * 7919) % 9000));
    kill(child, SIGKILL);
    EXPECT(waitpid(child, nullptr, 0) == child);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

// A thread for each connection, until the driver ends it.
void EchoPoolServe(int listener) {
  for (;;) {
    const int fd = Accept(listener);
    std::thread([fd] {
      std::array<char, 8192> data;
      for (ssize_t n; (n = read(fd, data.data(), data.size())) > 0;) {
        if (send(fd, data.data(), static_cast<size_t>(n), MSG_NOSIGNAL) != n)
          break;  // that client was killed
      }
      close(fd);
    }).detach();
  }
}

}  // namespace

int Resume(const std::string& what, int fd) {
  if (what == "exec") {
    ExpectText(fd, "unread");
    Put(fd, "after");
    return 0;
  }
  if (what == "word") {
    Put(fd, "!");
    return 0;
  }
  const int socket_fd = what == "passed" ? ReceiveFd(fd) : fd;
  close(what == "passed" ? fd : -1);
  Echo(socket_fd);
  return 0;
}

const Case kProcessCases[] = {{"fork_two_producers", TwoProducersServe, TwoProducersConnect},
                              {"fork_two_consumers", TwoConsumersServe, TwoConsumersConnect},
                              {"exec_keeps_state", ExecServe, ExecConnect},
                              {"passed_fd", PassedServe, EchoedConnect},
                              {"passed_fd_to_stranger", PassedStrangerServe, EchoedConnect},
                              {"inherited_by_exec", CatServe, EchoedConnect},
                              {"inherited_by_stranger", CatStrangerServe, EchoedConnect},
                              {"posix_spawn", SpawnServe, EchoedConnect},
                              {"pidfd_spawn", PidfdSpawnServe, EchoedConnect},
                              {"system", SystemServe, EchoedConnect},
                              {"popen", PopenServe, EchoedConnect},
                              {"clone", CloneServe, EchoedConnect},
                              {"unshare_net", UnshareServe, UnshareConnect},
                              {"clone3", Clone3Serve, EchoedConnect},
                              {"vfork", VforkServe, EchoedConnect},
                              {"_Fork", UnderscoreForkServe, EchoedConnect},
                              {"crowd_fork", CrowdForkServe, EchoedConnect},
                              {"crowd_spawn", CrowdSpawnServe, EchoedConnect},
                              {"pidfd_getfd", PidfdGetfdServe, EchoedConnect},
                              {"peer_death", DeathServe, DeathConnect},
                              {"fork_lock_owner_dies", EchoPoolServe, LockOwnerConnect},
                              {"echo", EchoPoolServe, EchoConnect},
                              {nullptr, nullptr, nullptr}};

}  // namespace mistakes
