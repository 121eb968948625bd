// SPDX-License-Identifier: Apache-2.0
// posternd_world.h - what posternd_fuzz has around a posternd that runs in its own process:
// processes to be the programs of two families, their lines, a clock that can be put forward, and
// counts of what posternd asks the kernel.
//
//   fuzzer == posternd        nursery           programs (one process each)
//   lines' other ends  <----  forks them  ----> map a stack, connect, hand the line over, die
//
// posternd learns from the kernel which process has connected, and whether it lives and what it has
// mapped: so these are real processes, and the fuzzer speaks on the lines that they have made.
#pragma once
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "../replay.h"
#include "ctl/msg_packet.h"
#include "state/area.h"

namespace postern {

// The clock of all that is in this process, libevent's and the C++ library's, too (moved_clock.h).
inline uint64_t g_ahead_ns = 0;
// Files of /proc that were opened, and entries of directories that were read.
inline uint64_t g_looks = 0;

inline int RealClock(clockid_t id, timespec* out) {
  return static_cast<int>(syscall(SYS_clock_gettime, id, out));
}

// ---------------------------------------------------------------- processes
struct Order {
  pid_t pid = 0;
};

// libFuzzer's alarm interrupts the call after some seconds.
template <typename Fn>
ssize_t Whole(Fn call) {
  ssize_t r = 0;
  do {
    r = call();
  } while (r < 0 && errno == EINTR);
  return r;
}

inline bool SendWith(int to, const void* bytes, size_t size, int fd) {
  iovec iov = {const_cast<void*>(bytes), size};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = room;
    header.msg_controllen = sizeof room;
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return Whole([&] { return sendmsg(to, &header, MSG_NOSIGNAL); }) == static_cast<ssize_t>(size);
}

inline bool ReceiveWith(int from, void* bytes, size_t size, int& fd, int flags = 0) {
  iovec iov = {bytes, size};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  fd = -1;
  const ssize_t got = Whole([&] { return recvmsg(from, &header, flags | MSG_CMSG_CLOEXEC); });
  if (got != static_cast<ssize_t>(size)) return false;
  if (cmsghdr* c = CMSG_FIRSTHDR(&header)) memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return true;
}

// A program: it has its family's memory, connects when it is told to, and ends with the fuzzer.
[[noreturn]] inline void BeProgram(int orders, int stack, const sockaddr_un& posternd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)LookAtStack(stack);
  for (;;) {
    const int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(line, reinterpret_cast<const sockaddr*>(&posternd), sizeof posternd) != 0) _exit(1);
    Order order = {getpid()};
    if (!SendWith(orders, &order, sizeof order, line)) _exit(0);
    close(line);
    int none = -1;
    if (!ReceiveWith(orders, &order, sizeof order, none)) _exit(0);
  }
}

[[noreturn]] inline void BeNursery(int orders, const sockaddr_un& posternd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGCHLD, SIG_IGN);  // a dead child is gone at once
  for (;;) {
    Order order;
    int stack = -1;
    if (!ReceiveWith(orders, &order, sizeof order, stack)) _exit(0);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) _exit(1);
    order.pid = fork();
    if (order.pid == 0) {
      close(orders);
      close(ends[0]);
      BeProgram(ends[1], stack, posternd);
    }
    close(ends[1]);
    close(stack);
    if (!SendWith(orders, &order, sizeof order, ends[0])) _exit(0);
    close(ends[0]);
  }
}

class Nursery {
 public:
  // Forks: first of all, while this process has nothing.
  explicit Nursery(const sockaddr_un& posternd) {
    int ends[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      BeNursery(ends[1], posternd);
    }
    close(ends[1]);
    orders_ = ends[0];
  }
  pid_t pid() const { return pid_; }
  // A program with this memory, which a Program takes: several may be on their way.
  void Order(int stack) const {
    const postern::Order order;
    FUZZ_CHECK(SendWith(orders_, &order, sizeof order, stack));
  }
  pid_t Take(int& orders) const {
    postern::Order order;
    FUZZ_CHECK(ReceiveWith(orders_, &order, sizeof order, orders) && orders >= 0);
    return order.pid;
  }

 private:
  int orders_ = -1;
  pid_t pid_ = 0;
};

class Program {
 public:
  explicit Program(const Nursery& nursery) : pid_(nursery.Take(orders_)) {}
  ~Program() { Die(); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  bool lives() const { return orders_ >= 0; }
  // A line to posternd, from the start of it or one more.
  int Connect() {
    Order order;
    int line = -1;
    if (asked_ && !SendWith(orders_, &order, sizeof order, -1)) return -1;
    asked_ = true;
    return ReceiveWith(orders_, &order, sizeof order, line) ? line : -1;
  }
  // Returns when the kernel has forgotten it.
  void Die() {
    if (orders_ < 0) return;
    kill(pid_, SIGKILL);
    while (kill(pid_, 0) == 0) sched_yield();
    close(orders_);
    orders_ = -1;
  }

 private:
  int orders_ = -1;
  const pid_t pid_;
  bool asked_ = false;
};

// Where programs connect, and the nursery that they come from, which is forked before there is
// anything else.
inline int OpenDoor(const char* name, sockaddr_un& address, std::unique_ptr<Nursery>& nursery) {
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s-%d", name, getpid());
  nursery = std::make_unique<Nursery>(address);
  const int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  FUZZ_CHECK(bind(door, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
             listen(door, 64) == 0);
  return door;
}

// ---------------------------------------------------------------- what this process has
using FileId = std::pair<dev_t, ino_t>;
inline FileId IdOf(int fd) {
  struct stat st {};
  return fstat(fd, &st) == 0 ? FileId{st.st_dev, st.st_ino} : FileId{};
}

inline size_t OpenDescriptors() {
  size_t count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (dir != nullptr && readdir(dir) != nullptr) count++;
  if (dir != nullptr) closedir(dir);
  return count;
}

inline size_t ProcessesOfHost() {
  size_t count = 0;
  DIR* dir = opendir("/proc");
  while (dirent* entry = dir != nullptr ? readdir(dir) : nullptr)
    count += entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? 1 : 0;
  if (dir != nullptr) closedir(dir);
  return count;
}

// Writable mappings of families' segments.
inline size_t WritableSegments() {
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512];
  size_t count = 0;
  while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
    const bool segment = strstr(line, "/memfd:postern-stack") != nullptr ||
                         strstr(line, "/memfd:postern-lgr") != nullptr;
    char rights[8] = "";
    if (segment && sscanf(line, "%*s %7s", rights) == 1 && rights[1] == 'w') count++;
  }
  if (maps != nullptr) fclose(maps);
  return count;
}

}  // namespace postern
