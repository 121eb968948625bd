// SPDX-License-Identifier: Apache-2.0
// reopen.cc - freopen() of what is a connection: standard files, and a FILE of fdopen().
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void Check(bool good, const char* what) {
  if (good) return;
  fprintf(stderr, "wrong: %s\n", what);
  _exit(1);
}

struct Pair {
  Pair() {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&at);
    socklen_t len = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    Check(bind(listener, name, len) == 0 && listen(listener, 1) == 0 &&
              getsockname(listener, name, &len) == 0,
          "listen");
    peer = socket(AF_INET, SOCK_STREAM, 0);
    Check(connect(peer, name, len) == 0, "connect");
    own = accept(listener, nullptr, nullptr);
    Check(own >= 0, "accept");
    close(listener);
  }
  int own, peer;
};

// As a daemon does that a super-server has started.
void StandardFiles() {
  const Pair pair;
  const pid_t child = fork();
  if (child == 0) {
    close(pair.peer);
    dup2(pair.own, 0);
    dup2(pair.own, 1);
    close(pair.own);
    Check(freopen("/dev/null", "r", stdin) != nullptr, "freopen of stdin");
    Check(freopen("/dev/null", "w", stdout) != nullptr, "freopen of stdout");
    char byte = 0;
    Check(read(0, &byte, 1) == 0, "0 is /dev/null");
    Check(write(1, "nowhere", 7) == 7 && fileno(stdin) == 0 && getchar() == EOF, "so is stdin");
    _exit(0);
  }
  close(pair.own);
  pollfd one = {pair.peer, POLLIN, 0};
  char byte = 0;
  Check(poll(&one, 1, 20000) == 1 && recv(pair.peer, &byte, 1, 0) == 0, "the connection ends");
  int status = -1;
  Check(waitpid(child, &status, 0) == child && status == 0, "the child's end");
}

void FileOfFdopen(const char* path) {
  const Pair pair;
  FILE* const file = fdopen(pair.own, "w");
  Check(file != nullptr && fprintf(file, "before") == 6, "fdopen");
  Check(freopen(path, "w", file) == file && fileno(file) == pair.own, "freopen to write");
  Check(fprintf(file, "after") == 5 && fflush(file) == 0, "fprintf");
  char text[20] = "";
  Check(recv(pair.peer, text, sizeof text, MSG_WAITALL) == 6 && strcmp(text, "before") == 0,
        "what was written before, and the end");
  Check(freopen(path, "r", file) == file, "freopen to read");
  Check(fgets(text, sizeof text, file) != nullptr && strcmp(text, "after") == 0, "fgets");
  Check(freopen("/no/such/file", "r", file) == nullptr, "freopen of nothing");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  StandardFiles();
  FileOfFdopen(argv[1]);
  puts("as on Linux");
}
