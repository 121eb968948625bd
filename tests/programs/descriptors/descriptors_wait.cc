// SPDX-License-Identifier: Apache-2.0
// descriptors_wait.cc - a number goes away under poll() or select(). The kernel's answers are not
// what one would think: the call sleeps on what it was made for, and looks at the number again
// when it wakes. And several threads that wait for one connection.
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#include "descriptors.h"

namespace descriptors::wait_cases {
namespace {

enum class Kind { kPoll, kPpoll, kSelect, kPselect };
constexpr Kind kKinds[] = {Kind::kPoll, Kind::kPpoll, Kind::kSelect, Kind::kPselect};
enum class Away { kCloseOnly, kClose, kDup2 };

// -1, or the events: of select 1 is "readable".
long WaitBy(Kind kind, int fd, int ms) {
  pollfd one{fd, POLLIN, 0};
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  timeval tv{ms / 1000, ms % 1000 * 1000};
  const timespec ts{ms / 1000, ms % 1000 * 1000000};
  int n = -1;
  switch (kind) {
    case Kind::kPoll:
      n = poll(&one, 1, ms);
      break;
    case Kind::kPpoll:
      n = ppoll(&one, 1, &ts, nullptr);
      break;
    case Kind::kSelect:
      n = select(fd + 1, &set, nullptr, nullptr, &tv);
      break;
    case Kind::kPselect:
      n = pselect(fd + 1, &set, nullptr, nullptr, &ts, nullptr);
      break;
  }
  if (n < 0) return -1;
  if (kind == Kind::kPoll || kind == Kind::kPpoll) return n * 1000 + one.revents;
  return n * 1000 + (n > 0 && FD_ISSET(fd, &set) ? 1 : 0);
}

void WaitWhile(Kind kind, Away how) {
  const Conn old = Connected();
  Blocked call([&] { return WaitBy(kind, old.fd, 1200); });
  call.AwaitAsleep("the call");
  Conn fresh;
  if (how == Away::kDup2) {
    fresh = Connected();
    Expect("dup2", dup2(fresh.fd, old.fd) == old.fd);
    close(fresh.fd);
    fresh.fd = old.fd;
  } else {
    Say("close: %s", Outcome(close(old.fd)).c_str());
    if (how == Away::kClose) fresh = ConnectedAs(old.fd);
  }
  ExpectQuiet("the connection lives as long as the call", old.peer);
  if (fresh.fd >= 0) {
    PeerSend(fresh.peer, "fresh");
    call.AwaitAsleep("the call, while another connection has its number");
    Say("the other connection: %s", Text(fresh.fd).c_str());
  }
  PeerSend(old.peer, "old");
  call.Join("the call");
  SayGot("the old peer", old.peer);
  if (fresh.fd >= 0) {
    close(fresh.fd);
    SayGot("the other peer", fresh.peer);
  }
}
void PollCloseOnly() {
  for (const Kind kind : kKinds) WaitWhile(kind, Away::kCloseOnly);
}
void PollClose() {
  for (const Kind kind : kKinds) WaitWhile(kind, Away::kClose);
}
void PollDup2() {
  for (const Kind kind : kKinds) WaitWhile(kind, Away::kDup2);
}

// Nothing comes: the call ends by its time, and with it the connection.
void PollCloseTimeout() {
  for (const Kind kind : kKinds) {
    const Conn old = Connected();
    Blocked call([&] { return WaitBy(kind, old.fd, 400); });
    call.AwaitAsleep("the call");
    close(old.fd);
    ExpectQuiet("the connection lives as long as the call", old.peer);
    call.Join("the call");
    SayGot("the old peer", old.peer);
  }
}

// Two sockets in one call; the number of one goes away, the other reports.
void PollCloseOther() {
  const Conn old = Connected(), other = Connected();
  int ready[2] = {};
  Blocked call([&] {
    pollfd both[2] = {{old.fd, POLLIN, 0}, {other.fd, POLLIN, 0}};
    const long n = poll(both, 2, 5000);
    for (int i = 0; i < 2; i++) ready[i] = both[i].revents;
    return n;
  });
  call.AwaitAsleep("poll");
  close(old.fd);
  call.AwaitAsleep("poll, with one of its numbers closed");
  PeerSend(other.peer, "x");
  call.Join("poll");
  Say("events: %d and %d", ready[0], ready[1]);
  SayGot("the old peer", old.peer);
  Say("the other connection: %s", Text(other.fd).c_str());
}

// A listener's number goes away under poll(), and the listener lives on in it: only a connection of
// its own, or the time, makes poll() look at the number again.
void WaitOnListener(Kind kind, Away how, bool dialled) {
  uint16_t port;
  const int listener = Listen(&port, 10);
  Blocked call([&] { return WaitBy(kind, listener, 1200); });
  call.AwaitAsleep("the call");
  Conn fresh;
  if (how == Away::kDup2) {
    fresh = Connected();
    Expect("dup2", dup2(fresh.fd, listener) == listener);
    close(fresh.fd);
    fresh.fd = listener;
  } else {
    close(listener);
  }
  if (dialled) {
    const int peer = PeerDial(port);
    Say("dial: %s", Outcome(peer >= 0 ? 0 : -1, -peer).c_str());
  }
  if (fresh.fd >= 0) {
    call.AwaitAsleep("the call, while a connection has its number");
    PeerSend(fresh.peer, "fresh");
  }
  call.Join("the call");
  if (fresh.fd >= 0) {
    Say("the connection: %s", Text(fresh.fd).c_str());
    close(fresh.fd);
  }
  const int late = PeerDial(port);
  Say("dial again: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
}
void PollListener() {
  WaitOnListener(Kind::kPoll, Away::kCloseOnly, true);
  WaitOnListener(Kind::kSelect, Away::kCloseOnly, true);
}
void PollListenerDup2() {
  WaitOnListener(Kind::kPoll, Away::kDup2, true);
  WaitOnListener(Kind::kPoll, Away::kDup2, false);
}
void PollListenerTimeout() { WaitOnListener(Kind::kPoll, Away::kCloseOnly, false); }

// ---- several threads in blocking calls on one connection: what one of them was woken for another
// has taken. To the one that comes too late nothing has happened: its call goes on, and neither
// says that it would block nor that its time is over.

constexpr int kRounds = 1500;

enum class By { kRecv, kPoll };

// Until the end of the stream; bytes that came, or -1 after a call that has ended without a reason.
long TakeAll(int fd, By by) {
  long taken = 0;
  for (char byte;;) {
    if (by == By::kPoll) {
      pollfd one{fd, POLLIN, 0};
      if (poll(&one, 1, -1) != 1) return -1;
    }
    const ssize_t n = recv(fd, &byte, 1, by == By::kPoll ? MSG_DONTWAIT : 0);
    if (n == 0) return taken;
    if (n == 1) taken++;
    if (n < 0 && (by != By::kPoll || errno != EAGAIN)) return -1;
  }
}

void Crowd(By by) {
  const Conn c = Connected();
  long taken[3] = {};
  const auto take = [&](long& mine) {
    mine = TakeAll(c.fd, by);
    return mine < 0 ? -1L : 0L;
  };
  Blocked one([&] { return take(taken[0]); }), two([&] { return take(taken[1]); }),
      three([&] { return take(taken[2]); });
  for (int i = 0; i < kRounds; i++) PeerSend(c.peer, "x");
  PeerShut(c.peer);
  for (Blocked* each : {&one, &two, &three}) each->Join("a thread");
  Say("bytes: %ld", taken[0] + taken[1] + taken[2]);
}
void CrowdRecv() { Crowd(By::kRecv); }
void CrowdPoll() { Crowd(By::kPoll); }

void CrowdSend() {
  constexpr size_t kBytes = 40000;
  constexpr int kEach = 100;
  const std::string block(kBytes, 'x');  // whichever is first, the stream is the same
  const Conn c = Connected();
  const auto send_all = [&] {
    for (int i = 0; i < kEach; i++)
      if (send(c.fd, block.data(), kBytes, 0) != static_cast<ssize_t>(kBytes)) return -1L;
    return 0L;
  };
  Blocked one(send_all), two(send_all), three(send_all);
  const Got got = PeerGet(c.peer, 3 * kEach * kBytes, 15000);
  for (Blocked* each : {&one, &two, &three}) each->Join("a thread");
  Say("bytes: %llu %016llx", static_cast<unsigned long long>(got.bytes),
      static_cast<unsigned long long>(got.hash));
}

}  // namespace

const Case kAll[] = {{"poll_close_only", PollCloseOnly},
                     {"poll_close", PollClose},
                     {"poll_dup2", PollDup2},
                     {"poll_close_timeout", PollCloseTimeout},
                     {"poll_close_other", PollCloseOther},
                     {"poll_listener", PollListener},
                     {"poll_listener_dup2", PollListenerDup2},
                     {"poll_listener_timeout", PollListenerTimeout},
                     {"crowd_recv", CrowdRecv},
                     {"crowd_poll", CrowdPoll},
                     {"crowd_send", CrowdSend},
                     {nullptr, nullptr}};

}  // namespace descriptors::wait_cases
