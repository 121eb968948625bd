// syscalls.cc - what libc's syscall() gives: as itself, and for io_uring_setup.
// SPDX-License-Identifier: Apache-2.0
//
//   syscalls plain            results, errno and arguments of other calls
//   syscalls refused_early    io_uring_setup says EPERM, then a socket is made; "holding" until
//                             SIGUSR1 comes; EPERM again; "holding"
//   syscalls refused_late     the same, with the socket made first
//   syscalls kernels          io_uring_setup says what the kernel says, and a ring works;
//                             "no ring here" if the kernel has none for this process
//   syscalls serve PORT       echoes one connection, as libuv does: where it gets a ring, it adds
//                             the connection to its event set through that, else by epoll_ctl()
//   syscalls connect PORT     the other side of that: "holding" once a first answer has come
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../rings/loopback.h"
#include "../rings/one_entry_ring.h"

namespace {

constexpr int kMark = 77;  // an errno that no call here gives

[[noreturn]] void Die(int line, const char* what) {
  std::fprintf(stderr, "syscalls.cc:%d: %s (%s)\n", line, what, strerror(errno));
  std::exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : Die(__LINE__, #condition))

void Say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

void Hold() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int number;
  Say("holding");
  EXPECT(sigwait(&set, &number) == 0);
}

// ---------------------------------------------------------------- the calls themselves
void Plain() {
  errno = kMark;
  EXPECT(syscall(SYS_getpid) == getpid() && errno == kMark);
  EXPECT(syscall(SYS_gettid) == gettid() && errno == kMark);
  EXPECT(syscall(SYS_close, -1) == -1 && errno == EBADF);
  EXPECT(syscall(SYS_openat, AT_FDCWD, "/no such file", O_RDONLY) == -1 && errno == ENOENT);
  EXPECT(syscall(100000) == -1 && errno == ENOSYS);

  // The sixth argument is the one that lies on the stack: the second page has to come.
  const long page = sysconf(_SC_PAGESIZE);
  const int file = memfd_create("pages", 0);
  EXPECT(ftruncate(file, 2 * page) == 0 && pwrite(file, "second", 6, page) == 6);
  errno = kMark;
  const long at = syscall(SYS_mmap, nullptr, page, PROT_READ, MAP_PRIVATE, file, page);
  EXPECT(at != -1 && errno == kMark);
  EXPECT(std::memcmp(reinterpret_cast<const void*>(at), "second", 6) == 0);

  // A position may be negative as a long, and is no error if it lies before the last page.
  const int memory = open("/proc/self/mem", O_RDONLY);
  const long high = static_cast<long>(0xffffffffff600000);
  EXPECT(memory >= 0);
  EXPECT(syscall(SYS_lseek, memory, high, SEEK_SET) == high && errno == kMark);
}

void ExpectRefused() {
  io_uring_params params{};
  EXPECT(syscall(SYS_io_uring_setup, 8, &params) == -1 && errno == EPERM);
  EXPECT(syscall(SYS_io_uring_setup, 0, nullptr) == -1 && errno == EPERM);
}

void Refused(bool early) {
  if (early) ExpectRefused();
  EXPECT(socket(AF_INET, SOCK_STREAM, 0) >= 0);
  if (!early) ExpectRefused();
  Hold();
  ExpectRefused();
  Hold();
}

void Kernels() {
  io_uring_params params{};
  const long own = ring::KernelSetup(4, &params);
  const ring::Ring ring(4, 0);
  if (own < 0) {
    EXPECT(ring.fd() == own);
    Say("no ring here");
    return;
  }
  EXPECT(ring.made());
  io_uring_sqe nothing{};
  nothing.opcode = IORING_OP_NOP;
  for (int i = 0; i < 100; ++i) EXPECT(ring.Do(nothing) == 0);
  Say("a ring works");
}

// ---------------------------------------------------------------- libuv's way of adding a socket
int Control(const ring::Ring& ring, int set, int op, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  io_uring_sqe request{};
  request.opcode = IORING_OP_EPOLL_CTL;
  request.fd = set;
  request.len = static_cast<uint32_t>(op);
  request.off = static_cast<__u64>(fd);
  request.addr = reinterpret_cast<__u64>(&event);
  return ring.Do(request);
}

void Add(const ring::Ring& ring, int set, int fd) {
  if (!ring.made()) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return;
  }
  // As the kernel has it; libuv relies on EEXIST.
  EXPECT(Control(ring, set, EPOLL_CTL_MOD, fd) == -ENOENT);
  EXPECT(Control(ring, set, EPOLL_CTL_ADD, fd) == 0);
  EXPECT(Control(ring, set, EPOLL_CTL_ADD, fd) == -EEXIST);
  EXPECT(Control(ring, set, EPOLL_CTL_MOD, fd) == 0);
  EXPECT(Control(ring, set, EPOLL_CTL_DEL, fd) == 0);
  EXPECT(Control(ring, set, EPOLL_CTL_DEL, fd) == -ENOENT);
  EXPECT(Control(ring, set, EPOLL_CTL_ADD, 987654) == -EBADF);
  EXPECT(Control(ring, 987654, EPOLL_CTL_ADD, fd) == -EBADF);
  EXPECT(Control(ring, set, EPOLL_CTL_ADD, fd) == 0);
}

void Serve(const char* port) {
  const ring::Ring ring(4, 0);
  const int listener = loopback::Listen(port), set = epoll_create1(0);
  EXPECT(listener >= 0);
  Add(ring, set, listener);
  for (;;) {
    epoll_event event;
    EXPECT(epoll_wait(set, &event, 1, -1) == 1);
    if (event.data.fd == listener) {
      Add(ring, set, accept(listener, nullptr, nullptr));
      continue;
    }
    char data[4096];
    const ssize_t n = read(event.data.fd, data, sizeof data);
    EXPECT(n >= 0);
    if (n == 0) return;
    EXPECT(write(event.data.fd, data, static_cast<size_t>(n)) == n);
  }
}

void Connect(const char* port) {
  const ring::Ring ring(4, 0);
  const int fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
  const sockaddr_in a = loopback::Address(port);
  EXPECT(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
  Add(ring, set, fd);
  for (int i = 0; i < 1000; ++i) {
    char data[16];
    epoll_event event;
    EXPECT(write(fd, "question", 8) == 8);
    EXPECT(epoll_wait(set, &event, 1, -1) == 1);
    EXPECT(recv(fd, data, sizeof data, MSG_DONTWAIT) == 8 && std::memcmp(data, "question", 8) == 0);
    if (i == 0) Hold();
  }
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "plain")
    Plain();
  else if (what == "refused_early")
    Refused(true);
  else if (what == "refused_late")
    Refused(false);
  else if (what == "kernels")
    Kernels();
  else if (what == "serve" && argc > 2)
    Serve(argv[2]);
  else if (what == "connect" && argc > 2)
    Connect(argv[2]);
  else
    Die(__LINE__, "usage");
  Say("as it should be");
}
