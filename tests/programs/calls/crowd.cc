// SPDX-License-Identifier: Apache-2.0
// crowd.cc - many threads that wait on one connection: a few are woken by the peer, and wake the
// others.
//
// crowd NAME: one check, in one process that is both ends (or forks). Prints what is wrong; exit
// code 1 then. Ends by SIGALRM if a thread is never woken.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 60;  // several times what one wake is for

int failures;
void Check(const char* what, bool good) {
  if (good) return;
  printf("wrong: %s (errno %d)\n", what, errno);
  failures++;
}

struct Pair {
  Pair() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&at);
    socklen_t len = sizeof at;
    if (bind(listener, name, len) != 0 || listen(listener, 1) != 0) perror("listen");
    getsockname(listener, name, &len);
    client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, name, len) != 0) perror("connect");
    server = accept(listener, nullptr, nullptr);
    close(listener);
  }
  int client, server;
};

// Until each thread of `pid` but its first sleeps.
void AwaitSleep(pid_t pid, int threads) {
  for (;;) {
    int asleep = 0;
    const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    FILE* const list = popen(("cat " + tasks + "/*/stat 2>/dev/null").c_str(), "r");
    char line[1024];
    while (fgets(line, sizeof line, list) != nullptr) {
      const char* const end = strrchr(line, ')');
      if (end != nullptr && end[2] == 'S' && atoi(line) != pid) asleep++;
    }
    pclose(list);
    if (asleep >= threads) return;
    usleep(20'000);
  }
}

// `wait` in each of the threads; `act` when all of them sleep. How many said true.
template <typename Waits, typename Act>
int Crowd(Waits wait, Act act) {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      if (wait(i)) good++;
    });
  }
  AwaitSleep(getpid(), kThreads);
  act();
  for (std::thread& thread : threads) thread.join();
  return good;
}

bool Receives(int fd) {
  char c;
  return recv(fd, &c, 1, 0) == 1;
}
bool Polls(int fd, short events) {
  pollfd p = {fd, events, 0};
  return poll(&p, 1, -1) == 1 && (p.revents & events) != 0;
}

void ByteEach() {
  const Pair p;
  const std::string bytes(kThreads, 'x');
  const auto send_all = [&] {
    Check("send", send(p.client, bytes.data(), bytes.size(), 0) == kThreads);
  };
  Check("each thread gets its byte",
        Crowd([&](int) { return Receives(p.server); }, send_all) == kThreads);
}

void End() {
  const Pair p;
  const auto end = [&] { shutdown(p.client, SHUT_WR); };
  const auto is_told = [&](int) {
    char c;
    return recv(p.server, &c, 1, 0) == 0;
  };
  Check("each thread is told of the end", Crowd(is_told, end) == kThreads);
}

// The oldest sleepers wait for something else than what comes.
void Others() {
  const Pair p;
  std::atomic<int> told{0};
  const auto waits = [&](int i) {
    if (i < kThreads - 1) return Polls(p.server, POLLRDHUP);
    const bool good = Receives(p.server);
    told++;
    shutdown(p.client, SHUT_WR);
    return good;
  };
  const auto send_one = [&] { Check("send", send(p.client, "x", 1, 0) == 1); };
  Check("the byte finds its reader, and the end all",
        Crowd(waits, send_one) == kThreads && told == 1);
}

void Writers() {
  const Pair p;
  const std::string bulk(1 << 20, 'y');
  while (send(p.client, bulk.data(), bulk.size(), MSG_DONTWAIT) > 0) {
  }
  std::atomic<long> sent{0};
  const auto sends = [&](int) {
    const ssize_t n = send(p.client, bulk.data(), 1000, 0);
    if (n > 0) sent += n;
    return n == 1000;
  };
  const auto drain = [&] {
    std::string into(1 << 20, '\0');
    pollfd more = {p.server, POLLIN, 0};
    while (poll(&more, 1, 1000) == 1) (void)!recv(p.server, &into[0], into.size(), 0);
  };
  Check("each writer gets on", Crowd(sends, drain) == kThreads && sent == kThreads * 1000);
}

// A process whose threads were woken, and that dies before they have handed it on.
void Killed() {
  const Pair p;
  const pid_t child = fork();
  if (child == 0) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) threads.emplace_back([&] { Receives(p.server); });
    for (std::thread& thread : threads) thread.join();
    _exit(0);
  }
  AwaitSleep(child, kThreads);
  const auto kill_it = [&] {
    kill(child, SIGSTOP);
    waitpid(child, nullptr, WUNTRACED);
    const std::string bytes(kThreads, 'x');
    Check("send", send(p.client, bytes.data(), bytes.size(), 0) == kThreads);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  Check("the threads of another process get them",
        Crowd([&](int) { return Receives(p.server); }, kill_it) == kThreads);
}

struct Named {
  const char* name;
  void (*run)();
};
constexpr Named kChecks[] = {
    {"byte_each", ByteEach}, {"end", End},       {"others", Others},
    {"writers", Writers},    {"killed", Killed},
};

}  // namespace

int main(int argc, char** argv) {
  alarm(40);
  for (const Named& check : kChecks) {
    if (argc != 2 || strcmp(argv[1], check.name) != 0) continue;
    check.run();
    printf("%s\n", failures == 0 ? "as it should be" : "failed");
    return failures == 0 ? 0 : 1;
  }
  return 2;
}
