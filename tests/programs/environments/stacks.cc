// stacks.cc - calls of threads with small stacks: stacks PORT BYTES, or stacks PORT depth
// SPDX-License-Identifier: Apache-2.0
//
// A thread with BYTES of stack does each call. `depth`: how many bytes of it each call has used at
// most, to be compared with another run.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace {

uint16_t port;
int listener = -1, client = -1, server = -1;
char true_path[] = "/bin/true", true_name[] = "true";
char* true_args[] = {true_name, nullptr};

void Fail(const char* what) {
  const int e = errno;
  dprintf(2, "stacks: %s: errno %d\n", what, e);
  _exit(1);
}
void Need(bool ok, const char* what) {
  if (!ok) Fail(what);
}

void Ended(pid_t child) {
  int status = -1;
  Need(child > 0 && waitpid(child, &status, 0) == child && status == 0, "child");
}

void* Listen(void*) {
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  const int on = 1;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Need(listener >= 0, "socket");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  Need(bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0, "bind");
  Need(listen(listener, 8) == 0, "listen");
  return nullptr;
}
void* Connect(void*) {
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Need(client >= 0 && connect(client, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0, "connect");
  return nullptr;
}
void* Accept(void*) {
  sockaddr_in a = {};
  socklen_t len = sizeof a;
  server = accept4(listener, reinterpret_cast<sockaddr*>(&a), &len, SOCK_CLOEXEC);
  Need(server >= 0, "accept");
  return nullptr;
}
void* Exchange(void*) {
  static char data[65536];
  char one;
  Need(send(client, data, sizeof data, 0) == sizeof data, "send");
  Need(recv(server, data, sizeof data, MSG_WAITALL) == sizeof data, "recv");
  Need(write(server, "x", 1) == 1 && read(client, &one, 1) == 1, "read");
  iovec v[2] = {{data, 10}, {data, 10}};
  msghdr m = {};
  m.msg_iov = v;
  m.msg_iovlen = 2;
  Need(sendmsg(server, &m, 0) == 20 && recvmsg(client, &m, 0) == 20, "sendmsg");
  return nullptr;
}
void* Wait(void*) {
  Need(write(server, "x", 1) == 1, "write");
  pollfd p = {client, POLLIN, 0};
  Need(poll(&p, 1, 10000) == 1, "poll");
  fd_set set;
  FD_ZERO(&set);
  FD_SET(client, &set);
  timeval tv = {10, 0};
  Need(select(client + 1, &set, nullptr, nullptr, &tv) == 1, "select");
  const int epfd = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ev = {};
  ev.events = EPOLLIN;
  Need(epoll_ctl(epfd, EPOLL_CTL_ADD, client, &ev) == 0, "epoll_ctl");
  Need(epoll_wait(epfd, &ev, 1, 10000) == 1, "epoll_wait");
  char one;
  Need(read(client, &one, 1) == 1, "read");
  Need(epoll_wait(epfd, &ev, 1, 10) == 0, "epoll_wait, nothing");
  close(epfd);
  return nullptr;
}
void* Options(void*) {
  tcp_info info;
  socklen_t len = sizeof info;
  Need(getsockopt(client, IPPROTO_TCP, TCP_INFO, &info, &len) == 0, "TCP_INFO");
  int size = 0;
  len = sizeof size;
  Need(getsockopt(client, SOL_SOCKET, SO_SNDBUF, &size, &len) == 0, "SO_SNDBUF");
  sockaddr_in a;
  len = sizeof a;
  Need(getpeername(client, reinterpret_cast<sockaddr*>(&a), &len) == 0, "getpeername");
  return nullptr;
}
void* ForkExec(void*) {
  const pid_t child = fork();
  if (child == 0) {
    execv(true_path, true_args);
    _exit(127);
  }
  Ended(child);
  return nullptr;
}
void* ForkExecPath(void*) {
  const pid_t child = fork();
  if (child == 0) {
    execlp(true_name, true_name, nullptr);
    _exit(127);
  }
  Ended(child);
  return nullptr;
}
void* VforkExec(void*) {
  const pid_t child = vfork();
  if (child == 0) {
    execv(true_path, true_args);
    _exit(127);
  }
  Ended(child);
  return nullptr;
}
void* Spawn(void*) {
  pid_t child = -1;
  Need(posix_spawn(&child, true_path, nullptr, nullptr, true_args, environ) == 0, "posix_spawn");
  Ended(child);
  return nullptr;
}
void* SpawnPath(void*) {
  pid_t child = -1;
  Need(posix_spawnp(&child, true_name, nullptr, nullptr, true_args, environ) == 0, "posix_spawnp");
  Ended(child);
  return nullptr;
}
void* System(void*) {
  Need(system("true") == 0, "system");
  return nullptr;
}
void* Duplicate(void*) {
  const int copy = dup(client);
  Need(copy >= 0 && dup2(copy, copy + 1) == copy + 1, "dup");
  close(copy);
  close(copy + 1);
  return nullptr;
}
// The connection becomes the kernel's: it leaves over a Unix socket.
void* Pass(void*) {
  int ends[2];
  Need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  char one = 'x';
  iovec v = {&one, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr m = {};
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &client, sizeof client);
  Need(sendmsg(ends[0], &m, 0) == 1, "SCM_RIGHTS");
  close(ends[0]);
  close(ends[1]);
  return nullptr;
}
void* Close(void*) {
  close(client);
  close(server);
  close(listener);
  return nullptr;
}

struct Act {
  const char* name;
  void* (*run)(void*);
};
constexpr Act kActs[] = {{"fork+exec without sockets", ForkExec},
                         {"vfork+exec without sockets", VforkExec},
                         {"posix_spawn without sockets", Spawn},
                         {"listen", Listen},
                         {"connect", Connect},
                         {"accept", Accept},
                         {"exchange", Exchange},
                         {"wait", Wait},
                         {"options", Options},
                         {"fork+exec", ForkExec},
                         {"fork+execlp", ForkExecPath},
                         {"vfork+exec", VforkExec},
                         {"posix_spawn", Spawn},
                         {"posix_spawnp", SpawnPath},
                         {"system", System},
                         {"dup", Duplicate},
                         {"pass", Pass},
                         {"close", Close}};

constexpr size_t kWhole = 512 * 1024;

void RunOn(const Act& act, size_t bytes, unsigned char* stack) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  if (stack != nullptr)
    pthread_attr_setstack(&attr, stack, kWhole);
  else
    pthread_attr_setstacksize(&attr, bytes);
  pthread_t thread;
  errno = pthread_create(&thread, &attr, act.run, nullptr);
  if (errno != 0) Fail("pthread_create");
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attr);
}

size_t DepthOf(const Act& act) {
  constexpr unsigned char kPaint = 0xa5;
  void* const place =
      mmap(nullptr, kWhole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const stack = static_cast<unsigned char*>(place);
  memset(stack, kPaint, kWhole);
  RunOn(act, 0, stack);
  size_t untouched = 0;
  while (untouched < kWhole && stack[untouched] == kPaint) untouched++;
  munmap(place, kWhole);
  return kWhole - untouched;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  port = static_cast<uint16_t>(atoi(argv[1]));
  const bool measures = strcmp(argv[2], "depth") == 0;
  for (const Act& act : kActs) {
    if (measures)
      printf("%s: %zu\n", act.name, DepthOf(act));
    else
      RunOn(act, static_cast<size_t>(atoi(argv[2])), nullptr);
    fflush(stdout);
  }
  puts("done");
  return 0;
}
