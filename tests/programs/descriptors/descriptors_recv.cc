// SPDX-License-Identifier: Apache-2.0
// descriptors_recv.cc - a number goes away under a call that receives: the call goes on with the
// connection that it was made for.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "descriptors.h"

namespace descriptors::recv_cases {
namespace {

enum class Kind { kRecv, kRead, kReadv, kRecvmsg, kRecvfrom, kRecvmmsg, kWaitAll, kPeek };

// Receives into `text`, which has room for 32 bytes.
long ReceiveBy(Kind kind, int fd, char* text) {
  iovec parts[2] = {{text, 3}, {text + 3, 29}};
  mmsghdr m[2] = {};
  for (auto& one : m) one.msg_hdr.msg_iovlen = 1;
  m[0].msg_hdr.msg_iov = parts;
  m[1].msg_hdr.msg_iov = parts + 1;
  msghdr one{};
  one.msg_iov = parts;
  one.msg_iovlen = 2;
  switch (kind) {
    case Kind::kRecv:
      return recv(fd, text, 32, 0);
    case Kind::kRead:
      return read(fd, text, 32);
    case Kind::kReadv:
      return readv(fd, parts, 2);
    case Kind::kRecvmsg:
      return recvmsg(fd, &one, 0);
    case Kind::kRecvfrom:
      return recvfrom(fd, text, 32, 0, nullptr, nullptr);
    case Kind::kRecvmmsg:
      return recvmmsg(fd, m, 2, MSG_WAITFORONE, nullptr);
    case Kind::kWaitAll:
      return recv(fd, text, 6, MSG_WAITALL);
    case Kind::kPeek:
      return recv(fd, text, 32, MSG_PEEK);
  }
  return -1;
}

enum class Away { kClose, kDup2, kDup3, kCloseRange };

// Takes the number away from the connection that a thread is blocked on; returns the connection
// that has it now.
Conn TakeAway(Away how, int number) {
  if (how == Away::kClose || how == Away::kCloseRange) {
    const unsigned n = static_cast<unsigned>(number);
    const int r = how == Away::kClose ? close(number) : close_range(n, n, 0);
    Say("close: %s", Outcome(r).c_str());
    return ConnectedAs(number);
  }
  Conn other = Connected();
  const int r = how == Away::kDup2 ? dup2(other.fd, number) : dup3(other.fd, number, O_CLOEXEC);
  Say("dup: %s", r == number ? "the number" : Outcome(r).c_str());
  close(other.fd);
  other.fd = number;
  return other;
}

void ReceiveWhile(Away how, Kind kind) {
  const Conn old = Connected();
  char text[33] = {};
  Blocked call([&] { return ReceiveBy(kind, old.fd, text); });
  call.AwaitAsleep("the call");
  if (kind == Kind::kWaitAll) {
    PeerSend(old.peer, "ol");
    call.AwaitAsleep("the call, which has a part");
  }
  const Conn fresh = TakeAway(how, old.fd);
  ExpectQuiet("the connection lives as long as the call", old.peer);
  PeerSend(fresh.peer, "fresh!");
  call.AwaitAsleep("the call, while another connection has its number");
  Say("the other connection: %s", Text(fresh.fd).c_str());
  PeerSend(old.peer, kind == Kind::kWaitAll ? "dish" : "oldish");
  call.Join("the call");
  Say("text: %s", text);
  SayGot("the old peer", old.peer);
  PeerSend(fresh.peer, "more");
  NapMs(10);
  Say("the other connection again: %s", Text(fresh.fd).c_str());
  close(fresh.fd);
  SayGot("the other peer", fresh.peer);
}

constexpr Kind kKinds[] = {Kind::kRecv,     Kind::kRead,     Kind::kReadv,   Kind::kRecvmsg,
                           Kind::kRecvfrom, Kind::kRecvmmsg, Kind::kWaitAll, Kind::kPeek};

void RecvClose() { ReceiveWhile(Away::kClose, Kind::kRecv); }
void RecvDup2() { ReceiveWhile(Away::kDup2, Kind::kRecv); }
void RecvDup3() { ReceiveWhile(Away::kDup3, Kind::kRecv); }
void RecvCloseRange() { ReceiveWhile(Away::kCloseRange, Kind::kRecv); }
void RecvKindsClose() {
  for (const Kind kind : kKinds) ReceiveWhile(Away::kClose, kind);
}
void RecvKindsDup2() {
  for (const Kind kind : kKinds) ReceiveWhile(Away::kDup2, kind);
}

// The program may have no number more: nothing can be kept under another one.
void RecvCloseAtLimit() {
  const Conn old = Connected();
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct caps[2]{};
  Expect("capset", syscall(SYS_capset, &header, caps) == 0);
  constexpr int kLimit = 64;
  const rlimit limit{kLimit, kLimit};
  Expect("setrlimit", setrlimit(RLIMIT_NOFILE, &limit) == 0);
  for (int number = kLimit / 2; number < kLimit; number++) (void)dup2(0, number);
  char text[33] = {};
  Blocked call([&] { return recv(old.fd, text, 32, 0); });
  call.AwaitAsleep("the call");
  Say("close: %s", Outcome(close(old.fd)).c_str());
  ExpectQuiet("the connection lives as long as the call", old.peer);
  PeerSend(old.peer, "oldish");
  call.Join("the call");
  Say("text: %s", text);
  SayGot("the old peer", old.peer);
}

// Whatever ends the call, the descriptor's last holder was the call.
void RecvCloseOther(const char* what, void (*ends)(int peer)) {
  const Conn old = Connected();
  char text[32];
  Blocked call([&] { return recv(old.fd, text, sizeof text, 0); });
  call.AwaitAsleep("recv");
  close(old.fd);
  const Conn fresh = ConnectedAs(old.fd);
  ends(old.peer);
  call.Join(what);
  ExpectQuiet("the other connection is not touched", fresh.peer);
  PeerSend(fresh.peer, "fine");
  NapMs(10);
  Say("the other connection: %s", Text(fresh.fd).c_str());
  close(fresh.fd);
}
void RecvCloseEnd() {
  RecvCloseOther("recv after FIN", [](int peer) {
    PeerShut(peer);
    SayGot("the old peer", peer);
  });
}
void RecvCloseReset() { RecvCloseOther("recv after RST", PeerReset); }
void RecvCloseTimeout() {
  const Conn old = Connected();
  char text[32];
  const timeval patience{0, 400000};
  setsockopt(old.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Blocked call([&] { return recv(old.fd, text, sizeof text, 0); });
  call.AwaitAsleep("recv");
  close(old.fd);
  call.Join("recv with SO_RCVTIMEO");
  SayGot("the old peer", old.peer);
}

void RecvLingerClose() {
  for (const int seconds : {0, 2}) {
    const Conn old = Connected();
    char text[32];
    const linger how{1, seconds};
    setsockopt(old.fd, SOL_SOCKET, SO_LINGER, &how, sizeof how);
    Blocked call([&] { return recv(old.fd, text, sizeof text, 0); });
    call.AwaitAsleep("recv");
    Say("close: %s", Outcome(close(old.fd)).c_str());
    ExpectQuiet("close() is not the last one's", old.peer);
    call.AwaitAsleep("recv, whose number is closed with SO_LINGER");
    PeerSend(old.peer, "x");
    call.Join("recv");
    SayGot("the old peer", old.peer);
  }
}

// Another number of the same connection can still end the call.
void RecvShutdownByCopy() {
  const Conn old = Connected();
  char text[32];
  const int copy = dup(old.fd);
  Blocked call([&] { return recv(old.fd, text, sizeof text, 0); });
  call.AwaitAsleep("recv");
  close(old.fd);
  call.AwaitAsleep("recv, whose number is closed");
  Say("shutdown: %s", Outcome(shutdown(copy, SHUT_RD)).c_str());
  call.Join("recv");
  ExpectQuiet("the copy keeps it open", old.peer);
  close(copy);
  SayGot("the old peer", old.peer);
}

void RecvTwoClose() {
  const Conn old = Connected();
  char text[2][32];
  Blocked one([&] { return recv(old.fd, text[0], 32, 0); });
  Blocked two([&] { return recv(old.fd, text[1], 32, 0); });
  one.AwaitAsleep("recv");
  two.AwaitAsleep("recv");
  close(old.fd);
  const Conn fresh = ConnectedAs(old.fd);
  PeerSend(old.peer, "x");
  for (const long end = NowMs() + 10000; !one.done() && !two.done() && NowMs() < end;) NapMs(1);
  Expect("one of the two calls has the byte", one.done() != two.done());
  ExpectQuiet("the other call holds the connection", old.peer);
  PeerSend(old.peer, "y");
  one.Join("recv");
  two.Join("recv");
  SayGot("the old peer", old.peer);
  close(fresh.fd);
  SayGot("the other peer", fresh.peer);
}

// What the peer has sent before the number went away, and the call after it, are the old ones.
void RecvDup2ManyTimes() {
  for (int round = 0; round < 300; round++) {
    const Conn old = Connected();
    char text[32] = {};
    std::atomic<bool> in{false};
    Blocked call([&] {
      in = true;
      return recv(old.fd, text, sizeof text, 0);
    });
    while (!in) {
    }
    for (int spin = round * 40; spin != 0; spin--) asm volatile("");
    const Conn other = Connected();
    dup2(other.fd, old.fd);  // the call has begun, or it is the other connection's
    PeerSend(other.peer, "b");
    NapMs(round % 3);
    const bool began_late = call.done();
    if (!began_late) PeerSend(old.peer, "a");
    for (const long end = NowMs() + 15000; !call.done() && NowMs() < end;) NapMs(1);
    if (!call.done()) Die("recv hangs");
    if (text[0] != 'a' && text[0] != 'b') Die("a byte that nobody has sent");
    call.JoinQuietly();
    close(other.fd);
    close(old.fd);
    PeerClose(old.peer);
    PeerClose(other.peer);
  }
}

}  // namespace

const Case kAll[] = {{"recv_close", RecvClose},
                     {"recv_dup2", RecvDup2},
                     {"recv_dup3", RecvDup3},
                     {"recv_close_range", RecvCloseRange},
                     {"recv_kinds_close", RecvKindsClose},
                     {"recv_kinds_dup2", RecvKindsDup2},
                     {"recv_close_end", RecvCloseEnd},
                     {"recv_close_reset", RecvCloseReset},
                     {"recv_close_timeout", RecvCloseTimeout},
                     {"recv_linger_close", RecvLingerClose},
                     {"recv_shutdown_by_copy", RecvShutdownByCopy},
                     {"recv_two_close", RecvTwoClose},
                     {"recv_dup2_many_times", RecvDup2ManyTimes},
                     {"recv_close_at_limit", RecvCloseAtLimit},
                     {nullptr, nullptr}};

}  // namespace descriptors::recv_cases
