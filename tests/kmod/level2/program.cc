// SPDX-License-Identifier: Apache-2.0
// program.cc - one end of a connection in the tests of level 2: a program that has the library,
// and, linked statically, a stranger that has not.
//
//   END = FD OUT_SEED IN_SEED BYTES HOW       HOW: mover.h
//   program move END                          on a descriptor that it has inherited
//   program take SOCKET END                   the descriptor comes by SCM_RIGHTS to a Unix socket
//   program listen|connect PORT WAY STRANGER END
//       WAY: self     moves the bytes itself
//            thread   the same, after a thread has slept in recv() for a while
//            exec     a child executes STRANGER move
//            replace  it executes STRANGER move itself
//            pass     a child executes STRANGER take; the descriptor is sent there, and closed
//            share    as pass, and both hold it until the stranger has ended
//            busy     as pass, after half of the bytes have been moved by itself (HOW ping or pong)
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "abi/kmod_abi.h"
#include "mover.h"

namespace {

using namespace postern;

Job JobOf(char** argv) {
  return {atoi(argv[0]), strtoull(argv[1], nullptr, 10), strtoull(argv[2], nullptr, 10),
          strtoull(argv[3], nullptr, 10), argv[4]};
}

// A stranger's end: it says who serves the descriptor.
int MoveAndSay(const Job& job) {
  pstn_ioc_what what = {};
  const bool by_module = ioctl(job.fd, PSTN_IOC_WHAT, &what) == 0 && what.accelerated != 0;
  puts(by_module ? "by the module" : "by the kernel");
  Move(job);
  return 0;
}

int Take(int by) {
  char byte;
  iovec one = {&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))];
  msghdr m = {};
  m.msg_iov = &one;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  if (recvmsg(by, &m, 0) != 1 || CMSG_FIRSTHDR(&m) == nullptr) Fail("recvmsg", -1);
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}

void Pass(int by, int fd) {
  char byte = 'f';
  iovec one = {&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr m = {};
  m.msg_iov = &one;
  m.msg_iovlen = 1;
  m.msg_control = room;
  m.msg_controllen = sizeof room;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  if (sendmsg(by, &m, 0) != 1) Fail("sendmsg of a descriptor", -1);
}

int Connection(bool listens, int port) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* sa = reinterpret_cast<sockaddr*>(&at);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (!listens) {
    for (int i = 0; connect(fd, sa, sizeof at) != 0; i++) {
      if (errno != ECONNREFUSED || i == 3000) Fail("connect", -1);
      close(fd);  // one whose connect() the kernel has refused stays the kernel's
      usleep(10000);
      fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    return fd;
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, sa, sizeof at) != 0 || listen(fd, 8) != 0) Fail("listen", -1);
  puts("listens");
  fflush(stdout);
  const int client = accept(fd, nullptr, nullptr);
  if (client < 0) Fail("accept", -1);
  close(fd);
  return client;
}

struct Texts {
  char fd[16], seed[2][24], bytes[24];
  char* argv[10];
};
// The arguments of a stranger.
char** Arguments(Texts& t, const char* program, const char* what, int socket, const Job& job) {
  static char socket_text[16];
  snprintf(t.fd, sizeof t.fd, "%d", job.fd);
  snprintf(t.seed[0], sizeof t.seed[0], "%llu", static_cast<unsigned long long>(job.out_seed));
  snprintf(t.seed[1], sizeof t.seed[1], "%llu", static_cast<unsigned long long>(job.in_seed));
  snprintf(t.bytes, sizeof t.bytes, "%llu", static_cast<unsigned long long>(job.bytes));
  snprintf(socket_text, sizeof socket_text, "%d", socket);
  int n = 0;
  t.argv[n++] = const_cast<char*>(program);
  t.argv[n++] = const_cast<char*>(what);
  if (socket >= 0) t.argv[n++] = socket_text;
  t.argv[n++] = t.fd;
  t.argv[n++] = t.seed[0];
  t.argv[n++] = t.seed[1];
  t.argv[n++] = t.bytes;
  t.argv[n++] = const_cast<char*>(job.how);
  t.argv[n] = nullptr;
  return t.argv;
}

int AwaitChild(pid_t child) {
  int status = -1;
  if (waitpid(child, &status, 0) != child) Fail("waitpid", -1);
  if (status != 0) Fail("the stranger's status", status);
  return 0;
}

int InChild(const char* stranger, const Job& job) {
  Texts t;
  const pid_t child = fork();
  if (child == 0) {
    execv(stranger, Arguments(t, stranger, "move", -1, job));
    Fail("execv", -1);
  }
  close(job.fd);
  return AwaitChild(child);
}

int ByMessage(const char* stranger, const Job& job, bool keeps) {
  Texts t;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) Fail("socketpair", -1);
  fcntl(job.fd, F_SETFD, FD_CLOEXEC);
  fcntl(pair[1], F_SETFD, FD_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    execv(stranger, Arguments(t, stranger, "take", pair[0], job));
    Fail("execv", -1);
  }
  close(pair[0]);
  Pass(pair[1], job.fd);
  if (!keeps) close(job.fd);
  const int r = AwaitChild(child);
  if (keeps) close(job.fd);
  return r;
}

void* Sleeper(void* arg) {
  char byte;
  if (recv(*static_cast<int*>(arg), &byte, 1, MSG_PEEK) < 0) Fail("recv", -1);
  return nullptr;
}

int Go(const char* way, const char* stranger, Job job) {
  if (strcmp(way, "exec") == 0) return InChild(stranger, job);
  if (strcmp(way, "pass") == 0) return ByMessage(stranger, job, false);
  if (strcmp(way, "share") == 0) return ByMessage(stranger, job, true);
  if (strcmp(way, "replace") == 0) {
    Texts t;
    execv(stranger, Arguments(t, stranger, "move", -1, job));
    Fail("execv", -1);
  }
  if (strcmp(way, "busy") == 0) {
    job.bytes /= 2;
    Move(job);
    return ByMessage(stranger, job, false);
  }
  pthread_t sleeper;
  const bool sleeps = strcmp(way, "thread") == 0;
  if (sleeps) pthread_create(&sleeper, nullptr, Sleeper, &job.fd);
  if (sleeps) usleep(300000);
  Move(job);
  if (sleeps) pthread_join(sleeper, nullptr);
  close(job.fd);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 7 && strcmp(argv[1], "move") == 0) return MoveAndSay(JobOf(argv + 2));
  if (argc >= 8 && strcmp(argv[1], "take") == 0) {
    Job job = JobOf(argv + 3);
    job.fd = Take(atoi(argv[2]));
    return MoveAndSay(job);
  }
  if (argc < 10) return 2;
  Job job = JobOf(argv + 5);
  job.fd = Connection(strcmp(argv[1], "listen") == 0, atoi(argv[2]));
  return Go(argv[3], argv[4], job);
}
