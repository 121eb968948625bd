// narrow.cc - connections of processes with few descriptors: narrow serve|connect PORT LEFT
// SPDX-License-Identifier: Apache-2.0
//
// Each call is named with its result, so that two runs can be compared. When all is done, as many
// numbers can be opened as before. `lower` in place of LEFT: the limit is lowered to what is open
// when the connection is there. `=LEFT`: the limit is the one that the process has been given, and
// there was a socket before.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace {

constexpr rlim_t kNumbers = 64;
std::vector<int> fillers;

int Say(const char* what, int r) {
  if (r < 0)
    printf("%s: %s\n", what, strerrorname_np(errno));
  else
    printf("%s: ok\n", what);
  return r;
}

// Takes all numbers there are; then so many are free.
void Fill(size_t left) {
  for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) fillers.push_back(fd);
  for (; left != 0 && !fillers.empty(); left--) {
    close(fillers.back());
    fillers.pop_back();
  }
}

size_t CountFree() {
  const size_t had = fillers.size();
  Fill(0);
  const size_t free = fillers.size() - had;
  for (size_t i = 0; i < free; i++) {
    close(fillers.back());
    fillers.pop_back();
  }
  return free;
}

// A call that fails for want of a number is made again with one more.
template <typename Call>
int WithOneMore(const char* what, Call call) {
  int r = Say(what, call());
  for (; r < 0 && errno == EMFILE && !fillers.empty(); r = Say(what, call())) {
    close(fillers.back());
    fillers.pop_back();
  }
  return r;
}

void Lower() {
  const int next = dup(0);
  close(next);
  const rlimit limit = {static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
  Say("setrlimit", setrlimit(RLIMIT_NOFILE, &limit));
}

void Watch(int epfd, int fd, const char* what) {
  epoll_event ev = {};
  ev.events = EPOLLIN;
  ev.data.fd = fd;
  Say(what, epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev));
}

void Await(int epfd) {
  epoll_event ev = {};
  const int n = epoll_wait(epfd, &ev, 1, 20000);
  printf("event: %s\n", n == 1 && (ev.events & EPOLLIN) != 0 ? "in" : "none");
}

// What each side does with its connection: waits in an event set, by poll() and in read().
void Exchange(int fd, int epfd, bool begins) {
  char text[6] = "hello";
  Watch(epfd, fd, "watch connection");
  for (int round = 0; round < 3; round++) {
    if (begins) Say("write", static_cast<int>(write(fd, text, 5)));
    pollfd p = {fd, POLLIN, 0};
    if (round == 0) Await(epfd);
    if (round == 1) printf("poll: %d\n", poll(&p, 1, 20000));
    memset(text, 0, sizeof text);
    Say("read", static_cast<int>(read(fd, text, 5)));
    printf("text: %s\n", text);
    if (!begins) Say("write", static_cast<int>(write(fd, text, 5)));
  }
}

int Connection(bool serves, uint16_t port, int epfd) {
  const int fd = WithOneMore("socket", [] { return socket(AF_INET, SOCK_STREAM, 0); });
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  auto* const sa = reinterpret_cast<sockaddr*>(&a);
  if (!serves) {
    Say("connect", connect(fd, sa, sizeof a));
    return fd;
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  Say("bind", bind(fd, sa, sizeof a));
  Say("listen", listen(fd, 8));
  Watch(epfd, fd, "watch listener");
  Await(epfd);
  const int got = WithOneMore("accept", [fd] { return accept(fd, nullptr, nullptr); });
  close(fd);
  return got;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool serves = strcmp(argv[1], "serve") == 0, lowers = strcmp(argv[3], "lower") == 0;
  const bool late = argv[3][0] == '=';
  const rlimit few = {kNumbers, kNumbers};
  if (!lowers && !late) setrlimit(RLIMIT_NOFILE, &few);
  const int epfd = epoll_create1(0);
  const size_t before = lowers ? 0 : CountFree();
  if (late) close(socket(AF_INET, SOCK_STREAM, 0));
  if (!lowers) Fill(static_cast<size_t>(atoi(argv[3] + (late ? 1 : 0))));
  const int fd = Connection(serves, static_cast<uint16_t>(atoi(argv[2])), epfd);
  if (lowers) Lower();
  Exchange(fd, epfd, !serves);
  if (lowers) printf("socket at the limit: %d\n", socket(AF_INET, SOCK_STREAM, 0));
  close(fd);
  for (const int filler : fillers) close(filler);
  fillers.clear();
  if (!lowers) printf("free: %s\n", CountFree() == before ? "as before" : "fewer");
  return 0;
}
