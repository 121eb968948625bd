// SPDX-License-Identifier: Apache-2.0
// descriptors_jump.cc - a blocked call that never returns: siglongjmp() out of a handler,
// pthread_cancel(). It holds nothing any more: close() is the last one's, and the peer sees it.
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "descriptors.h"

namespace descriptors::jump_cases {
namespace {

sigjmp_buf out;
void Jump(int) { siglongjmp(out, 1); }

enum class Kind { kRecv, kPeek, kSend, kPoll, kSelect, kEpoll };
struct Named {
  Kind kind;
  const char* name;
};
constexpr Named kKinds[] = {{Kind::kRecv, "recv"},     {Kind::kPeek, "recv(MSG_PEEK)"},
                            {Kind::kSend, "send"},     {Kind::kPoll, "poll"},
                            {Kind::kSelect, "select"}, {Kind::kEpoll, "epoll_wait"}};

std::string bulk;

long CallBy(Kind kind, int fd, int set) {
  static thread_local char text[32];
  pollfd one{fd, POLLIN, 0};
  fd_set readable;
  FD_ZERO(&readable);
  FD_SET(fd, &readable);
  epoll_event got;
  switch (kind) {
    case Kind::kRecv:
      return recv(fd, text, sizeof text, 0);
    case Kind::kPeek:
      return recv(fd, text, sizeof text, MSG_PEEK);
    case Kind::kSend:
      return send(fd, bulk.data(), bulk.size(), 0);
    case Kind::kPoll:
      return poll(&one, 1, 15000);
    case Kind::kSelect:
      return select(fd + 1, &readable, nullptr, nullptr, nullptr);
    case Kind::kEpoll:
      return epoll_wait(set, &got, 1, 15000);
  }
  return -1;
}

// This thread blocks in `call`; another one sends it the signal then.
template <typename Call>
void JumpOutOf(Call call) {
  const pthread_t self = pthread_self();
  const pid_t tid = Tid();
  Blocked helper([&]() -> long {
    AwaitAsleep(tid);
    return pthread_kill(self, SIGUSR1);
  });
  if (sigsetjmp(out, 1) == 0) {
    call();
    Expect("the handler jumps", false);
  }
  helper.JoinQuietly();
}

void SayEnd(const char* name, int peer, Kind kind) {
  const Got got = PeerGet(peer, 1 << 30, 5000);
  Say("%s: the peer sees %c%s", name, got.state,
      kind == Kind::kSend || got.bytes == 0 ? "" : ", and bytes");
}

void JumpThenClose() {
  bulk = Pattern(16 << 20, 3);
  Install(SIGUSR1, Jump, 0);
  for (const Named& k : kKinds) {
    const Conn c = Connected();
    const int set = epoll_create1(0);
    epoll_event ev{EPOLLIN, {}};
    epoll_ctl(set, EPOLL_CTL_ADD, c.fd, &ev);
    JumpOutOf([&] { return CallBy(k.kind, c.fd, set); });
    Expect("close", close(c.fd) == 0 && close(set) == 0);
    SayEnd(k.name, c.peer, k.kind);
  }
}

// The connection is as good as before.
void JumpThenGoOn() {
  Install(SIGUSR1, Jump, SA_RESTART);
  for (int round = 0; round < 20; round++) {
    const Conn c = Connected();
    char text[32];
    JumpOutOf([&] { return recv(c.fd, text, sizeof text, 0); });
    PeerSend(c.peer, "x");
    Expect("recv goes on", recv(c.fd, text, sizeof text, 0) == 1);
    Expect("send goes on", send(c.fd, "y", 1, 0) == 1);
    close(c.fd);
    const Got got = PeerGet(c.peer, 100, 5000);
    Expect("the peer has it", got.bytes == 1 && got.state == 'e');
  }
}

void JumpOutOfAccept() {
  Install(SIGUSR1, Jump, 0);
  for (int round = 0; round < 3; round++) {
    uint16_t port;
    const int listener = Listen(&port, 10);
    JumpOutOf([&] { return accept(listener, nullptr, nullptr); });
    if (round == 0) {
      const int peer = PeerDial(port);
      const int fd = accept(listener, nullptr, nullptr);
      Expect("accept goes on", peer >= 0 && fd >= 0);
      close(fd);
      SayGot("the peer", peer);
    }
    close(listener);
    const int late = PeerDial(port);
    Say("dial after close: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
  }
}

void JumpOutOfConnect() {
  Install(SIGUSR1, Jump, 0);
  const uint16_t port = PeerListen(0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fill[20], n = 0;
  for (; n < 20; n++) {
    fill[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    pollfd one{fill[n], POLLOUT, 0};
    if (connect(fill[n], reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 &&
        poll(&one, 1, 300) == 0)
      break;
  }
  Expect("the backlog is full", n < 20);
  const int fd = Socket();
  JumpOutOf([&] { return connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to); });
  Expect("close", close(fd) == 0);
  const Conn fresh = ConnectedAs(fd);
  ExpectQuiet("the number is another's", fresh.peer);
}

// ---- cancellation
void CancelThenClose(int type, bool close_first) {
  bulk = Pattern(16 << 20, 3);
  for (const Named& k : kKinds) {
    const Conn c = Connected();
    const int set = epoll_create1(0);
    epoll_event ev{EPOLLIN, {}};
    epoll_ctl(set, EPOLL_CTL_ADD, c.fd, &ev);
    Blocked call([&] {
      pthread_setcanceltype(type, nullptr);
      return CallBy(k.kind, c.fd, set);
    });
    call.AwaitAsleep(k.name);
    if (close_first) Expect("close", close(c.fd) == 0 && close(set) == 0);
    // What a thread has that sends is read, or not, as the two processes run.
    if (close_first && k.kind != Kind::kSend && k.kind != Kind::kEpoll)
      ExpectQuiet("the call holds it", c.peer);
    call.Cancel();
    call.JoinCancelled(k.name);
    if (!close_first) Expect("close", close(c.fd) == 0 && close(set) == 0);
    SayEnd(k.name, c.peer, k.kind);
  }
}
void CancelDeferred() { CancelThenClose(PTHREAD_CANCEL_DEFERRED, false); }
void CancelAsynchronous() { CancelThenClose(PTHREAD_CANCEL_ASYNCHRONOUS, false); }
void CancelAfterClose() { CancelThenClose(PTHREAD_CANCEL_DEFERRED, true); }
void CancelAsynchronousAfterClose() { CancelThenClose(PTHREAD_CANCEL_ASYNCHRONOUS, true); }

// A thread ends by itself in a handler.
void ExitInHandler() {
  Install(
      SIGUSR1, [](int) { pthread_exit(PTHREAD_CANCELED); }, 0);
  const Conn c = Connected();
  Blocked call([&] { return CallBy(Kind::kRecv, c.fd, -1); });
  call.AwaitAsleep("recv");
  call.Signal(SIGUSR1);
  call.JoinCancelled("recv");
  Expect("close", close(c.fd) == 0);
  SayEnd("recv", c.peer, Kind::kRecv);
}

}  // namespace

const Case kAll[] = {{"jump_then_close", JumpThenClose},
                     {"jump_then_go_on", JumpThenGoOn},
                     {"jump_out_of_accept", JumpOutOfAccept},
                     {"jump_out_of_connect", JumpOutOfConnect},
                     {"cancel_deferred", CancelDeferred},
                     {"cancel_asynchronous", CancelAsynchronous},
                     {"cancel_after_close", CancelAfterClose},
                     {"cancel_asynchronous_after_close", CancelAsynchronousAfterClose},
                     {"exit_in_handler", ExitInHandler},
                     {nullptr, nullptr}};

}  // namespace descriptors::jump_cases
