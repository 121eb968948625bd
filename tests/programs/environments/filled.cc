// filled.cc - a server and a client that fill their limits: filled serve|connect PORT
// SPDX-License-Identifier: Apache-2.0
//
// Each maps all that RLIMIT_AS leaves it, to the last page, and goes on, without memory: with the
// connection that it had, which then carries so much that its rings grow, with one that was made
// before and carried nothing yet, and with ones that are made later.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kMostBytes = 300'000, kLater = 4;
char text[kMostBytes], back[kMostBytes];

[[noreturn]] void Fail(const char* what) {
  perror(what);
  exit(1);
}

// Mappings that nothing touches, each as large as there can be one. How much they are.
size_t Fill() {
  size_t taken = 0;
  for (size_t bytes = size_t{1} << 28; bytes >= 4096;) {
    void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
      bytes /= 2;
    else
      taken += bytes;
    if (taken > size_t{1} << 28) break;  // there is no limit
  }
  return taken;
}

sockaddr_in Address(const char* port) {
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(static_cast<uint16_t>(atoi(port)));
  return a;
}

void WriteAll(int fd, const char* at, size_t bytes) {
  while (bytes != 0) {
    const ssize_t n = write(fd, at, bytes);
    if (n <= 0) Fail("write");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

// What it gets, goes back. "fill" fills.
void Serve(const char* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in a = Address(port);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0 ||
      listen(listener, 20) != 0)
    Fail("listen");
  pollfd fds[16] = {{listener, POLLIN, 0}};
  nfds_t count = 1;
  size_t taken = 0;
  while (taken == 0 || count > 1) {
    if (poll(fds, count, -1) < 0) Fail("poll");
    if (fds[0].revents != 0) {
      fds[count++] = {accept(listener, nullptr, nullptr), POLLIN, 0};
      if (fds[count - 1].fd < 0 || count == 16) Fail("accept");
      fds[count - 1].revents = 0;
    }
    for (nfds_t i = 1; i < count; i++) {
      if (fds[i].revents == 0) continue;
      const ssize_t n = read(fds[i].fd, back, sizeof back);
      if (n < 0) Fail("read");
      if (n == 4 && memcmp(back, "fill", 4) == 0) {
        taken = Fill();
        WriteAll(fds[i].fd, "full", 4);
      } else if (n > 0) {
        WriteAll(fds[i].fd, back, static_cast<size_t>(n));
      } else {
        close(fds[i].fd);
        fds[i--] = fds[--count];
      }
    }
  }
  printf("served after %s\n", taken < size_t{1} << 28 ? "its limit" : "no limit");
}

int Dial(const char* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in a = Address(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) Fail("connect");
  return fd;
}

void CarryOnce(int fd, size_t bytes) {
  for (size_t sent = 0; sent < bytes;) {  // the server has as much room for answers as we read
    const size_t piece = std::min<size_t>(bytes - sent, 30'000);
    WriteAll(fd, text + sent, piece);
    for (size_t got = 0; got < piece;) {
      const ssize_t n = read(fd, back + sent + got, piece - got);
      if (n <= 0) Fail("an end");
      got += static_cast<size_t>(n);
    }
    sent += piece;
  }
  if (memcmp(text, back, bytes) != 0) Fail("another text");
}

void Carry(int fd) {
  for (int i = 0; i < 20; i++) CarryOnce(fd, 100);
  for (int i = 0; i < 3; i++) CarryOnce(fd, kMostBytes);
}

void Connect(const char* port) {
  for (size_t i = 0; i < sizeof text; i++) text[i] = static_cast<char>('a' + i % 23);
  const int fd = Dial(port), silent = Dial(port);
  CarryOnce(fd, 100);
  WriteAll(fd, "fill", 4);
  if (read(fd, back, 4) != 4) Fail("an end");
  if (Fill() == 0) Fail("no room");
  puts("filled");
  fflush(stdout);
  usleep(500'000);  // it is looked at
  Carry(fd);
  Carry(silent);
  for (size_t i = 0; i < kLater; i++) {
    const int later = Dial(port);
    Carry(later);
    close(later);
  }
  close(silent);
  close(fd);
  puts("each byte right");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (strcmp(argv[1], "serve") == 0)
    Serve(argv[2]);
  else
    Connect(argv[2]);
}
