// SPDX-License-Identifier: Apache-2.0
// mistakes.cc - mistakes serve|connect NAME PORT: one side of a test for a mistake that others have
// made.
//
// The driver (t_mistakes.py) starts both sides, each under the wrapper or not. A side that finds
// something wrong prints the failed expectation and exits with 1.

#include "mistakes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace mistakes {

void Die(const char* file, int line, const char* what) {
  fprintf(stderr, "%s:%d: pid %d expected %s; errno %d (%s)\n",
          strrchr(file, '/') != nullptr ? strrchr(file, '/') + 1 : file, line, getpid(), what,
          errno, strerror(errno));
  _exit(1);
}

static sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int Listen(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  const sockaddr_in address = Loopback(port);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  EXPECT(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  EXPECT(listen(fd, 64) == 0);
  return fd;
}

static void NoDelay(int fd) {  // or each echoed message in two pieces waits for a delayed ACK
  const int one = 1;
  EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
}

int Accept(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  EXPECT(fd >= 0);
  NoDelay(fd);
  return fd;
}

int Connect(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(port);
  EXPECT(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  NoDelay(fd);
  return fd;
}

void Put(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    EXPECT(n > 0);
    done += static_cast<size_t>(n);
  }
}

std::string Get(int fd, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = read(fd, out.data() + done, bytes - done);
    EXPECT(n > 0);
    done += static_cast<size_t>(n);
  }
  return out;
}

void Echo(int fd) {
  std::array<char, 4096> data;
  for (ssize_t n; (n = read(fd, data.data(), data.size())) != 0;) {
    EXPECT(n > 0);
    Put(fd, std::string(data.data(), static_cast<size_t>(n)));
  }
}

void ExpectText(int fd, const std::string& text) {
  const std::string got = Get(fd, text.size());
  if (got != text) fprintf(stderr, "wanted '%.60s', got '%.60s'\n", text.c_str(), got.c_str());
  EXPECT(got == text);
}

void ExpectEnd(int fd) {
  char byte;
  EXPECT(read(fd, &byte, 1) == 0);
}

void ExpectChild(pid_t pid) {
  int status = -1;
  EXPECT(waitpid(pid, &status, 0) == pid);
  EXPECT(status == 0);
}

void SendFd(int channel, int fd) {
  char byte = 'f';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  EXPECT(sendmsg(channel, &message, 0) == 1);
}

bool Readable(int fd, int timeout_ms) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, timeout_ms) == 1;
}

// SIGUSR1 is blocked from the start of main().
void WaitForDriver() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int number = 0;
  printf("holding\n");
  fflush(stdout);
  EXPECT(sigwait(&set, &number) == 0);
}

int64_t NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

const char* Self() {
  static char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  EXPECT(n > 0);
  path[n] = '\0';
  return path;
}

static const Case* Find(const std::string& name) {
  for (const Case* table :
       {kProcessCases, kCallCases, kExportCases, kGroupCases, kSpawnCases, kLateCases}) {
    for (; table->name != nullptr; ++table) {
      if (name == table->name) return table;
    }
  }
  return nullptr;
}

}  // namespace mistakes

int main(int argc, char** argv) {
  using namespace mistakes;
  const std::string role = argc == 4 ? argv[1] : "";
  if (role == "resume") return Resume(argv[2], atoi(argv[3]));
  const Case* found = argc == 4 ? Find(argv[2]) : nullptr;
  if (found == nullptr || (role != "serve" && role != "connect")) {
    fprintf(stderr, "usage: mistakes serve|connect NAME PORT\n");
    return 2;
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);  // the driver's "go on", see WaitForDriver()
  const auto port = static_cast<uint16_t>(atoi(argv[3]));
  if (role == "serve") {
    found->serve(Listen(port));
  } else {
    found->connect(port);
  }
  puts("done");
  return 0;
}
