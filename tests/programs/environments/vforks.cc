// vforks.cc - children of vfork(): vforks plain | serve PORT | connect PORT
// SPDX-License-Identifier: Apache-2.0
//
// The parent waits, memory is shared, descriptors and handlers are not. `plain` has no sockets. The
// server answers each connection in another way; the client checks what comes back.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <thread>

namespace {

// Written by children, so the compiler may not know what is in it.
std::atomic<int> from_child, handled;

void Check(bool ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "vforks: %s (%s)\n", what, strerror(errno));
  _exit(1);
}

void Ended(pid_t child, int code) {
  int status = -1;
  Check(waitpid(child, &status, 0) == child, "waitpid");
  Check(WIFEXITED(status) && WEXITSTATUS(status) == code, "the child's exit code");
}

void OnUsr1(int) { handled++; }

// The idiom of csh and its kin: the child says in a variable why its exec has failed.
void ChildTells() {
  from_child = 0;
  const pid_t child = vfork();
  if (child == 0) {
    usleep(20000);  // the parent does not go on meanwhile
    execl("/no/such/program", "program", nullptr);
    from_child = errno;
    _exit(3);
  }
  Check(child > 0, "vfork");
  Check(from_child == ENOENT, "the parent did not wait, or does not see the child's memory");
  Ended(child, 3);
}

void ChildHasHandlersOfItsOwn() {
  struct sigaction act = {};
  act.sa_handler = OnUsr1;
  Check(sigaction(SIGUSR1, &act, nullptr) == 0, "sigaction");
  handled = 0;
  const pid_t child = vfork();
  if (child == 0) {
    struct sigaction none = {}, was = {};
    none.sa_handler = SIG_DFL;
    sigaction(SIGUSR1, &none, &was);
    _exit(was.sa_handler == OnUsr1 ? 0 : 4);
  }
  Check(child > 0, "vfork");
  raise(SIGUSR1);
  Check(handled == 1, "the child has changed its parent's handler");
  Ended(child, 0);
}

void ChildRuns() {
  const pid_t child = vfork();
  if (child == 0) {
    execlp("true", "true", nullptr);
    _exit(5);
  }
  Check(child > 0, "vfork");
  Ended(child, 0);
}

void Plain() {
  for (int i = 0; i < 3; i++) {
    ChildTells();
    ChildHasHandlersOfItsOwn();
    ChildRuns();
  }
  puts("as on Linux");
}

// ---------------------------------------------------------------- with connections

sockaddr_in Local(uint16_t port) {
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  return a;
}

void Echo(int fd) {
  char text[64];
  for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
    Check(write(fd, text, static_cast<size_t>(n)) == n, "write");
}

// What the child does to its numbers is nothing to the parent.
void EchoBesideChild(int fd) {
  const pid_t child = vfork();
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, fd);
    close(null);
    for (int n = 3; n < 100; n++) close(n);
    from_child = 7;
    _exit(0);
  }
  Check(child > 0 && from_child == 7, "vfork");
  Ended(child, 0);
  Echo(fd);
}

// `cat` has the connection as its input and output; the first image does not come.
void EchoByImage(int fd) {
  const pid_t child = vfork();
  if (child == 0) {
    dup2(fd, 0);
    dup2(fd, 1);
    close(fd);
    execl("/no/such/program", "program", nullptr);
    execlp("cat", "cat", nullptr);
    _exit(127);
  }
  Check(child > 0, "vfork");
  close(fd);
  Ended(child, 0);
}

// The same for a program that is linked statically, and reads and writes as the kernel lets it.
void EchoByStatic(int fd, const char* program) {
  const pid_t child = vfork();
  if (child == 0) {
    dup2(fd, 0);
    dup2(fd, 1);
    close(fd);
    execl(program, program, "cat", nullptr);
    _exit(127);
  }
  Check(child > 0, "vfork");
  close(fd);
  Ended(child, 0);
}

// Other threads open, use and close connections while children come and go.
void EchoBesideMany(int fd) {
  std::atomic<bool> over = false;
  std::thread runner([&] {
    while (!over) ChildRuns();
  });
  Echo(fd);
  over = true;
  runner.join();
}

void EchoBySet(int set, int fd) {
  char text[64];
  for (;;) {
    epoll_event event = {};
    Check(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
    const ssize_t n = recv(fd, text, sizeof text, MSG_DONTWAIT);
    if (n == 0) return;
    Check(n > 0 && write(fd, text, static_cast<size_t>(n)) == n, "write");
  }
}

// Whether the program sees no number but its own, which are low.
bool SeesItsOwn() {
  constexpr int kLow = 64, kMost = 65536;
  for (int fd = kLow; fd < kMost; fd++) {
    if (fcntl(fd, F_GETFD) >= 0) return false;
  }
  return true;
}

// A child makes the connection the kernel's, since its next image has no library, while another
// thread waits for it by a set whose number is a pipe in the child: it came after vfork(). So have
// the library's own numbers for that wait.
void EchoBesideHolder(int fd, const char* program) {
  int number[2], go[2];
  Check(pipe2(number, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0, "pipe2");
  Check(fcntl(fd, F_SETFD, 0) == 0, "F_SETFD");
  std::atomic<int> step = 0;
  std::thread echoes([&] {
    while (step < 1) usleep(100);
    const int set = epoll_create1(EPOLL_CLOEXEC);
    Check(dup3(set, number[0], O_CLOEXEC) == number[0], "dup3");
    close(set);
    epoll_event event = {};
    event.events = EPOLLIN;
    Check(epoll_ctl(number[0], EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    Check(epoll_wait(number[0], &event, 1, 1) >= 0, "epoll_wait");
    step = 2;
    while (step < 3) usleep(100);
    EchoBySet(number[0], fd);
  });
  const pid_t child = vfork();
  if (child == 0) {
    step = 1;
    while (step < 2) usleep(100);
    dup2(go[0], 0);
    execl(program, program, "hold", nullptr);
    _exit(127);
  }
  Check(child > 0, "vfork");
  Check(SeesItsOwn(), "a number that is not the program's");
  step = 3;  // the next image is there
  echoes.join();
  close(go[1]);
  Ended(child, 0);
  for (int one : {number[0], number[1], go[0]}) close(one);
}

constexpr int kWays = 6;

void Serve(uint16_t port, const char* static_cat) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in a = Local(port);
  Check(bind(listener, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0 &&
            listen(listener, 16) == 0,
        "listen");
  for (int way = 0; way < kWays; way++) {
    const int fd = accept(listener, nullptr, nullptr);
    Check(fd >= 0, "accept");
    ChildTells();
    ChildHasHandlersOfItsOwn();
    if (way == 0) Echo(fd);
    if (way == 1) EchoBesideChild(fd);
    if (way == 2) EchoByImage(fd);
    if (way == 3) EchoByStatic(fd, static_cast<const char*>(static_cat));
    if (way == 4) EchoBesideMany(fd);
    if (way == 5) EchoBesideHolder(fd, static_cat);
    close(fd);
  }
  puts("as on Linux");
}

// To be looked at; the harness says when to go on.
void Hold() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  puts("holding");
  fflush(stdout);
  int got = 0;
  sigwait(&set, &got);
}

void Connect(uint16_t port) {
  for (int way = 0; way < kWays; way++) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in a = Local(port);
    Check(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0, "connect");
    for (int round = 0; round < 20; round++) {
      char text[16], back[16] = {};
      const int n = snprintf(text, sizeof text, "%d.%d", way, round);
      Check(write(fd, text, static_cast<size_t>(n)) == n, "write");
      Check(recv(fd, back, static_cast<size_t>(n), MSG_WAITALL) == n && strcmp(text, back) == 0,
            "other bytes came back");
    }
    if (way == 0) Hold();
    shutdown(fd, SHUT_WR);
    char end;
    Check(read(fd, &end, 1) == 0, "no end");
    close(fd);
  }
  puts("each byte right");
}

void StaticHold() {
  char end;
  Check(read(0, &end, 1) == 0, "read");
}

void StaticCat() {
  Echo(0);
  // Its output is the same socket.
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc == 2 && strcmp(argv[1], "plain") == 0) return Plain(), 0;
  if (argc == 2 && strcmp(argv[1], "cat") == 0) return StaticCat(), 0;
  if (argc == 2 && strcmp(argv[1], "hold") == 0) return StaticHold(), 0;
  if (argc == 4 && strcmp(argv[1], "serve") == 0)
    return Serve(static_cast<uint16_t>(atoi(argv[2])), argv[3]), 0;
  if (argc == 3 && strcmp(argv[1], "connect") == 0)
    return Connect(static_cast<uint16_t>(atoi(argv[2]))), 0;
  return 2;
}
