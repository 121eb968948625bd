// mistakes_spawn.cc - numbers beyond the first thousand, shells started by several threads, forks
// beside threads that are in the middle of something.
// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "mistakes.h"

namespace mistakes {
namespace {

constexpr std::array kHighNumbers = {1023, 1024, 5000, 70000};
constexpr int kHighWays = 4;  // fork, exec, spawn, spawn with a file action

void RaiseLimit() {
  rlimit limit{};
  EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

int HighNumber(int fd, int number) {
  rlimit limit{};
  EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (static_cast<rlim_t>(number) + 2 >= limit.rlim_cur)
    number = static_cast<int>(limit.rlim_cur) - 2;
  EXPECT(dup2(fd, number) == number);
  close(fd);
  return number;
}

pid_t SpawnEcho(int fd, const posix_spawn_file_actions_t* actions) {
  const std::string number = std::to_string(fd);
  std::vector<std::string> words{"mistakes", "resume", "echo", number};
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = -1;
  EXPECT(posix_spawn(&child, Self(), actions, nullptr, argv.data(), environ) == 0);
  return child;
}

pid_t StartEcho(int fd, int way) {
  if (way < 2) {
    const std::string number = std::to_string(fd);
    const pid_t child = fork();
    if (child != 0) return child;
    if (way == 0) {
      Echo(fd);
      _exit(0);
    }
    execl(Self(), "mistakes", "resume", "echo", number.c_str(), nullptr);
    _exit(1);
  }
  if (way == 2) return SpawnEcho(fd, nullptr);
  posix_spawn_file_actions_t actions;
  EXPECT(posix_spawn_file_actions_init(&actions) == 0);
  EXPECT(posix_spawn_file_actions_adddup2(&actions, fd, fd - 500) == 0);
  EXPECT(posix_spawn_file_actions_addclose(&actions, fd) == 0);
  const pid_t child = SpawnEcho(fd - 500, &actions);
  (void)posix_spawn_file_actions_destroy(&actions);
  return child;
}

// The child alone serves the connection, under its high number.
void HighNumbersServe(int listener) {
  RaiseLimit();
  for (const int number : kHighNumbers) {
    for (int way = 0; way < kHighWays; ++way) {
      const int fd = HighNumber(Accept(listener), number);
      const pid_t child = StartEcho(fd, way);
      EXPECT(child > 0);
      close(fd);
      ExpectChild(child);
    }
  }
}

void EchoSoManyRounds(int fd, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const std::string text(static_cast<size_t>(1 + i * 97), static_cast<char>('a' + i % 26));
    Put(fd, text);
    ExpectText(fd, text);
  }
  EXPECT(shutdown(fd, SHUT_WR) == 0);
  ExpectEnd(fd);
  close(fd);
}

void HighNumbersConnect(uint16_t port) {
  for (int i = 0; i < kHighWays * static_cast<int>(kHighNumbers.size()); ++i)
    EchoSoManyRounds(Connect(port), 10);
}

// Threads with the smallest stack that there is.
void OnSmallStack(void* (*run)(void*), int argument) {
  pthread_attr_t small{};
  EXPECT(pthread_attr_init(&small) == 0);
  const auto least = static_cast<size_t>(sysconf(_SC_THREAD_STACK_MIN));
  EXPECT(pthread_attr_setstacksize(&small, least) == 0);
  pthread_t thread{};
  EXPECT(pthread_create(&thread, &small, run, &argument) == 0);
  EXPECT(pthread_join(thread, nullptr) == 0);
}

// What the client sends goes through a pipe to a file, and back by sendfile(); then the waits.
void* MoveOnSmallStack(void* listener) {
  constexpr size_t kBytes = 100'000;
  const int fd = Accept(*static_cast<int*>(listener)), file = memfd_create("moved", 0);
  int ends[2];
  EXPECT(pipe(ends) == 0);
  for (size_t done = 0; done < kBytes;) {
    const ssize_t n = splice(fd, nullptr, ends[1], nullptr, kBytes - done, 0);
    EXPECT(n > 0);
    EXPECT(splice(ends[0], nullptr, file, nullptr, static_cast<size_t>(n), 0) == n);
    done += static_cast<size_t>(n);
  }
  for (off_t at = 0; at < static_cast<off_t>(kBytes);) EXPECT(sendfile(fd, file, &at, kBytes) > 0);
  Put(ends[1], "moved");
  EXPECT(splice(ends[0], nullptr, fd, nullptr, 5, 0) == 5);
  EXPECT(Readable(fd, 10000));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  EXPECT(select(fd + 1, &set, nullptr, nullptr, nullptr) == 1);
  const int events = epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  EXPECT(epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) == 0);
  EXPECT(epoll_wait(events, &event, 1, 10000) == 1);
  ExpectEnd(fd);
  close(fd);
  return nullptr;
}
void SmallStackServe(int listener) { OnSmallStack(MoveOnSmallStack, listener); }
void* SendOnSmallStack(void* port) {
  const int fd = Connect(static_cast<uint16_t>(*static_cast<int*>(port)));
  const std::string text(100'000, 's');
  Put(fd, text);
  ExpectText(fd, text);
  ExpectText(fd, "moved");
  close(fd);
  return nullptr;
}
void SmallStackConnect(uint16_t port) { OnSmallStack(SendOnSmallStack, port); }

// And with an environment of 9,000 variables.
constexpr int kVariables = 9000;

void* SpawnEchoes(void* listener) {
  for (const int way : {1, 2}) {
    const int fd = Accept(*static_cast<int*>(listener));
    const pid_t child = StartEcho(fd, way);
    EXPECT(child > 0);
    close(fd);
    ExpectChild(child);
  }
  return nullptr;
}
void LargeEnvironmentServe(int listener) {
  for (int i = 0; i < kVariables; ++i)
    EXPECT(setenv(("MISTAKES_" + std::to_string(i)).c_str(), "x", 1) == 0);
  OnSmallStack(SpawnEchoes, listener);
}
void LargeEnvironmentConnect(uint16_t port) {
  for (int i = 0; i < 2; ++i) EchoSoManyRounds(Connect(port), 3);
}

// A duplicate of an event set, from before the set had a member of ours.
void HighSetServe(int listener) {
  RaiseLimit();
  const int set = epoll_create1(0), fd = Accept(listener);
  EXPECT(dup2(set, 3000) == 3000);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  close(set);
  Put(fd, "go");
  epoll_event got{};
  EXPECT(epoll_wait(3000, &got, 1, 10000) == 1);
  EXPECT(got.data.fd == fd);
  Echo(fd);
}

void HighSetConnect(uint16_t port) {
  const int fd = Connect(port);
  ExpectText(fd, "go");
  usleep(50000);  // the server sleeps by then; either order must work
  EchoSoManyRounds(fd, 3);
}

// ---------------------------------------------------------------- shells, by several threads
// fclose() of what popen() gave is pclose(), in libc; compilers would warn of it.
using Closer = int (*volatile)(FILE*);
Closer closers[] = {pclose, fclose};

constexpr int kShellThreads = 4, kShellRounds = 12;

// system() and popen() in threads, beside one whose exec() fails again and again, and one that
// forks. Nobody but the shell's program answers the client.
void ShellsServe(int listener) {
  std::atomic<bool> over{false};
  char* const* const before = environ;
  std::vector<std::thread> others;
  others.emplace_back([&] {
    while (!over) {
      EXPECT(execl("/nonexistent/program", "program", nullptr) == -1);
      EXPECT(environ == before);
    }
  });
  others.emplace_back([&] {
    while (!over) {
      const pid_t child = fork();
      if (child == 0) _exit(0);
      ExpectChild(child);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kShellThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kShellRounds; ++i) {
        const int fd = Accept(listener);
        const std::string command =
            std::string("exec ") + Self() + " resume echo " + std::to_string(fd);
        if (t % 2 == 0) {
          EXPECT(system(command.c_str()) == 0);
        } else {
          FILE* shell = popen(command.c_str(), i % 3 == 0 ? "re" : "w");
          EXPECT(shell != nullptr);
          EXPECT(closers[i % 2](shell) == 0);
        }
        close(fd);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  over = true;
  for (std::thread& thread : others) thread.join();
}

void ShellsConnect(uint16_t port) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kShellThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kShellRounds; ++i) EchoSoManyRounds(Connect(port), 5);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What else system() and popen() are: exit statuses, signals, pipes of earlier calls.
void ShellWaysServe(int listener) {
  const int fd = Accept(listener);  // the process has a stack
  EXPECT(system(nullptr) != 0);
  EXPECT(WEXITSTATUS(system("exit 3")) == 3);
  EXPECT(WTERMSIG(system("kill -9 $$")) == 9);
  struct sigaction by_default {};
  struct sigaction ignore {};
  by_default.sa_handler = SIG_DFL;  // a shell that started this test in the background ignores it
  EXPECT(sigaction(SIGINT, &by_default, nullptr) == 0);
  ignore.sa_handler = SIG_IGN;
  EXPECT(sigaction(SIGQUIT, &ignore, nullptr) == 0);
  // The shell has SIGINT as we have it, and ignores SIGQUIT as we do; we ignore both meanwhile.
  EXPECT(WTERMSIG(system("kill -INT $PPID; kill -QUIT $PPID; kill -QUIT $$; kill -INT $$")) ==
         SIGINT);
  errno = 0;
  EXPECT(popen("true", "rw") == nullptr && errno == EINVAL);
  FILE* first = popen("cat >/dev/null; exit 5", "w");
  FILE* second = popen("cat", "w");  // must not hold the first one's pipe open
  EXPECT(first != nullptr && second != nullptr);
  EXPECT(WEXITSTATUS(pclose(first)) == 5);
  EXPECT(pclose(second) == 0);
  char line[64] = "";
  FILE* reads = popen("echo hello; exit 2", "r");
  EXPECT(reads != nullptr && (fcntl(fileno(reads), F_GETFD) & FD_CLOEXEC) == 0);
  EXPECT(fgets(line, sizeof line, reads) != nullptr && strcmp(line, "hello\n") == 0);
  EXPECT(WEXITSTATUS(closers[1](reads)) == 2);
  Echo(fd);
}

void ShellWaysConnect(uint16_t port) { EchoSoManyRounds(Connect(port), 3); }

// ---------------------------------------------------------------- forks
// The thread is in its system call `number`.
bool IsIn(pid_t tid, long number) {
  const std::string path = "/proc/self/task/" + std::to_string(tid) + "/syscall";
  FILE* file = fopen(path.c_str(), "re");
  long now = -1;
  const bool read = file != nullptr && fscanf(file, "%ld", &now) == 1;
  if (file != nullptr) fclose(file);
  return read && now == number;
}

// To an address that nobody can be connected to, which the library leaves to its wire.
void ConnectNowhere() {
  sockaddr_in nowhere{};
  nowhere.sin_family = AF_INET;
  nowhere.sin_port = htons(9);
  nowhere.sin_addr.s_addr = inet_addr("224.0.0.1");
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EXPECT(connect(fd, reinterpret_cast<const sockaddr*>(&nowhere), sizeof nowhere) == -1);
  close(fd);
}

// posternd is stopped while a thread asks it; the fork comes in the middle.
void ForkInQuestionConnect(uint16_t port) {
  const int fd = Connect(port);
  WaitForDriver();
  std::atomic<pid_t> tid{0};
  std::thread asks([&] {
    tid = static_cast<pid_t>(syscall(SYS_gettid));
    ConnectNowhere();
    for (;;) pause();  // it lives as long as the process does
  });
  while (tid == 0 || !IsIn(tid, SYS_recvmsg)) usleep(1000);
  const pid_t child = fork();
  if (child == 0) {
    ConnectNowhere();
    _exit(0);
  }
  EXPECT(child > 0);
  WaitForDriver();  // posternd goes on
  ExpectChild(child);
  EchoSoManyRounds(fd, 3);
  asks.detach();
  _exit(0);
}

void EchoServe(int listener) { Echo(Accept(listener)); }

}  // namespace

const Case kSpawnCases[] = {{"high_numbers", HighNumbersServe, HighNumbersConnect},
                            {"high_set", HighSetServe, HighSetConnect},
                            {"small_stack", SmallStackServe, SmallStackConnect},
                            {"large_environment", LargeEnvironmentServe, LargeEnvironmentConnect},
                            {"shells", ShellsServe, ShellsConnect},
                            {"shell_ways", ShellWaysServe, ShellWaysConnect},
                            {"fork_in_question", EchoServe, ForkInQuestionConnect},
                            {nullptr, nullptr, nullptr}};

}  // namespace mistakes
