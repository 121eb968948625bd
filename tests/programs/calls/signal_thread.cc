// SPDX-License-Identifier: Apache-2.0
// signal_thread.cc - which thread gets a process's signals: the kernel prefers the main thread, and
// programs rely on it (CPython runs its handlers there alone, and a sleep is not interrupted by a
// signal that another thread has taken).
//
// The main thread sleeps; others exchange bytes over connections and wait in poll() in between. A
// child sends a signal at a time.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../rings/loopback.h"

namespace {

constexpr int kPairs = 3, kSignals = 400;
constexpr timespec kPause = {0, 300'000};

[[noreturn]] void Die(int line, const char* what) {
  std::fprintf(stderr, "signal_thread.cc:%d: %s (%s)\n", line, what, strerror(errno));
  std::exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : Die(__LINE__, #condition))

std::atomic<int> by_main{0}, by_others{0};
std::atomic<bool> stop{false};
std::thread::id main_thread;
int taken = -1;  // a byte for each handler that has run

void Handler(int) {
  const int saved = errno;
  ++(std::this_thread::get_id() == main_thread ? by_main : by_others);
  const ssize_t n = write(taken, "", 1);
  (void)n;
  errno = saved;
}

void PingPong(int fd, bool begins) {
  char byte = 0;
  if (begins) EXPECT(send(fd, &byte, 1, MSG_NOSIGNAL) == 1);
  while (!stop) {
    pollfd p = {fd, POLLIN, 0};
    const int r = poll(&p, 1, 1000);
    if (r < 0) continue;  // the signal, where it ought not to be
    if (recv(fd, &byte, 1, 0) != 1) return;
    nanosleep(&kPause, nullptr);  // so that the other end sleeps
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) return;
  }
  shutdown(fd, SHUT_RDWR);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  main_thread = std::this_thread::get_id();
  int acks[2];
  EXPECT(pipe(acks) == 0);
  taken = acks[1];
  struct sigaction act = {};
  act.sa_handler = Handler;
  EXPECT(sigaction(SIGUSR1, &act, nullptr) == 0);
  const pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    close(acks[1]);
    char ack;
    for (int i = 0; i <= kSignals && read(acks[0], &ack, 1) == 1; ++i) {
      usleep(1000);
      if (i < kSignals) kill(getppid(), SIGUSR1);
    }
    _exit(0);
  }
  const int listener = loopback::Listen(argv[1]);
  EXPECT(listener >= 0);
  const sockaddr_in a = loopback::Address(argv[1]);
  std::vector<std::thread> threads;
  for (int i = 0; i < kPairs; ++i) {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(connect(client, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
    const int server = accept(listener, nullptr, nullptr);
    EXPECT(server >= 0);
    threads.emplace_back(PingPong, client, true);
    threads.emplace_back(PingPong, server, false);
  }
  EXPECT(write(acks[1], "", 1) == 1);  // the child may begin
  while (by_main + by_others < kSignals) {
    const timespec left = {0, 200'000'000};
    nanosleep(&left, nullptr);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  int status;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  std::printf("%d by the main thread, %d by others\n", by_main.load(), by_others.load());
  return by_others == 0 ? 0 : 1;
}
