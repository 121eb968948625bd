// SPDX-License-Identifier: Apache-2.0
// connect_waits.cc - what ends a connect() that blocks, and what other threads may do meanwhile.
//
// usage: connect_waits ADDRESS PORT [CASE...], where nobody answers. A line for each case: the
// kernel's sockets and postern's have to say the same (wire_test.py, container_test.py). A time
// counts only as "at once" (less than a second) or "late", so a busy machine says the same as an
// idle one.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

sockaddr_in silent = {};
std::atomic<long> handled_ms{0};  // when the handler ran; 0: it has not
std::atomic<int> in_handler{0};   // what the handler's own call has said
int handler_fd = -1;

long NowMs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<long>(t.tv_sec * 1000 + t.tv_nsec / 1000000);
}
const char* Within(long since_ms, long until_ms) {
  return until_ms != 0 && until_ms - since_ms < 1000 ? "at once" : "late";
}

int Connect(int fd) {
  return connect(fd, reinterpret_cast<const sockaddr*>(&silent), sizeof silent) == 0 ? 0 : errno;
}
int NewSocket(long timeout_ms = 0) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval tv = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
  if (timeout_ms != 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  return fd;
}
void SetNonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

void OnSignal(int) {
  handled_ms = NowMs();
  if (handler_fd < 0) return;
  const int saved = errno;
  in_handler = Connect(handler_fd);
  errno = saved;
}
void Install(int signo, int flags) {
  struct sigaction act = {};
  act.sa_handler = OnSignal;
  act.sa_flags = flags;
  sigaction(signo, &act, nullptr);
}
void Arm(long ms) {
  const itimerval t = {{0, 0}, {ms / 1000, ms % 1000 * 1000}};
  handled_ms = 0;
  setitimer(ITIMER_REAL, &t, nullptr);
}

// A thread that blocks in connect().
struct Blocked {
  int fd;
  int error = -1;
  std::atomic<long> ended_ms{0};
  int cancel_type = PTHREAD_CANCEL_DEFERRED;
  std::atomic<bool> begins{false};
  pthread_t thread = {};

  explicit Blocked(int socket) : fd(socket) {}
  void Start() {
    pthread_create(
        &thread, nullptr,
        [](void* self) -> void* {
          auto& b = *static_cast<Blocked*>(self);
          pthread_setcanceltype(b.cancel_type, nullptr);
          b.begins = true;
          b.error = Connect(b.fd);
          b.ended_ms = NowMs();
          return nullptr;
        },
        this);
    while (!begins) usleep(1000);
    // In the call, as far as another thread can tell: its socket is not writable any more. It is
    // while a peer on the same host is looked for (negotiate.cc).
    pollfd p = {fd, POLLOUT, 0};
    for (int i = 0; i < 100 && ended_ms == 0 && poll(&p, 1, 0) != 0; i++) usleep(1000);
  }
  // EINTR, by a handler without SA_RESTART.
  void Interrupt() const { pthread_kill(thread, SIGUSR1); }
  void* Join() const {
    void* value = nullptr;
    pthread_join(thread, &value);
    return value;
  }
};

void Alarm(const char* name, int flags, long timeout_ms) {
  const int fd = NewSocket(timeout_ms);
  Install(SIGALRM, flags);
  const long began = NowMs();
  Arm(100);
  const int error = Connect(fd);
  printf("%s: errno %d, handler %s, return %s\n", name, error, Within(began, handled_ms),
         Within(began, NowMs()));
  SetNonblocking(fd);
  printf("%s: again errno %d\n", name, Connect(fd));
  close(fd);
}

void AlarmThatRestarts() {
  Blocked b(NewSocket());
  Install(SIGALRM, SA_RESTART);
  b.Start();
  handled_ms = 0;
  const long began = NowMs();
  pthread_kill(b.thread, SIGALRM);
  while (handled_ms == 0 && NowMs() - began < 5000) usleep(1000);
  printf("restart: handler %s\n", Within(began, handled_ms));
  usleep(200000);
  printf("restart: goes on: %s\n", b.ended_ms == 0 ? "yes" : "no");
  b.Interrupt();
  b.Join();
  printf("restart: errno %d\n", b.error);
  close(b.fd);
}

void Timeouts() {
  const int fd = NewSocket(300);
  const int first = Connect(fd);
  printf("timeout: errno %d, again %d\n", first, Connect(fd));
  close(fd);
}

// connect() by a handler, on the socket whose connect() it has interrupted.
void FromTheHandler() {
  Install(SIGALRM, 0);
  const int fd = NewSocket();
  handler_fd = dup(fd);
  const timeval tv = {0, 100000};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  const timeval none = {};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
  Blocked b(fd);
  b.Start();
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  const long began = NowMs();
  in_handler = -1;
  pthread_kill(b.thread, SIGALRM);
  b.Join();
  printf("handler: its connect() says %d, the call %d, %s\n", in_handler.load(), b.error,
         Within(began, b.ended_ms));
  close(handler_fd);
  handler_fd = -1;
  close(fd);
}

// A handler that does not return: the socket is as usable as any whose connect() is under way.
sigjmp_buf out;
void JumpOut() {
  const int fd = NewSocket();
  struct sigaction act = {};
  act.sa_handler = [](int) { siglongjmp(out, 1); };
  sigaction(SIGALRM, &act, nullptr);
  const volatile long began = NowMs();
  if (sigsetjmp(out, 1) == 0) {
    Arm(100);
    printf("jump: returned %d\n", Connect(fd));
  }
  SetNonblocking(fd);
  const int again = Connect(fd);
  printf("jump: %s, again errno %d, close() %d\n", Within(began, NowMs()), again, close(fd));
}

// What others do with the socket meanwhile does not wait for the call.
void OtherThreads() {
  Blocked b(NewSocket());
  b.Start();
  const long began = NowMs();
  sockaddr_in name = {};
  socklen_t len = sizeof name;
  const int named = getsockname(b.fd, reinterpret_cast<sockaddr*>(&name), &len);
  printf("others: getsockname %d, port %s\n", named, name.sin_port != 0 ? "yes" : "no");
  int error = -1;
  len = sizeof error;
  getsockopt(b.fd, SOL_SOCKET, SO_ERROR, &error, &len);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  printf("others: SO_ERROR %d, bind errno %d, ", error,
         bind(b.fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 ? 0 : errno);
  printf("listen errno %d, ", listen(b.fd, 5) == 0 ? 0 : errno);
  const timeval tv = {0, 200000};
  setsockopt(b.fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  printf("connect errno %d", Connect(b.fd));
  printf(", %s\n", Within(began, NowMs()));
  b.Interrupt();
  b.Join();
  printf("others: the call errno %d\n", b.error);
  close(b.fd);
}

// close() by another thread takes the number; the call goes on.
void ClosedByAnother() {
  Blocked b(NewSocket());
  b.Start();
  const long began = NowMs();
  const int r = close(b.fd);
  printf("close: %d %s, ", r, Within(began, NowMs()));
  usleep(100000);
  printf("goes on: %s, ", b.ended_ms == 0 ? "yes" : "no");
  b.Interrupt();
  b.Join();
  printf("errno %d\n", b.error);
}

// shutdown() by another thread ends the attempt; so does connect() to AF_UNSPEC (`how` -1).
void ShutByAnother(const char* name, int how) {
  Blocked b(NewSocket());
  b.Start();
  const long began = NowMs();
  const sockaddr none = {AF_UNSPEC, {}};
  const int r =
      (how < 0 ? connect(b.fd, &none, sizeof none) : shutdown(b.fd, how)) == 0 ? 0 : errno;
  while (b.ended_ms == 0 && NowMs() - began < 500) usleep(1000);
  printf("%s: errno %d, the call %s", name, r, b.ended_ms != 0 ? "ends" : "goes on");
  if (b.ended_ms == 0) b.Interrupt();
  b.Join();
  // Linux 6.8 and later say EPIPE to a connect() that another thread's connect() has ended.
  printf(", errno %d\n", how < 0 && b.error == EPIPE ? ECONNRESET : b.error);
  close(b.fd);
}

void Cancelled(const char* name, int type) {
  Blocked b(NewSocket());
  b.cancel_type = type;
  b.Start();
  const long began = NowMs();
  pthread_cancel(b.thread);
  const bool cancelled = b.Join() == PTHREAD_CANCELED;
  printf("%s: %s, %s", name, cancelled ? "cancelled" : "not cancelled", Within(began, NowMs()));
  SetNonblocking(b.fd);
  const int then = Connect(b.fd);
  printf(", then connect() errno %d, close() %d\n", then, close(b.fd));
}

// The signal's default: it ends the process, whatever that is doing.
void Killed() {
  int ready[2];
  if (pipe(ready) != 0) return;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    Blocked b(NewSocket());
    b.Start();
    (void)!write(ready[1], "!", 1);
    b.Join();
    _exit(0);
  }
  char byte;
  (void)!read(ready[0], &byte, 1);
  const long began = NowMs();
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  printf("SIGINT: signal %d, %s\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0,
         Within(began, NowMs()));
  close(ready[0]);
  close(ready[1]);
}

struct Case {
  const char* name;
  void (*run)();
};
const Case kCases[] = {
    {"alarm", [] { Alarm("alarm", 0, 0); }},
    {"restart", AlarmThatRestarts},
    {"timed", [] { Alarm("alarm and a timeout", SA_RESTART, 3000); }},
    {"timeout", Timeouts},
    {"handler", FromTheHandler},
    {"jump", JumpOut},
    {"others", OtherThreads},
    {"close", ClosedByAnother},
    {"shut", [] { ShutByAnother("shut", SHUT_RDWR); }},
    {"shut_reading", [] { ShutByAnother("shut reading", SHUT_RD); }},
    {"shut_writing", [] { ShutByAnother("shut writing", SHUT_WR); }},
    {"disconnect", [] { ShutByAnother("disconnect", -1); }},
    {"cancel", [] { Cancelled("cancel", PTHREAD_CANCEL_DEFERRED); }},
    {"cancel_async", [] { Cancelled("asynchronous cancel", PTHREAD_CANCEL_ASYNCHRONOUS); }},
    {"killed", Killed},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  silent.sin_family = AF_INET;
  silent.sin_port = htons(static_cast<uint16_t>(atoi(argv[2])));
  if (inet_pton(AF_INET, argv[1], &silent.sin_addr) != 1) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Install(SIGUSR1, 0);
  // What the first connect() of a program makes takes its time, and is not what is looked at here.
  const int first = NewSocket();
  SetNonblocking(first);
  if (argc == 3) (void)Connect(first);
  close(first);
  for (const Case& c : kCases) {
    bool wanted = argc == 3;
    for (int i = 3; i < argc; i++) wanted = wanted || strcmp(argv[i], c.name) == 0;
    if (wanted) c.run();
  }
  return 0;
}
