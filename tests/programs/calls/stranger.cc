// SPDX-License-Identifier: Apache-2.0
// stranger.cc - a static program, which no preloaded library gets into: what holds a descriptor
// that was passed on.
//
//   stranger echo       standard input to standard output until the end
//   stranger say TEXT   writes TEXT to standard output
//   stranger take N     reads N bytes, and leaves the rest unread
//   stranger receive    descriptors come over the Unix socket that is standard input: echoes on
//   each stranger accept N   standard input is a listener: accepts N connections, echoes on each in
//   turn stranger hold       until it is killed

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kBuffer = 65536;
char buffer[kBuffer];

int Echo(int from, int to) {
  for (;;) {
    const ssize_t n = read(from, buffer, kBuffer);
    if (n <= 0) return n == 0 ? 0 : 1;
    for (ssize_t done = 0; done < n;) {
      const ssize_t put = write(to, buffer + done, static_cast<size_t>(n - done));
      if (put <= 0) return 1;
      done += put;
    }
  }
}

int ReceiveAll() {
  for (;;) {
    char byte;
    iovec piece{&byte, 1};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    const ssize_t got = recvmsg(0, &message, 0);
    if (got <= 0) return got == 0 ? 0 : 1;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return 1;
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    if (Echo(fd, fd) != 0) return 1;
    close(fd);
  }
}

int Take(size_t bytes) {
  while (bytes != 0) {
    const ssize_t n = read(0, buffer, bytes < kBuffer ? bytes : kBuffer);
    if (n <= 0) return 1;
    bytes -= static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "echo") == 0) return Echo(0, 1);
  if (strcmp(what, "receive") == 0) return ReceiveAll();
  if (strcmp(what, "take") == 0 && argc == 3) return Take(strtoul(argv[2], nullptr, 10));
  if (strcmp(what, "say") == 0 && argc == 3) {
    const size_t n = strlen(argv[2]);
    return write(1, argv[2], n) == static_cast<ssize_t>(n) ? 0 : 1;
  }
  if (strcmp(what, "accept") == 0 && argc == 3) {
    for (int left = atoi(argv[2]); left > 0; --left) {
      const int fd = accept(0, nullptr, nullptr);
      if (fd < 0 || Echo(fd, fd) != 0) return 1;
      close(fd);
    }
    return 0;
  }
  if (strcmp(what, "hold") == 0) {
    for (;;) pause();
  }
  return 2;
}
