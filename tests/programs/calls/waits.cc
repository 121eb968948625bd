// SPDX-License-Identifier: Apache-2.0
// waits.cc - event sets and waits under conditions that few programs meet, each as on the kernel.
//
// waits NAME: one check, in one process that is both ends (or forks). Prints what is wrong; exit
// code 1 then. waits: the names.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <thread>
#include <vector>

namespace {

int failures;
void Check(const char* what, bool good) {
  if (good) return;
  printf("wrong: %s (errno %d)\n", what, errno);
  failures++;
}

void SleepMs(long ms) {
  timespec ts = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&ts, &ts) != 0) {
  }
}
long NowMs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}
long CpuMs() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 +
         (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000;
}

struct Listener {
  explicit Listener(int backlog) : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof at;
    if (bind(fd, Name(), len) != 0 || (backlog >= 0 && listen(fd, backlog) != 0)) perror("listen");
    getsockname(fd, Name(), &len);
  }
  ~Listener() { close(fd); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  sockaddr* Name() { return reinterpret_cast<sockaddr*>(&at); }
  int Dial() {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, Name(), sizeof at) == 0) return s;
    int error = errno;
    close(s);
    errno = error;
    return -1;
  }
  int fd;
  sockaddr_in at = {};
};

struct Pair {
  Pair() {
    Listener l(5);
    client = l.Dial();
    server = accept(l.fd, nullptr, nullptr);
    if (client < 0 || server < 0) perror("pair");
  }
  ~Pair() { close(client), close(server); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  int client, server;
};

int Add(int ep, int fd, uint32_t events, int op = EPOLL_CTL_ADD) {
  epoll_event ev = {};
  ev.events = events;
  ev.data.fd = fd;
  return epoll_ctl(ep, op, fd, &ev);
}

// Nobody accepts while the program waits for something else: that is no reason to burn the CPU.
void PollBesideBacklog() {
  Pair p;
  Listener l(5);
  int waiting = l.Dial();
  pollfd one = {p.server, POLLIN, 0};
  long before = CpuMs();
  Check("poll finds nothing", poll(&one, 1, 600) == 0);
  Check("poll sleeps while a client waits to be accepted", CpuMs() - before < 300);
  close(waiting);
}

// A listener that is registered for nothing, as by a server that has enough to do.
void PausedListener() {
  Pair p;
  Listener l(5);
  int ep = epoll_create1(0);
  epoll_event got;
  Add(ep, p.server, EPOLLIN);
  Add(ep, l.fd, 0);
  pid_t stranger = fork();  // a client that the kernel serves
  if (stranger == 0) {
    char port[16];
    snprintf(port, sizeof port, "%d", ntohs(l.at.sin_port));
    char text[] =
        "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
        "time.sleep(2)";
    char* argv[] = {const_cast<char*>("python3"), const_cast<char*>("-c"), text, port, nullptr};
    char none[] = "LD_PRELOAD=", nowhere[] = "POSTERN_RUNTIME_DIR=";
    char* envp[] = {none, nowhere, nullptr};
    execve("/usr/bin/python3", argv, envp);
    _exit(1);
  }
  SleepMs(700);
  long before = CpuMs();
  Check("no event of a paused listener", epoll_wait(ep, &got, 1, 600) == 0);
  Check("epoll_wait sleeps beside a paused listener", CpuMs() - before < 300);
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  close(ep);
}

// Registered first, then made a listener.
void AddThenListen() {
  Pair p;  // so that the stack exists
  Listener l(-1);
  int ep = epoll_create1(0);
  epoll_event got[2];
  Check("add before listen", Add(ep, l.fd, EPOLLIN | EPOLLET) == 0);
  (void)epoll_wait(ep, got, 2, 0);
  std::thread later([&] {
    SleepMs(200);
    listen(l.fd, 5);
    SleepMs(200);
    int c = l.Dial();
    SleepMs(800);
    close(c);
  });
  int n = 0;
  for (int i = 0; i < 3; i++) {
    n = epoll_wait(ep, got, 2, 1500);
    if (n != 1 || (got[0].events & EPOLLIN) != 0) break;
  }
  Check("a connection to it is an event", n == 1 && (got[0].events & EPOLLIN) != 0);
  later.join();
  close(ep);
}

// Two threads wait for one event each: while the first is busy, the second gets the other event.
void TwoSleepers(uint32_t how) {
  Pair a, b;
  int ep = epoll_create1(0);
  Add(ep, a.server, EPOLLIN | how);
  Add(ep, b.server, EPOLLIN | how);
  int late = 0;
  for (int round = 0; round < 5; round++) {
    std::atomic<int> taken{0};
    // A level may be told to both, if the first gets no CPU before it reads: the second goes on
    // waiting then.
    auto wait = [&] {
      epoll_event got;
      char c;
      do {
        if (epoll_wait(ep, &got, 1, 3000) != 1) return;
      } while (recv(got.data.fd, &c, 1, MSG_DONTWAIT) != 1);
      taken++;
      for (long end = NowMs() + 2400; taken < 2 && NowMs() < end;) SleepMs(1);
    };
    std::thread one(wait), two(wait);
    SleepMs(60);
    (void)!write(a.client, "x", 1);
    (void)!write(b.client, "y", 1);
    long end = NowMs() + 2000;
    while (taken < 2 && NowMs() < end) SleepMs(1);
    if (taken < 2) late++;
    one.join();
    two.join();
    char c;
    for (int fd : {a.server, b.server}) {
      (void)recv(fd, &c, 1, MSG_DONTWAIT);
      if (how != 0) Add(ep, fd, EPOLLIN | how, EPOLL_CTL_MOD);
    }
    epoll_event got[2];
    (void)epoll_wait(ep, got, 2, 0);
    if (how != 0)
      Add(ep, a.server, EPOLLIN | how, EPOLL_CTL_MOD),
          Add(ep, b.server, EPOLLIN | how, EPOLL_CTL_MOD);
  }
  if (late != 0) printf("%d rounds of 5\n", late);
  Check("each sleeper is woken for its event", late == 0);
  close(ep);
}
void TwoSleepersLevel() { TwoSleepers(0); }
void TwoSleepersOneshot() { TwoSleepers(EPOLLONESHOT); }

// One thread sleeps, another looks now and then, and takes the first event: the second is the
// sleeper's.
void SleeperAndLooker() {
  Pair a, b;
  int ep = epoll_create1(0);
  Add(ep, a.server, EPOLLIN | EPOLLET);
  Add(ep, b.server, EPOLLIN | EPOLLET);
  int lost = 0;
  for (int round = 0; round < 300 && lost == 0; round++) {
    std::atomic<int> got_by_sleeper{0}, got_by_looker{0};
    std::thread sleeper([&] {
      epoll_event got;
      while (got_by_sleeper + got_by_looker < 2 && epoll_wait(ep, &got, 1, 1500) == 1)
        got_by_sleeper++;
    });
    SleepMs(3);
    epoll_event got, two[2];
    (void)!write(a.client, "x", 1);
    for (long end = NowMs() + 2; NowMs() < end && got_by_looker == 0;)
      got_by_looker += epoll_wait(ep, two, 2, 0);
    (void)!write(b.client, "y", 1);
    long end = NowMs() + 500;
    while (got_by_sleeper + got_by_looker < 2 && NowMs() < end) SleepMs(1);
    if (got_by_sleeper + got_by_looker < 2) lost++;
    while (got_by_sleeper + got_by_looker < 2 && epoll_wait(ep, &got, 1, 100) == 1) got_by_looker++;
    got_by_looker = 2;
    (void)!write(a.client, "z", 1);
    sleeper.join();
    char text[8];
    while (recv(a.server, text, 8, MSG_DONTWAIT) > 0 || recv(b.server, text, 8, MSG_DONTWAIT) > 0) {
    }
    while (epoll_wait(ep, &got, 1, 0) == 1) {
    }
  }
  Check("the sleeper is woken", lost == 0);
  close(ep);
}

// The descriptor of a set is closed under a thread that waits: it waits on, and times out.
void CloseUnderWait() {
  Pair p;
  for (int round = 0; round < 5; round++) {
    int ep = epoll_create1(0);
    Add(ep, p.server, EPOLLIN);
    int n = -2;
    std::thread waits([&] {
      epoll_event got;
      n = epoll_wait(ep, &got, 1, 300);
    });
    SleepMs(100);
    close(ep);
    if (round % 2 == 0) waits.join();
    int other = epoll_create1(0);  // takes what the first has left
    Add(other, p.server, EPOLLIN);
    if (waits.joinable()) waits.join();
    Check("the wait ends by time", n == 0);
    (void)!write(p.client, "x", 1);
    epoll_event got;
    Check("another set is not disturbed", epoll_wait(other, &got, 1, 2000) == 1);
    char c;
    (void)!read(p.server, &c, 1);
    close(other);
  }
}

// The first accelerated members of a set are added by several threads at once.
void AddAtOnce() {
  constexpr int kThreads = 4;
  std::vector<Pair> pairs(kThreads);
  int bad = 0;
  for (int round = 0; round < 200; round++) {
    int ep = epoll_create1(0);
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
      threads.emplace_back([&, i] {
        for (ready++; ready < kThreads;) {
        }
        Add(ep, pairs[static_cast<size_t>(i)].server, EPOLLIN);
      });
    }
    for (auto& t : threads) t.join();
    for (auto& p : pairs) (void)!write(p.client, "x", 1);
    epoll_event got[kThreads];
    int n = epoll_wait(ep, got, kThreads, 100);
    if (n != kThreads) bad++;
    char c;
    for (auto& p : pairs) (void)!read(p.server, &c, 1);
    close(ep);
  }
  if (bad != 0) printf("%d rounds of 200\n", bad);
  Check("each member reports", bad == 0);
}

// A set that was shared with a child, closed here before the child ended; then the next set.
void SetAfterChild() {
  Pair p;
  epoll_event got;
  for (bool child_closes : {false, true}) {
    int ep = epoll_create1(0);
    Add(ep, p.server, EPOLLIN);
    (void)epoll_wait(ep, &got, 1, 50);
    pid_t child = fork();
    if (child == 0) {
      if (child_closes) close(ep);
      SleepMs(child_closes ? 2000 : 200);
      _exit(0);
    }
    SleepMs(50);
    close(ep);
    if (!child_closes) waitpid(child, nullptr, 0);
    SleepMs(400);  // the dead child's references have been dropped
    int next = epoll_create1(0);
    Add(next, p.server, EPOLLIN);
    std::thread later([&] {
      SleepMs(200);
      (void)!write(p.client, "x", 1);
    });
    long before = NowMs();
    Check("the next set is woken", epoll_wait(next, &got, 1, 1500) == 1 && NowMs() - before < 1000);
    later.join();
    char c;
    (void)!read(p.server, &c, 1);
    close(next);
    if (child_closes) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  }
}

// poll() in a child whose parent slept in poll() in another thread when it forked, and is gone.
void PollAfterParent() {
  Pair p;
  std::thread([&] {
    pollfd one = {p.server, POLLIN, 0};
    (void)poll(&one, 1, 5000);
  }).detach();
  SleepMs(100);
  int done[2];
  if (pipe(done) != 0) return;
  pid_t middle = fork();
  if (middle == 0) {
    std::thread([&] {
      pollfd one = {p.server, POLLIN, 0};
      (void)poll(&one, 1, 5000);
    }).detach();
    SleepMs(100);
    if (fork() != 0) {
      SleepMs(100);
      _exit(0);
    }
    SleepMs(800);  // the parent has been reaped
    char result = 'y';
    for (int i = 0; i < 3; i++) {
      pollfd one = {p.server, POLLIN, 0};
      if (poll(&one, 1, 20) != 0) result = 'n';
    }
    (void)!write(done[1], &result, 1);
    _exit(0);
  }
  waitpid(middle, nullptr, 0);
  char c = 0;
  (void)!read(done[0], &c, 1);
  Check("poll in the child's child", c == 'y');
}

// A registration made under a number that is closed when the socket turns out to be the kernel's.
void FallBackAfterDup() {
  Pair p;
  Listener gone(-1);  // bound, nobody listens: refused
  int ep = epoll_create1(0);
  int s = socket(AF_INET, SOCK_STREAM, 0);
  Add(ep, s, EPOLLOUT);
  int d = dup(s);
  close(s);
  alarm(5);
  Check("connect is refused",
        connect(d, gone.Name(), sizeof gone.at) == -1 && errno == ECONNREFUSED);
  alarm(0);
  close(d);
  close(ep);
}

std::atomic<int> ran;
void Note(int) { ran++; }

// accept() goes on after a handler with SA_RESTART.
void AcceptRestarts() {
  Pair p;
  Listener l(5);
  struct sigaction act = {};
  act.sa_handler = Note;
  act.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &act, nullptr);
  std::thread later([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    SleepMs(500);
    int c = l.Dial();
    SleepMs(300);
    close(c);
  });
  ualarm(200000, 0);
  int fd = accept(l.fd, nullptr, nullptr);
  Check("accept with SA_RESTART goes on", fd >= 0 && ran == 1);
  close(fd);
  later.join();
  act.sa_flags = 0;
  sigaction(SIGALRM, &act, nullptr);
  ualarm(200000, 0);
  Check("accept without SA_RESTART: EINTR", accept(l.fd, nullptr, nullptr) == -1 && errno == EINTR);
  timeval tv = {2, 0};
  setsockopt(l.fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
  act.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &act, nullptr);
  ualarm(200000, 0);
  Check("accept with SO_RCVTIMEO: EINTR in spite of SA_RESTART",
        accept(l.fd, nullptr, nullptr) == -1 && errno == EINTR);
}

// Refusals and failed accepts leave the backlog's count as it was (with -o strict a fallback is an
// error).
void BacklogCount() {
  Pair p;
  {
    Listener l(2);
    int c = l.Dial();
    rlimit was, none;
    getrlimit(RLIMIT_NOFILE, &was);
    none = was;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    for (int i = 0; i < 5; i++)
      Check("accept: EMFILE", accept(l.fd, nullptr, nullptr) == -1 && errno == EMFILE);
    setrlimit(RLIMIT_NOFILE, &was);
    int s = accept(l.fd, nullptr, nullptr);
    Check("accept after EMFILE", s >= 0);
    int again = l.Dial();
    Check("connect after EMFILE", again >= 0);
    close(c), close(s), close(again);
  }
  for (int i = 0; i < 200; i++) {
    Listener l(0);
    int c = l.Dial();
    if (c < 0) {
      Check("connect after refusals", false);
      break;
    }
    close(l.fd);
    close(c);
    l.fd = -1;
  }
}

void Limits() {
  Pair p;
  int ep = epoll_create1(0);
  Check("EPOLLEXCLUSIVE with EPOLLONESHOT",
        Add(ep, p.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT) == -1 && errno == EINVAL);
  Check("EPOLLEXCLUSIVE with EPOLLRDHUP",
        Add(ep, p.server, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP) == -1 && errno == EINVAL);
  Check("EPOLLEXCLUSIVE", Add(ep, p.server, EPOLLIN | EPOLLEXCLUSIVE) == 0);
  Check("EPOLLEXCLUSIVE by MOD",
        Add(ep, p.server, EPOLLIN, EPOLL_CTL_MOD) == -1 && errno == EINVAL);
  close(ep);
  std::thread later([&] {
    SleepMs(200);
    (void)!write(p.client, "x", 1);
  });
  timespec longest = {LONG_MAX, 0};
  pollfd one = {p.server, POLLIN, 0};
  Check("ppoll with the longest time", ppoll(&one, 1, &longest, nullptr) == 1);
  later.join();
}

// A thread polls a number that is closed and used again; then another polls the socket that has it
// now.
void PollReusedNumber() {
  Pair a, b;
  int number = a.server;
  std::thread first([&] {
    pollfd p = {number, POLLIN, 0};
    (void)poll(&p, 1, 400);
  });
  SleepMs(100);
  int other = dup(number);  // keeps what the first thread polls
  dup2(b.server, number);
  long woken = 0;
  std::thread second([&] {
    pollfd p = {number, POLLIN, 0};
    long start = NowMs();
    if (poll(&p, 1, 3000) == 1) woken = NowMs() - start;
  });
  first.join();
  SleepMs(200);
  (void)!write(b.client, "x", 1);
  second.join();
  Check("the second poller is woken", woken != 0 && woken < 1500);
  close(other);
}

// One connection in very many sets.
void ManySets() {
  Pair p;
  int sets[150];
  epoll_event got;
  for (int& ep : sets) {
    ep = epoll_create1(0);
    Add(ep, p.server, EPOLLIN | EPOLLET);
    Check("nothing yet", epoll_wait(ep, &got, 1, 0) == 0);
  }
  (void)!write(p.client, "x", 1);
  int woken = 0;
  for (int ep : sets) woken += epoll_wait(ep, &got, 1, 20);
  Check("each set reports", woken == 150);
  for (int ep : sets) close(ep);
}

// A set that has two numbers before its first connection, made in any way: either is the set.
void SetOfTwoNumbers() {
  Pair p;
  using Copy = int (*)(int set, int free);
  const Copy copies[] = {
      [](int set, int) { return dup(set); },
      [](int set, int to) { return dup2(set, to); },
      [](int set, int to) { return dup3(set, to, O_CLOEXEC); },
      [](int set, int) { return fcntl(set, F_DUPFD, 3); },
      [](int set, int) { return fcntl(set, F_DUPFD_CLOEXEC, 200); },
      [](int set, int) { return static_cast<int>(syscall(SYS_dup, set)); },
      [](int set, int to) { return static_cast<int>(syscall(SYS_dup3, set, to, 0)); },
      [](int set, int) { return static_cast<int>(syscall(SYS_fcntl, set, F_DUPFD, 3)); },
  };
  for (const Copy copy : copies) {
    for (const bool by_copy : {false, true}) {
      const int set = epoll_create1(0), other = copy(set, 100);
      const int adds = by_copy ? other : set, waits = by_copy ? set : other;
      epoll_event got = {};
      Check("a set by either number", Add(adds, p.server, EPOLLIN) == 0);
      Check("nothing yet", epoll_wait(waits, &got, 1, 0) == 0);
      (void)!write(p.client, "x", 1);
      Check("an event by the other number",
            epoll_wait(waits, &got, 1, 1000) == 1 && got.data.fd == p.server);
      close(adds);
      Check("once more", epoll_wait(waits, &got, 1, 1000) == 1 && got.data.fd == p.server);
      char c;
      (void)!read(p.server, &c, 1);
      Check("it is over", epoll_wait(waits, &got, 1, 0) == 0);
      close(waits);
    }
  }
}

// A set that has been waited on before the two programs met, and then shares a connection with
// another.
void SetOlderThanLink() {
  Listener first(5);
  int old_set = epoll_create1(0);
  Add(old_set, first.fd, EPOLLIN);
  epoll_event got;
  Check("no client yet", epoll_wait(old_set, &got, 1, 0) == 0);
  Pair p;
  int new_set = epoll_create1(0);
  Add(new_set, p.server, EPOLLIN);
  Add(old_set, p.server, EPOLLIN);
  Check("nothing yet", epoll_wait(old_set, &got, 1, 0) == 0);
  (void)!write(p.client, "x", 1);
  Check("the older set reports",
        epoll_wait(old_set, &got, 1, 3000) == 1 && got.data.fd == p.server);
  Check("the newer set reports",
        epoll_wait(new_set, &got, 1, 3000) == 1 && got.data.fd == p.server);
  close(old_set);
  close(new_set);
}

// Two threads close a number at the same time: one of them does.
void CloseTwice() {
  int twice = 0;
  for (int round = 0; round < 500; round++) {
    Pair p;
    std::atomic<int> ready{0}, closed{0};
    auto end = [&] {
      for (ready++; ready < 2;) {
      }
      if (close(p.server) == 0) closed++;
    };
    std::thread one(end), two(end);
    one.join();
    two.join();
    if (closed != 1) twice++;
    p.server = -1;
  }
  if (twice != 0) printf("%d rounds of 500\n", twice);
  Check("closed once", twice == 0);
}

// A writer waits for room by other ways than EPOLLOUT and epoll_wait() on its set. What it asked
// the reader for when it met the full connection has been answered by then.
void RoomByOtherWays() {
  enum Way { kPollSet, kSetInSet, kPollNorm, kSetNorm, kSelect, kWays };
  for (int way = 0; way < kWays; way++) {
    Pair p;
    static char bytes[65536];
    size_t filled = 0;
    for (ssize_t n; (n = send(p.client, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
      filled += static_cast<size_t>(n);
    const size_t first = filled / 8 < sizeof bytes ? filled / 8 : sizeof bytes;
    Check("a part", recv(p.server, bytes, first, MSG_WAITALL) == static_cast<ssize_t>(first));
    const int set = epoll_create1(0), outer = epoll_create1(0);
    Add(set, p.client, way == kSetNorm ? EPOLLWRNORM : EPOLLOUT);
    Add(outer, set, EPOLLIN);
    std::thread reader([&] {
      static char got[65536];
      SleepMs(100);
      for (size_t left = filled - first; left != 0;) {
        const ssize_t n = recv(p.server, got, sizeof got, 0);
        if (n <= 0) break;
        left -= static_cast<size_t>(n);
      }
    });
    constexpr int kPatienceMs = 10000;  // at whose end a wait looks once more
    const long before = NowMs();
    epoll_event event = {};
    fd_set out;
    FD_ZERO(&out);
    FD_SET(p.client, &out);
    timeval patience = {kPatienceMs / 1000, 0};
    pollfd one = {way == kPollSet ? set : p.client,
                  static_cast<short>(way == kPollSet ? POLLIN : POLLWRNORM), 0};
    const int n = way == kSetInSet  ? epoll_wait(outer, &event, 1, kPatienceMs)
                  : way == kSetNorm ? epoll_wait(set, &event, 1, kPatienceMs)
                  : way == kSelect  ? select(p.client + 1, nullptr, &out, nullptr, &patience)
                                    : poll(&one, 1, kPatienceMs);
    const long took = NowMs() - before;
    if (n != 1 || took > kPatienceMs / 2) printf("way %d: %d, after %ld ms\n", way, n, took);
    Check("the reader makes room, and the writer hears of it", n == 1 && took <= kPatienceMs / 2);
    reader.join();
    close(set);
    close(outer);
  }
}

struct Named {
  const char* name;
  void (*run)();
};
const Named kAll[] = {
    {"poll_beside_backlog", PollBesideBacklog},
    {"paused_listener", PausedListener},
    {"add_then_listen", AddThenListen},
    {"two_sleepers_level", TwoSleepersLevel},
    {"two_sleepers_oneshot", TwoSleepersOneshot},
    {"sleeper_and_looker", SleeperAndLooker},
    {"close_under_wait", CloseUnderWait},
    {"add_at_once", AddAtOnce},
    {"set_after_child", SetAfterChild},
    {"poll_after_parent", PollAfterParent},
    {"fall_back_after_dup", FallBackAfterDup},
    {"accept_restarts", AcceptRestarts},
    {"backlog_count", BacklogCount},
    {"limits", Limits},
    {"many_sets", ManySets},
    {"set_of_two_numbers", SetOfTwoNumbers},
    {"set_older_than_link", SetOlderThanLink},
    {"close_twice", CloseTwice},
    {"poll_reused_number", PollReusedNumber},
    {"room_by_other_ways", RoomByOtherWays},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Named& n : kAll) {
    if (argc < 2) {
      puts(n.name);
    } else if (strcmp(argv[1], n.name) == 0) {
      n.run();
      printf("%s\n", failures == 0 ? "as it should be" : "failed");
      return failures == 0 ? 0 : 1;
    }
  }
  return argc < 2 ? 0 : 2;
}
