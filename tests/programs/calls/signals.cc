// SPDX-License-Identifier: Apache-2.0
// signals.cc - handlers among socket calls: what interrupts a wait, and handlers that write
// themselves.
//
// One process is both ends. Prints a line per check that is not as on the kernel; exit code 1 then.
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

int failures;
void Check(const char* what, bool good) {
  if (good) return;
  printf("wrong: %s (errno %d)\n", what, errno);
  failures++;
}

int client = -1, server = -1;
volatile sig_atomic_t ran;
volatile pid_t sender;
sigjmp_buf out;

void Connect() {
  int l = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t len = sizeof a;
  if (bind(l, reinterpret_cast<sockaddr*>(&a), len) != 0 || listen(l, 5) != 0) perror("listen");
  getsockname(l, reinterpret_cast<sockaddr*>(&a), &len);
  client = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(client, reinterpret_cast<sockaddr*>(&a), len) != 0) perror("connect");
  server = accept(l, nullptr, nullptr);
  close(l);
}

void Note(int) { ran = ran + 1; }
// The second signal sends what ends the wait that SA_RESTART continued.
void NoteAndFeed(int) {
  ran = ran + 1;
  if (ran == 2 && write(client, "x", 1) != 1) _exit(3);
}
void Details(int, siginfo_t* info, void*) {
  ran = ran + 1;
  sender = info->si_pid;
}
void Jump(int) { siglongjmp(out, 1); }

void Install(void (*handler)(int), int flags, int signo = SIGALRM) {
  struct sigaction act = {};
  act.sa_handler = handler;
  act.sa_flags = flags;
  sigaction(signo, &act, nullptr);
  ran = 0;
}
// First after `usec`, then each 20 ms; 0 stops it.
void Timer(long usec) {
  itimerval t = {{0, usec != 0 ? 20000 : 0}, {0, usec}};
  setitimer(ITIMER_REAL, &t, nullptr);
}

void Waits(long usec) {
  char c;
  Install(Note, 0);
  Timer(usec);
  ssize_t r = recv(server, &c, 1, 0);
  Timer(0);
  Check("recv without SA_RESTART: EINTR", r == -1 && errno == EINTR && ran >= 1);
  Install(NoteAndFeed, SA_RESTART);
  Timer(usec);
  r = recv(server, &c, 1, 0);
  Timer(0);
  Check("recv with SA_RESTART goes on", r == 1 && ran >= 2);
  while (recv(server, &c, 1, MSG_DONTWAIT) == 1) {
  }
  Install(Note, SA_RESTART);
  pollfd p = {server, POLLIN, 0};
  Timer(usec);
  Check("poll: EINTR in spite of SA_RESTART", poll(&p, 1, 5000) == -1 && errno == EINTR);
  Timer(0);
  int ep = epoll_create1(0);
  epoll_event ev = {EPOLLIN, {}}, got;
  epoll_ctl(ep, EPOLL_CTL_ADD, server, &ev);
  Timer(usec);
  Check("epoll_wait: EINTR in spite of SA_RESTART",
        epoll_wait(ep, &got, 1, 5000) == -1 && errno == EINTR);
  Timer(0);
  close(ep);
  Install(Jump, 0);
  if (sigsetjmp(out, 1) == 0) {
    Timer(usec);
    (void)!recv(server, &c, 1, 0);
    Check("siglongjmp out of recv", false);
  }
  Timer(0);
  Check("after siglongjmp: send", send(client, "y", 1, 0) == 1);
  Check("after siglongjmp: recv", recv(server, &c, 1, 0) == 1 && c == 'y');
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // siginterrupt
void Flags() {
  struct sigaction old, act = {};
  Install(Note, SA_RESTART, SIGUSR1);
  sigaction(SIGUSR1, nullptr, &old);
  Check("sigaction tells what was set",
        old.sa_handler == Note && (old.sa_flags & ~0x04000000) == SA_RESTART);
  act.sa_sigaction = Details;
  act.sa_flags = SA_SIGINFO | static_cast<int>(SA_RESETHAND);
  sigaddset(&act.sa_mask, SIGUSR2);
  sigaction(SIGUSR1, &act, &old);
  Check("sigaction tells the one before",
        old.sa_handler == Note && sigismember(&old.sa_mask, SIGUSR2) == 0);
  kill(getpid(), SIGUSR1);
  Check("SA_SIGINFO: who sent it", ran == 1 && sender == getpid());
  sigaction(SIGUSR1, nullptr, &old);
  Check("SA_RESETHAND: default afterwards", old.sa_handler == SIG_DFL);
  Check("signal() returns the one before",
        signal(SIGUSR1, Note) == SIG_DFL && signal(SIGUSR1, SIG_IGN) == Note);
  Check("signal(SIGKILL): EINVAL", signal(SIGKILL, Note) == SIG_ERR && errno == EINVAL);
  signal(SIGUSR1, Note);
  siginterrupt(SIGUSR1, 1);
  sigaction(SIGUSR1, nullptr, &old);
  Check("siginterrupt", old.sa_handler == Note && (old.sa_flags & SA_RESTART) == 0);
  siginterrupt(SIGUSR1, 0);
}

#pragma GCC diagnostic pop

// ---- a storm: the handler writes to the socket that the thread is writing to
std::atomic<long> sent_in_handler;
std::atomic<bool> storm;
volatile sig_atomic_t own;
pthread_t target;

void Write(int) {
  if (send(client, "h", 1, MSG_DONTWAIT) == 1) sent_in_handler++;
}
void WriteInfo(int, siginfo_t* info, void*) {
  if (info->si_pid == getpid()) own = own + 1;
  Write(0);
}
void* Rain(void*) {
  while (storm) {
    pthread_kill(target, SIGUSR1);
    pthread_kill(target, SIGUSR2);
  }
  return nullptr;
}
void* Drain(void* count) {
  char buf[4096];
  for (ssize_t n; (n = recv(server, buf, sizeof buf, 0)) > 0;) *static_cast<long*>(count) += n;
  return nullptr;
}

void Storm(int seconds) {
  struct sigaction act = {};
  act.sa_sigaction = WriteInfo;
  act.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(SIGUSR1, &act, nullptr);
  Install(Write, SA_RESTART, SIGUSR2);
  target = pthread_self();
  storm = true;
  long sent = 0, received = 0;
  pthread_t rain, drain;
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGUSR1);
  sigaddset(&block, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &block, &before);
  pthread_create(&rain, nullptr, Rain, nullptr);
  pthread_create(&drain, nullptr, Drain, &received);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (time_t end = time(nullptr) + seconds; time(nullptr) < end;) {
    for (int i = 0; i < 100; i++) {
      ssize_t n = send(client, "0123456789", 10, 0);
      if (n > 0) sent += n;
      pollfd p = {client, POLLOUT, 0};
      poll(&p, 1, 0);
    }
  }
  storm = false;
  pthread_join(rain, nullptr);
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  Check("the mask is as before",
        sigismember(&now, SIGUSR1) == 0 && sigismember(&now, SIGTERM) == 0);
  shutdown(client, SHUT_WR);
  pthread_join(drain, nullptr);
  Check("storm: every byte arrives", received == sent + sent_in_handler);
  Check("storm: handlers wrote", sent_in_handler > 0 && own > 0);
  printf("storm: %ld bytes, %ld of them from handlers\n", received, sent_in_handler.load());
}

// ---- new images: their mask is their maker's, whatever comes while they are made

int ImageOfMask() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  for (int signo = 1; signo < 32; signo++) {
    if (sigismember(&now, signo) != 0) return signo;
  }
  return 0;
}

std::atomic<pid_t> fired_at;  // 0: nobody
void* Fire(void*) {
  for (pid_t pid; (pid = fired_at) >= 0; usleep(5)) {
    if (pid != 0) kill(pid, SIGWINCH);  // which an image ignores until it has a handler
  }
  return nullptr;
}

int EndOf(pid_t child) {
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void NewImages(const char* self, int rounds) {
  struct sigaction note = {};
  note.sa_handler = Note;
  note.sa_flags = SA_RESTART;
  sigaction(SIGWINCH, &note, nullptr);
  fired_at = 0;
  pthread_t fire;
  pthread_create(&fire, nullptr, Fire, nullptr);
  char text[2][8] = {"image", "mask"};
  char* argv[] = {const_cast<char*>(self), text[0], text[1], nullptr};
  int bad_exec = 0, bad_spawn = 0;
  for (int i = 0; i < rounds; i++) {
    pid_t child = fork();
    if (child == 0) {
      execv(self, argv);
      _exit(127);
    }
    fired_at = child;
    bad_exec += EndOf(child) != 0;
    fired_at = getpid();
    if (posix_spawn(&child, self, nullptr, nullptr, argv, environ) != 0) child = -1;
    fired_at = 0;
    bad_spawn += child < 0 || EndOf(child) != 0;
  }
  fired_at = -1;
  pthread_join(fire, nullptr);
  if (bad_exec + bad_spawn != 0) printf("bad: %d by exec, %d by spawn\n", bad_exec, bad_spawn);
  Check("an image by exec() blocks what its maker has blocked", bad_exec == 0);
  Check("an image by posix_spawn() blocks what its maker has blocked", bad_spawn == 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "image") == 0) return ImageOfMask();
  Connect();
  Flags();
  Waits(200);     // while it spins
  Waits(100000);  // while it sleeps
  Storm(argc > 1 ? atoi(argv[1]) : 2);
  NewImages(argv[0], 60);
  printf("%s\n", failures == 0 ? "all as it should be" : "failed");
  return failures == 0 ? 0 : 1;
}
