// SPDX-License-Identifier: Apache-2.0
// descriptors_accept.cc - a number goes away under accept() or connect().
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "descriptors.h"

namespace descriptors::accept_cases {
namespace {

enum class Away { kClose, kDup2, kDup3 };

// Takes the number away; another listener has it then, whose port this returns.
uint16_t TakeAway(Away how, int number) {
  uint16_t port;
  if (how == Away::kClose) {
    Say("close: %s", Outcome(close(number)).c_str());
    ExpectFree(number);
    MoveTo(Listen(&port, 10), number);
    return port;
  }
  const int other = Listen(&port, 10);
  const int r = how == Away::kDup2 ? dup2(other, number) : dup3(other, number, O_CLOEXEC);
  Expect("dup", r == number);
  close(other);
  return port;
}

void AcceptWhile(Away how) {
  uint16_t old_port;
  const int listener = Listen(&old_port, 10);
  Blocked call([&] { return accept(listener, nullptr, nullptr) >= 0 ? 0 : -1; });
  call.AwaitAsleep("accept");
  const uint16_t port = TakeAway(how, listener);
  const int peer = PeerDial(port);
  Expect("the other listener is dialled", peer >= 0);
  call.AwaitAsleep("accept, while another listener has its number");
  const int fresh = accept(listener, nullptr, nullptr);
  Expect("the other listener has its own client", fresh >= 0);
  Expect("its bytes", send(fresh, "fresh", 5, 0) == 5);
  Say("the other peer: %s", PeerGet(peer, 5, 5000).text.c_str());
  const int old_peer = PeerDial(old_port);
  Say("to the old listener: %s", Outcome(old_peer >= 0 ? 0 : -1, -old_peer).c_str());
  call.Join("accept");
  const int late = PeerDial(old_port);
  Say("to the old listener, after accept: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
  const int again = PeerDial(port);
  Say("to the other listener: %s", Outcome(again >= 0 ? 0 : -1, -again).c_str());
}
void AcceptClose() { AcceptWhile(Away::kClose); }
void AcceptDup2() { AcceptWhile(Away::kDup2); }
void AcceptDup3() { AcceptWhile(Away::kDup3); }

// A client that comes between: the number is gone, the listener is not.
void AcceptCloseOnly() {
  uint16_t port;
  const int listener = Listen(&port, 10);
  int got = -1;
  Blocked call([&] {
    got = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    return got >= 0 ? 0 : -1;
  });
  call.AwaitAsleep("accept");
  Say("close: %s", Outcome(close(listener)).c_str());
  call.AwaitAsleep("accept, whose number is closed");
  Say("close again: %s", Outcome(close(listener)).c_str());
  const int peer = PeerDial(port);
  Say("dial: %s", Outcome(peer >= 0 ? 0 : -1, -peer).c_str());
  call.Join("accept");
  // (Which number it has is not compared: the kernel takes one before it waits.)
  Expect("its bytes", send(got, "hello", 5, 0) == 5);
  Say("the peer: %s", PeerGet(peer, 5, 5000).text.c_str());
  close(got);
  SayGot("the peer, then", peer);
  const int late = PeerDial(port);
  Say("dial again: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
}

void AcceptShutdownByCopy() {
  uint16_t port;
  const int listener = Listen(&port, 10);
  const int copy = dup(listener);
  Blocked call([&] { return accept(listener, nullptr, nullptr); });
  call.AwaitAsleep("accept");
  close(listener);
  call.AwaitAsleep("accept, whose number is closed");
  Say("shutdown: %s", Outcome(shutdown(copy, SHUT_RD)).c_str());
  call.Join("accept");
  close(copy);
  const int late = PeerDial(port);
  Say("dial: %s", Outcome(late >= 0 ? 0 : -1, -late).c_str());
}

sockaddr_in At(uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}

// Fills the backlog of the peer's listener, until a connection does not come about at once.
std::vector<int> Fill(uint16_t port) {
  std::vector<int> fds;
  for (int i = 0; i < 20; i++) {
    const int low = Socket();
    const int fd = fcntl(low, F_DUPFD_CLOEXEC, 120);
    close(low);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    const sockaddr_in to = At(port);
    const int r = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    fds.push_back(fd);
    pollfd one{fd, POLLOUT, 0};
    if (r != 0 && (errno != EINPROGRESS || poll(&one, 1, 300) == 0)) return fds;
  }
  Die("the backlog is never full");
}

// connect() that waits for a place in the backlog.
void ConnectWhile(Away how) {
  const uint16_t port = PeerListen(0);
  std::vector<int> fill = Fill(port);
  const int fd = Socket();
  const sockaddr_in to = At(port);
  Blocked call([&] { return connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to); });
  call.AwaitAsleep("connect");
  Conn fresh;
  if (how == Away::kClose) {
    Say("close: %s", Outcome(close(fd)).c_str());
    fresh = ConnectedAs(fd);
  } else {
    fresh = Connected();
    Expect("dup2", dup2(fresh.fd, fd) == fd);
    close(fresh.fd);
    fresh.fd = fd;
  }
  PeerSend(fresh.peer, "fresh");
  NapMs(10);
  Say("the other connection: %s", Text(fresh.fd).c_str());
  std::vector<int> peers;
  for (size_t i = 0; i < fill.size() + 1; i++) peers.push_back(PeerAcceptThere());
  call.Join("connect");
  for (const int one : fill) close(one);
  for (const int peer : peers) {  // how many fit into a backlog is not compared
    if (peer < 0) Die("a connection is missing");
    const Got got = PeerGet(peer, 1, 10000);
    Expect("an old peer sees the end", got.state == 'e');
  }
  ExpectQuiet("the other connection is not touched", fresh.peer);
  close(fresh.fd);
  SayGot("the other peer", fresh.peer);
}
void ConnectClose() { ConnectWhile(Away::kClose); }
void ConnectDup2() { ConnectWhile(Away::kDup2); }

// Not blocking: the last number goes away while the handshake is under way.
void ConnectGoesAway() {
  for (int round = 0; round < 50; round++) {
    const int fd = Socket();
    fcntl(fd, F_SETFL, O_NONBLOCK);
    const sockaddr_in to = At(PeerPort());
    const int r = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    Expect("connect", r == 0 || errno == EINPROGRESS);
    close(fd);
    const Got got = PeerGet(PeerAccept(), 1, 5000);
    Expect("the peer sees the end", got.state == 'e');
  }
}

}  // namespace

const Case kAll[] = {{"accept_close", AcceptClose},
                     {"accept_close_only", AcceptCloseOnly},
                     {"accept_dup2", AcceptDup2},
                     {"accept_dup3", AcceptDup3},
                     {"accept_shutdown_by_copy", AcceptShutdownByCopy},
                     {"connect_close", ConnectClose},
                     {"connect_dup2", ConnectDup2},
                     {"connect_goes_away", ConnectGoesAway},
                     {nullptr, nullptr}};

}  // namespace descriptors::accept_cases
