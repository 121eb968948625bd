// SPDX-License-Identifier: Apache-2.0
// descriptors.cc - a call holds its descriptor until it returns: small cases, each of which says
// what happened.
//
//   descriptors                    the names
//   descriptors NAME               one case; its peer is a child of this process
//   descriptors NAME PATH          likewise, with `descriptors peer PATH` as the peer
//   descriptors hold               an image that waits for the end of its standard input
//
// A program that knows nothing of postern.
#include "descriptors.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace descriptors {
namespace {

int failures;
std::string self;

}  // namespace

const char* Self() { return self.c_str(); }

void Say(const char* format, ...) {
  va_list args;
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  putchar('\n');
  fflush(stdout);
}

void Expect(const char* what, bool so) {
  if (so) return;
  Say("wrong: %s (errno %d)", what, errno);
  failures++;
}

void Die(const char* what) {
  Say("wrong: %s (errno %d)", what, errno);
  _exit(1);
}

std::string Outcome(long result, int error) {
  return result >= 0 ? std::to_string(result) : strerrorname_np(error);
}

std::string Outcome(long result) { return Outcome(result, errno); }

long NowMs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void NapMs(long ms) {
  timespec ts = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&ts, &ts) != 0) {
  }
}

pid_t Tid() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void AwaitAsleep(pid_t tid) {
  char path[64], text[400];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  const long end = NowMs() + 15000;
  for (int looks = 0; looks < 6;) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;  // the thread has ended: its call has not blocked
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char* state = strrchr(text, ')');
    looks = state != nullptr && state[2] == 'S' ? looks + 1 : 0;
    if (NowMs() > end) Die("a call that has to block keeps running");
    NapMs(4);
  }
}

Blocked::Blocked(std::function<long()> call) : call_(std::move(call)) {
  if (pthread_create(&thread_, nullptr, Main, this) != 0) Die("pthread_create");
}

void* Blocked::Main(void* self) {
  Blocked& b = *static_cast<Blocked*>(self);
  b.tid_ = Tid();
  b.result_ = b.call_();
  b.error_ = errno;
  b.done_ = true;
  return nullptr;
}

void Blocked::AwaitAsleep(const char* what) {
  while (tid_ == 0) NapMs(1);
  descriptors::AwaitAsleep(tid_);
  if (done_) {
    Say("wrong: %s has not blocked: %s", what, Outcome(result_, error_).c_str());
    _exit(1);
  }
}

void Blocked::JoinThread(const char* what, void** result) {
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 15;
  if (pthread_timedjoin_np(thread_, result, &until) != 0) {
    Say("wrong: %s hangs", what);
    _exit(1);
  }
  joined_ = true;
}

void Blocked::JoinQuietly() {
  void* result;
  JoinThread("the call", &result);
}

long Blocked::Join(const char* what) {
  void* result;
  JoinThread(what, &result);
  Say("%s: %s", what, Outcome(result_, error_).c_str());
  return result_;
}

bool Blocked::JoinCancelled(const char* what) {
  void* result;
  JoinThread(what, &result);
  Say("%s: %s", what, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
  return result == PTHREAD_CANCELED;
}

Blocked::~Blocked() {
  if (!joined_) Die("a call is left");
}

int Socket() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) Die("socket");
  return fd;
}

namespace {
sockaddr_in Loopback(uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}
}  // namespace

int Dial(uint16_t port) {
  const int fd = Socket();
  const sockaddr_in to = Loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) Die("connect");
  return fd;
}

int Listen(uint16_t* port, int backlog) {
  const int fd = Socket();
  sockaddr_in at = Loopback(0);
  socklen_t len = sizeof at;
  sockaddr* name = reinterpret_cast<sockaddr*>(&at);
  if (bind(fd, name, len) != 0 || listen(fd, backlog) != 0 || getsockname(fd, name, &len) != 0)
    Die("listen");
  *port = ntohs(at.sin_port);
  return fd;
}

Conn Connected() {
  Conn c;
  c.fd = Dial(PeerPort());
  c.peer = PeerAccept();
  return c;
}

void ExpectFree(int number) {
  Expect("the number is free at once", fcntl(number, F_GETFD) == -1 && errno == EBADF);
}

int MoveTo(int fd, int number) {
  if (fd == number) return fd;
  if (dup2(fd, number) != number) Die("dup2");
  close(fd);
  return number;
}

Conn ConnectedAs(int number) {
  ExpectFree(number);
  Conn c = Connected();
  c.fd = MoveTo(c.fd, number);
  return c;
}

std::string Text(int fd) {
  char text[256];
  const ssize_t n = recv(fd, text, sizeof text, MSG_DONTWAIT);
  if (n < 0) return strerrorname_np(errno);
  return n == 0 ? "end" : std::string(text, static_cast<size_t>(n));
}

std::string Pattern(size_t bytes, unsigned seed) {
  std::string text(bytes, 0);
  for (size_t i = 0; i < bytes; i++)
    text[i] = static_cast<char>((i * 2654435761u + i / 251 + seed * 97) >> 7);
  return text;
}

uint64_t Hash(const void* bytes, size_t count, uint64_t hash) {
  const auto* p = static_cast<const unsigned char*>(bytes);
  for (size_t i = 0; i < count; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
  return hash;
}

void Install(int signo, void (*handler)(int), int flags) {
  struct sigaction act {};
  act.sa_handler = handler;
  act.sa_flags = flags;
  sigaction(signo, &act, nullptr);
}

}  // namespace descriptors

int main(int argc, char** argv) {
  using namespace descriptors;
  signal(SIGPIPE, SIG_IGN);
  self = argv[0];
  const char* name = argc > 1 ? argv[1] : "";
  if (strcmp(name, "peer") == 0 && argc == 3) return PeerMain(argv[2]);
  if (strcmp(name, "hold") == 0) {
    char c;
    while (read(0, &c, 1) > 0) {
    }
    return 0;
  }
  for (const Case* list :
       {recv_cases::kAll, send_cases::kAll, accept_cases::kAll, wait_cases::kAll, epoll_cases::kAll,
        jump_cases::kAll, handler_cases::kAll, process_cases::kAll}) {
    for (const Case* c = list; c->name != nullptr; c++) {
      if (argc < 2) puts(c->name);
      if (strcmp(c->name, name) != 0) continue;
      StartPeer(argc > 2 ? argv[2] : nullptr);
      c->run();
      Say("%s", failures == 0 ? "as it should be" : "failed");
      return failures == 0 ? 0 : 1;
    }
  }
  return argc < 2 ? 0 : 2;
}
