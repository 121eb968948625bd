// SPDX-License-Identifier: Apache-2.0
// descriptors_family.cc - processes that have the numbers, too: forked children, other images, and
// those that descriptors are passed to.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "descriptors_stress.h"

extern char** environ;

namespace stress {

const char* self;

namespace {

void Await(pid_t child, const char* how) {
  int status;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) Bad("waitpid after %s: errno %d", how, errno);
  }
  if (WIFSIGNALED(status)) Bad("a child, by %s, has ended by signal %d", how, WTERMSIG(status));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    Bad("a child, by %s, has ended with %d", how, WEXITSTATUS(status));
}

void ActOn(uint64_t seed, uint64_t acts) {
  Hand h{seed, TakeSeat(), false};
  while (acts-- != 0 && !shared->stop) Act(h);
  LeaveSeat(h.seat);
}

}  // namespace

void Carry(uint64_t seed, uint64_t acts) {
  ForgetKeepers();
  ActOn(seed, acts);
}

void MakeChild(Hand& h) {
  enum { kFork, kExec, kSpawn } how = kFork;
  const uint64_t way = h.Below(3), seed = h.Below(1ull << 40), acts = 1 + h.Below(300);
  if (way == 0 && !Has(Mode::kFork)) return;
  if (way == 1 && !Has(Mode::kExec)) return;
  if (way == 2 && !Has(Mode::kSpawn)) return;
  how = way == 1 ? kExec : way == 2 ? kSpawn : kFork;
  char text[2][32], word[] = "carry";
  snprintf(text[0], sizeof text[0], "%llu", static_cast<unsigned long long>(seed));
  snprintf(text[1], sizeof text[1], "%llu", static_cast<unsigned long long>(acts));
  char* argv[] = {const_cast<char*>(self), word, text[0], text[1], nullptr};
  pid_t child = -1;
  At(h, how == kSpawn ? "posix_spawn" : "fork", -1);
  if (how == kSpawn) {
    const int r = posix_spawn(&child, self, nullptr, nullptr, argv, environ);
    if (r != 0) Bad("posix_spawn: errno %d", r);
  } else if ((child = fork()) == 0) {
    if (how == kExec) {
      execv(self, argv);
      _exit(127);
    }
    Carry(seed, acts);
    _exit(0);
  } else if (child < 0) {
    Bad("fork: errno %d", errno);
  }
  shared->children++;
  At(h, "waitpid", -1);
  Await(child, how == kFork ? "fork" : how == kExec ? "exec" : "posix_spawn");
}

void Pass(Hand& h) {
  const bool stranger = Has(Mode::kStranger) && h.OneIn(Has(Mode::kPass) ? 8 : 1);
  if (!stranger && !Has(Mode::kPass)) return;
  const int number = h.Number();
  char byte = 'x';
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &number, sizeof number);
  At(h, "SCM_RIGHTS", number);
  shared->passed++;
  if (sendmsg(stranger ? kStrangerLine : kFamilyLine, &m, MSG_DONTWAIT) == 1) return;
  shared->passed--;
  if (errno != ETOOMANYREFS) CheckError("sendmsg(SCM_RIGHTS)", number, errno);
}

namespace {

[[noreturn]] void Adopt(int line) {
  Hand h{static_cast<uint64_t>(getpid()), TakeSeat(), false};
  h.seat->idle = true;  // the end of an epoch waits for what has been passed, not for the seat
  ForgetKeepers();
  for (;;) {
    char byte;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec part{&byte, 1};
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    At(h, "adopting", line);
    const ssize_t n = recvmsg(line, &m, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(0);
    const cmsghdr* c = CMSG_FIRSTHDR(&m);
    if (c == nullptr) Bad("a descriptor has not come with its message");
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    for (uint64_t acts = h.Below(6); acts != 0; acts--) Transfer(h, fd, false);
    close(fd);
    shared->adopted++;
    h.seat->acts++;
  }
}

}  // namespace

void StartAdopter(int line) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) Bad("socketpair: errno %d", errno);
  const pid_t parent = getpid();
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    close(ends[0]);
    for (int other : {kFamilyLine, kStrangerLine}) close(other);
    Adopt(ends[1]);
  }
  close(ends[1]);
  dup2(ends[0], line);
  close(ends[0]);
}

}  // namespace stress
