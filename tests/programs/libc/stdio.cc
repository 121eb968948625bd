// stdio.cc - a connection becomes the standard input, output and error of a program that runs on.
// SPDX-License-Identifier: Apache-2.0
//
// `stdio PORT here|child|exec`: connects to a server that sends each line back in capitals, puts
// the connection on 0, 1 and 2 (in itself, in a forked child, or for its own image once more), and
// talks to it by all that C's library, and with STDIO_STREAMS C++'s, writes and reads. What has
// come back it prints where its output was before.

#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#ifdef STDIO_STREAMS
#include <iostream>
#include <string>
#endif

namespace {

FILE* kept_elsewhere;  // as programs keep their log's
constexpr int kSaved = 50;

[[noreturn]] void Die(const char* what) {
  dprintf(kSaved, "%s: %s\n", what, strerror(errno));
  _exit(1);
}

void Say(const char* line) {
  if (write(kSaved, line, strlen(line)) < 0) _exit(1);
}

int Connect(const char* port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(atoi(port)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) Die("connect");
  return fd;
}

// A line for each way to write.
void Talk() {
  printf("printf %d\n", 1);
  puts("puts");
  fputs("fputs\n", stdout);
  putchar('c');
  putchar('\n');
  if (fflush(stdout) != 0) Die("fflush");
  errno = ENOENT;
  perror("perror");
  psignal(SIGTERM, "psignal");
  fprintf(stderr, "fprintf\n");
  dprintf(1, "dprintf\n");
  if (write(1, "write\n", 6) != 6) Die("write");
#ifdef STDIO_STREAMS
  std::cout << "cout " << 7 << std::endl;
  std::cerr << "cerr\n";
#endif
}

// Each line that comes back, by turns in each way to read.
void Listen() {
  char line[200];
  int c;
  for (size_t n = 0; (c = getchar()) != EOF && n < sizeof line - 1;) {
    line[n++] = static_cast<char>(c);
    line[n] = 0;
    if (c == '\n') break;
  }
  Say(line);
  if (scanf("%199[^\n]", line) == 1) Say(line);
  (void)!fread(line, 1, 1, stdin);
  Say("\n");
  while (fgets(line, sizeof line, stdin) != nullptr) Say(line);
  Say(feof(stdin) ? "end\n" : "error\n");
}

void Turn(int fd) {
  printf("early ");  // waits in the buffer, and goes where 1 leads when it is written
  if (dup2(fd, 0) != 0 || dup2(fd, 1) != 1 || dup2(fd, 2) != 2) Die("dup2");
  if (fd > 2) close(fd);
}

void Meet() {
  Talk();
  if (shutdown(1, SHUT_WR) != 0) Die("shutdown");
  Listen();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char* where = argv[2];
  if (strcmp(where, "image") == 0) {
    Meet();
    return 0;
  }
  if (dup2(1, kSaved) != kSaved) return 1;
  kept_elsewhere = stdout;
  const int fd = Connect(argv[1]);
  if (strcmp(where, "exec") == 0) {
    Turn(fd);
    fflush(stdout);
    execl("/proc/self/exe", "stdio", argv[1], "image", nullptr);
    Die("exec");
  }
  const pid_t child = strcmp(where, "child") == 0 ? fork() : 0;
  if (child != 0) {
    int status = -1;
    waitpid(child, &status, 0);
    close(fd);
    printf("child %d\n", status);
    return 0;
  }
  Turn(fd);
  Meet();
  dup2(kSaved, 1);
  printf("back\n");
  fprintf(kept_elsewhere, "kept\n");
  fflush(nullptr);
  _exit(0);
}
