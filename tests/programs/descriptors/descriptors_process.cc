// SPDX-License-Identifier: Apache-2.0
// descriptors_process.cc - a child that is made while a call holds what its number no longer means
// has nothing of it; and close() as a Java VM does it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#include "descriptors.h"

extern char** environ;

namespace descriptors::process_cases {
namespace {

// A child that lives until `End`, made in one of these ways.
enum class Birth { kFork, kExec, kSpawn };
struct Child {
  pid_t pid = -1;
  int hold = -1;  // closed: the child ends

  explicit Child(Birth how) {
    int p[2];
    if (pipe2(p, O_CLOEXEC) != 0) Die("pipe");
    hold = fcntl(p[1], F_DUPFD_CLOEXEC, 100);
    const int in = fcntl(p[0], F_DUPFD_CLOEXEC, 100);
    close(p[0]), close(p[1]);
    int up[2];  // a forked child says that it is there
    if (pipe2(up, O_CLOEXEC) != 0) Die("pipe");
    char* argv[] = {const_cast<char*>(Self()), const_cast<char*>("hold"), nullptr};
    if (how == Birth::kSpawn) {
      posix_spawn_file_actions_t actions;
      posix_spawn_file_actions_init(&actions);
      posix_spawn_file_actions_adddup2(&actions, in, 0);
      if (posix_spawn(&pid, Self(), &actions, nullptr, argv, environ) != 0) Die("posix_spawn");
      posix_spawn_file_actions_destroy(&actions);
    } else if ((pid = fork()) == 0) {
      close(hold);
      if (how == Birth::kFork && write(up[1], "x", 1) != 1) _exit(1);
      if (how == Birth::kExec) {
        dup2(in, 0);
        execv(Self(), argv);
        _exit(127);
      }
      char c;
      while (read(in, &c, 1) > 0) {
      }
      _exit(0);
    }
    close(in);
    char there;
    if (how == Birth::kFork && read(up[0], &there, 1) != 1) Die("the child");
    close(up[0]), close(up[1]);
  }
  ~Child() {
    close(hold);
    int status = -1;
    waitpid(pid, &status, 0);
    Expect("the child ends", WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
};

void ChildWhile(Birth how) {
  for (const bool reused : {false, true}) {
    const Conn old = Connected();
    char text[32];
    Blocked call([&] { return recv(old.fd, text, sizeof text, 0); });
    call.AwaitAsleep("recv");
    close(old.fd);
    Conn fresh;
    if (reused) fresh = ConnectedAs(old.fd);
    {
      Child child(how);
      ExpectQuiet("the call holds it", old.peer);
      PeerSend(old.peer, "x");
      call.Join("recv");
      SayGot("the old peer, while the child lives", old.peer);
      if (reused) {
        close(fresh.fd);
        ExpectQuiet("the child has the other one", fresh.peer);
      }
    }
    if (reused) SayGot("the other peer, when the child has ended", fresh.peer);
  }
}
void ForkWhile() { ChildWhile(Birth::kFork); }
void ExecWhile() { ChildWhile(Birth::kExec); }
void SpawnWhile() { ChildWhile(Birth::kSpawn); }

// The same for the set that epoll_wait waits on, and for a listener under accept().
void ForkWhileAccept() {
  uint16_t port;
  const int listener = Listen(&port, 10);
  Blocked call([&] { return accept(listener, nullptr, nullptr) >= 0 ? 0 : -1; });
  call.AwaitAsleep("accept");
  close(listener);
  Child child(Birth::kFork);
  Say("dial: %s", PeerDial(port) >= 0 ? "connected" : "refused");
  call.Join("accept");
  const int late = PeerDial(port);
  Say("dial, while the child lives: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
}
void ForkWhileEpoll() {
  const Conn old = Connected();
  const int set = epoll_create1(0);
  epoll_event ev{EPOLLIN, {}};
  epoll_ctl(set, EPOLL_CTL_ADD, old.fd, &ev);
  epoll_event got;
  Blocked call([&] { return epoll_wait(set, &got, 1, 10000); });
  call.AwaitAsleep("epoll_wait");
  close(set);
  Child child(Birth::kFork);
  call.AwaitAsleep("epoll_wait, whose number is closed");
  PeerSend(old.peer, "x");
  call.Join("epoll_wait");
  Say("the connection: %s", Text(old.fd).c_str());
}

// ---- as a Java VM closes a socket: a descriptor whose other end is closed goes over the number,
// then a signal without SA_RESTART wakes the blocked threads.
int Marker() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) Die("socketpair");
  const int high = fcntl(ends[0], F_DUPFD, 100);
  close(ends[0]), close(ends[1]);
  return high;
}

enum class In { kRecv, kPeek, kAccept, kSend, kPoll };

void JvmClose(In in, const char* name) {
  const int wake = SIGRTMAX - 2;
  Install(
      wake, [](int) {}, 0);
  const std::string bulk = Pattern(16 << 20, 4);
  const int marker = Marker();
  uint16_t port = 0;
  Conn c;
  if (in == In::kAccept) {
    c.fd = Listen(&port, 10);
  } else {
    c = Connected();
  }
  char text[32];
  pollfd one{c.fd, POLLIN, 0};
  Blocked call([&]() -> long {
    switch (in) {
      case In::kRecv:
        return recv(c.fd, text, sizeof text, 0);
      case In::kPeek:
        return recv(c.fd, text, sizeof text, MSG_PEEK);
      case In::kAccept:
        return accept(c.fd, nullptr, nullptr);
      case In::kSend:
        return send(c.fd, bulk.data(), bulk.size(), 0) >= 0 ? 0 : -1;
      case In::kPoll:
        return poll(&one, 1, 10000);
    }
    return -1;
  });
  call.AwaitAsleep(name);
  Expect("dup2", dup2(marker, c.fd) == c.fd);
  call.AwaitAsleep(name);
  call.Signal(wake);
  call.Join(name);
  Say("recv by the number: %s", Outcome(recv(c.fd, text, sizeof text, 0)).c_str());
  if (c.peer >= 0) {
    const Got got = PeerGet(c.peer, 1 << 30, 5000);
    Say("the peer: %s, then %c", got.bytes != 0 ? "bytes" : "nothing", got.state);
  } else {
    const int late = PeerDial(port);
    Say("dial: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
  }
  Expect("close", close(c.fd) == 0);
  const Conn fresh = ConnectedAs(c.fd);
  close(fresh.fd);
  close(marker);
}
void JvmAll() {
  JvmClose(In::kRecv, "recv");
  JvmClose(In::kPeek, "recv(MSG_PEEK)");
  JvmClose(In::kAccept, "accept");
  JvmClose(In::kSend, "send");
  JvmClose(In::kPoll, "poll");
}

}  // namespace

const Case kAll[] = {{"fork_while_recv", ForkWhile},
                     {"exec_while_recv", ExecWhile},
                     {"spawn_while_recv", SpawnWhile},
                     {"fork_while_accept", ForkWhileAccept},
                     {"fork_while_epoll", ForkWhileEpoll},
                     {"jvm_close", JvmAll},
                     {nullptr, nullptr}};

}  // namespace descriptors::process_cases
