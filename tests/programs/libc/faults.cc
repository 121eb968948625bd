// faults.cc - programs with handlers of their own for SIGSEGV and SIGBUS, and sockets.
// SPDX-License-Identifier: Apache-2.0
//
// `faults CASE` makes a connection to itself, then faults on purpose. It says what came of it; some
// cases end by the signal.

#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr size_t kPage = 4096;
sigjmp_buf back;
int client, served;
char* hole;  // a page that is there, and one that is not
volatile sig_atomic_t handled;
void* volatile seen_at;
volatile int seen_code;
volatile bool on_own_stack, has_mask;
char own_stack[65536];

void Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t len = sizeof name;
  auto* sa = reinterpret_cast<sockaddr*>(&name);
  client = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, sa, len) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, sa, &len) != 0 || connect(client, sa, len) != 0 ||
      (served = accept(listener, nullptr, nullptr)) < 0)
    exit(3);
  auto* at = static_cast<char*>(
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(at + kPage, kPage, PROT_NONE);
  hole = at + kPage;
}

void Handle(int, siginfo_t* info, void*) {
  char here;
  handled = handled + 1;
  seen_at = info->si_addr;
  seen_code = info->si_code;
  on_own_stack = &here >= own_stack && &here < own_stack + sizeof own_stack;
  sigset_t now;
  sigprocmask(SIG_BLOCK, nullptr, &now);
  has_mask = sigismember(&now, SIGUSR1) == 1;
  if (info->si_code > 0) siglongjmp(back, 1);
}
void Plain(int signo) { dprintf(1, "plain %d\n", signo), _exit(0); }

void Install(int flags, int signo = SIGSEGV) {
  struct sigaction act {};
  act.sa_sigaction = Handle;
  act.sa_flags = SA_SIGINFO | flags;
  sigaddset(&act.sa_mask, SIGUSR1);
  if (sigaction(signo, &act, nullptr) != 0) exit(4);
}

void Fault() { *static_cast<volatile char*>(hole) = 1; }
void FaultCaught() {
  if (sigsetjmp(back, 1) == 0) Fault();
  printf("handled %d where %s mask %d stack %d\n", static_cast<int>(handled),
         seen_at == hole ? "it was" : "else", has_mask, on_own_stack);
}

// What the kernel says of bad memory in calls on a connection.
void Calls() {
  const auto say = [](const char* what, long r) {
    printf("%s %ld %s\n", what, r, r < 0 ? strerrorname_np(errno) : "");
  };
  say("send", send(client, hole - 5, 10, MSG_NOSIGNAL));
  say("large", send(client, hole - 2000, 4000, MSG_NOSIGNAL));
  say("good", send(client, hole - 5, 5, MSG_NOSIGNAL));
  say("recv", recv(served, hole - 2, 5, 0));
  say("again", recv(served, hole - 5, 5, 0));
  fflush(stdout);
}

// A page of a file that has become shorter: SIGBUS.
void Bus() {
  const int file = memfd_create("faults", 0);
  if (file < 0 || ftruncate(file, kPage) != 0) exit(5);
  void* at = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, 0);
  if (ftruncate(file, 0) != 0) exit(5);
  const long r = send(client, at, 10, MSG_NOSIGNAL);
  printf("bus %ld %s\n", r, r < 0 ? strerrorname_np(errno) : "");
  Install(0, SIGBUS);
  if (sigsetjmp(back, 1) == 0) (void)*static_cast<volatile char*>(at);
  printf("handled %d\n", static_cast<int>(handled));
}

void ReadBack() {
  struct sigaction act {};
  sigaction(SIGSEGV, nullptr, &act);
  printf("default %d flags %x\n", act.sa_handler == SIG_DFL, static_cast<unsigned>(act.sa_flags));
  Install(SA_ONSTACK | SA_NODEFER);
  sigaction(SIGSEGV, nullptr, &act);
  printf("own %d flags %x mask %d\n", act.sa_sigaction == Handle,
         static_cast<unsigned>(act.sa_flags), sigismember(&act.sa_mask, SIGUSR1));
  printf("was own %d\n",
         reinterpret_cast<void*>(signal(SIGSEGV, Plain)) == reinterpret_cast<void*>(Handle));
  printf("was plain %d\n", signal(SIGSEGV, SIG_IGN) == Plain);
  printf("was ignored %d\n", signal(SIGSEGV, SIG_DFL) == SIG_IGN);
  sigaction(SIGSEGV, nullptr, &act);
  printf("default %d flags %x\n", act.sa_handler == SIG_DFL, static_cast<unsigned>(act.sa_flags));
}

// A child of vfork() has its parent's memory, and handlers and images of its own.
void InVforked() {
  Install(0);
  const pid_t child = vfork();
  if (child == 0) {
    char name[] = "true";
    char* words[] = {name, nullptr};
    const auto refused = [](long r) { return r == -1 && errno == EFAULT; };
    struct sigaction none {
    }, was{};
    const bool same = refused(send(client, hole - 5, 10, MSG_NOSIGNAL)) &&
                      refused(execve(hole, words, environ)) &&
                      refused(execve("/bin/true", words, reinterpret_cast<char**>(hole))) &&
                      sigaction(SIGSEGV, &none, &was) == 0 && was.sa_sigaction == Handle;
    if (same) Fault();
    _exit(4);
  }
  int status = 0;
  waitpid(child, &status, 0);
  printf("child ended by %d\n", WTERMSIG(status));
  FaultCaught();
  Calls();
}

int Overflow(int depth) {
  volatile char room[4096] = {};
  return depth < 0 ? room[0] : Overflow(depth + 1) + room[depth % 4096];
}

void Run(const char* which) {
  const auto is = [which](const char* name) { return strcmp(which, name) == 0; };
  if (is("calls")) Calls();
  if (is("calls_handler")) Install(0), Calls(), FaultCaught(), Calls();
  if (is("caught")) Install(0), FaultCaught(), FaultCaught();
  if (is("stack")) {
    const stack_t own = {own_stack, 0, sizeof own_stack};
    sigaltstack(&own, nullptr);
    Install(SA_ONSTACK);
    FaultCaught();
    if (sigsetjmp(back, 1) == 0) printf("%d\n", Overflow(0));
    printf("overflow handled %d stack %d\n", static_cast<int>(handled), on_own_stack);
    Calls();
  }
  if (is("once")) Install(static_cast<int>(SA_RESETHAND)), FaultCaught(), fflush(stdout), Fault();
  if (is("default")) Fault();
  if (is("overflow")) printf("%d\n", Overflow(0));
  if (is("sent"))
    Install(0), kill(getpid(), SIGSEGV), printf("code %d\n", seen_code), FaultCaught();
  if (is("sent_default")) kill(getpid(), SIGSEGV);
  if (is("raised_default")) raise(SIGBUS);
  if (is("plain")) signal(SIGSEGV, Plain), Fault();
  if (is("readback")) ReadBack();
  if (is("bus")) Bus();
  if (is("vfork")) InVforked();
  if (is("child")) {
    const pid_t child = fork();
    if (child == 0) Calls(), Fault();
    int status = 0;
    waitpid(child, &status, 0);
    printf("child ended by %d\n", WTERMSIG(status));
  }
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const rlimit none{};
  setrlimit(RLIMIT_CORE, &none);
  const bool before = argc > 2;  // the handler is there before the first socket
  if (before) Install(0);
  Connect();
  if (before) {
    Calls();
    FaultCaught();
    return 0;
  }
  Run(argv[1]);
  return 0;
}
