// SPDX-License-Identifier: Apache-2.0
// confines.cc - a server that puts itself into a sandbox with a connection open, as sshd does.
//
//   confines serve PORT HOW     echoes one connection; "holding" before it confines itself
//   confines connect PORT HOW   the other side, which waits in epoll and checks each byte
// HOW: filter (seccomp(2)'s, which ends the process for what it does not name; no new descriptor,
// file or process)  strict (read, write and exit)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "../rings/loopback.h"

namespace {

[[noreturn]] void Die(int line, const char* what) {
  std::fprintf(stderr, "confines.cc:%d: %s (%s)\n", line, what, strerror(errno));
  std::exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : Die(__LINE__, #condition))

constexpr int kRounds = 40, kFree = 5;
constexpr size_t kBytes = 3000;

// Ends the process for each call but those of a program that reads, computes and writes.
void InstallFilter() {
  const uint32_t allowed[] = {SYS_read, SYS_write,  SYS_close,         SYS_exit_group,
                              SYS_exit, SYS_futex,  SYS_clock_gettime, SYS_brk,
                              SYS_mmap, SYS_munmap, SYS_poll,          SYS_rt_sigreturn};
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const uint32_t call : allowed) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};
  EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

void Confine(const std::string& how) {
  const rlimit none = {0, 0};
  for (const auto what : {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_NPROC})
    EXPECT(setrlimit(what, &none) == 0);
  EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (how == "filter") return InstallFilter();
  EXPECT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
}

// All of them, or none at the end.
bool ReadAll(int fd, std::vector<char>& to) {
  for (size_t have = 0; have < to.size();) {
    const ssize_t n = read(fd, &to[have], to.size() - have);
    if (n == 0 && have == 0) return false;
    EXPECT(n > 0);
    have += static_cast<size_t>(n);
  }
  return true;
}
void WriteAll(int fd, const std::vector<char>& from) {
  for (size_t sent = 0; sent < from.size();) {
    const ssize_t n = write(fd, &from[sent], from.size() - sent);
    EXPECT(n > 0);
    sent += static_cast<size_t>(n);
  }
}

void Serve(const char* port, const std::string& how) {
  const int listener = loopback::Listen(port);
  EXPECT(listener >= 0);
  const int fd = accept(listener, nullptr, nullptr);
  EXPECT(fd >= 0);
  std::vector<char> data(kBytes);
  for (int i = 0; i < kFree; ++i) {
    EXPECT(ReadAll(fd, data));
    WriteAll(fd, data);
  }
  EXPECT(loopback::Hold());
  Confine(how);
  while (ReadAll(fd, data)) WriteAll(fd, data);
  syscall(SYS_exit, 0);  // the one that is left
}

void Connect(const char* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in a = loopback::Address(port);
  EXPECT(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
  const int set = epoll_create1(0);
  epoll_event event = {};
  event.events = EPOLLIN;
  EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  for (int i = 0; i < kRounds; ++i) {
    std::vector<char> out(kBytes), in(kBytes);
    for (size_t k = 0; k < kBytes; ++k) out[k] = static_cast<char>(k * 31 + static_cast<size_t>(i));
    WriteAll(fd, out);
    int ready;
    while ((ready = epoll_wait(set, &event, 1, -1)) < 0 && errno == EINTR) {  // it was stopped
    }
    EXPECT(ready == 1);
    EXPECT(ReadAll(fd, in));
    EXPECT(in == out);
  }
  std::puts("each byte right");
}

}  // namespace

int main(int argc, char** argv) {
  loopback::MayHold();
  const std::string what = argc > 3 ? argv[1] : "";
  if (what == "serve")
    Serve(argv[2], argv[3]);
  else if (what == "connect")
    Connect(argv[2]);
  else
    return 2;
}
