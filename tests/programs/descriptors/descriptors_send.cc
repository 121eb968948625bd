// SPDX-License-Identifier: Apache-2.0
// descriptors_send.cc - a number goes away under a call that sends and waits for room: all of its
// bytes go to the connection that it was made for, and none to the one that has the number now.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "descriptors.h"

namespace descriptors::send_cases {
namespace {

constexpr size_t kBulk = 16 << 20;  // more than both ends hold

enum class Kind { kSend, kWrite, kWritev, kSendmsg, kSendmmsg, kSendfile };

int FileWith(const std::string& text) {
  const int file = memfd_create("text", MFD_CLOEXEC);
  const int high = fcntl(file, F_DUPFD_CLOEXEC, 100);
  close(file);
  if (write(high, text.data(), text.size()) != static_cast<ssize_t>(text.size())) Die("memfd");
  lseek(high, 0, SEEK_SET);
  return high;
}

long SendBy(Kind kind, int fd, const std::string& text, int file) {
  char* data = const_cast<char*>(text.data());
  iovec parts[2] = {{data, 5000}, {data + 5000, text.size() - 5000}};
  mmsghdr m[2] = {};
  m[0].msg_hdr.msg_iov = parts;
  m[1].msg_hdr.msg_iov = parts + 1;
  m[0].msg_hdr.msg_iovlen = m[1].msg_hdr.msg_iovlen = 1;
  msghdr one{};
  one.msg_iov = parts;
  one.msg_iovlen = 2;
  switch (kind) {
    case Kind::kSend:
      return send(fd, data, text.size(), 0);
    case Kind::kWrite:
      return write(fd, data, text.size());
    case Kind::kWritev:
      return writev(fd, parts, 2);
    case Kind::kSendmsg:
      return sendmsg(fd, &one, 0);
    case Kind::kSendmmsg:
      return sendmmsg(fd, m, 2, 0);
    case Kind::kSendfile:
      return sendfile(fd, file, nullptr, text.size());
  }
  return -1;
}

enum class Away { kClose, kDup2 };

Conn TakeAway(Away how, int number) {
  if (how == Away::kClose) {
    Say("close: %s", Outcome(close(number)).c_str());
    return ConnectedAs(number);
  }
  Conn other = Connected();
  Expect("dup2", dup2(other.fd, number) == number);
  close(other.fd);
  other.fd = number;
  return other;
}

void ExpectAll(const char* what, const Got& got, const std::string& text) {
  Say("%s: %llu bytes", what, static_cast<unsigned long long>(got.bytes));
  Expect("all of it arrives as it was sent", got.hash == Hash(text.data(), text.size()));
}

void SendWhile(Away how, Kind kind) {
  const Conn old = Connected();
  const std::string text = Pattern(kBulk, 1);
  const int file = kind == Kind::kSendfile ? FileWith(text) : -1;
  Blocked call([&] { return SendBy(kind, old.fd, text, file); });
  call.AwaitAsleep("the call");
  const Conn fresh = TakeAway(how, old.fd);
  ExpectQuiet("nothing comes by the other connection", fresh.peer);
  PeerSend(fresh.peer, "ask");
  NapMs(10);
  Say("the other connection: %s", Text(fresh.fd).c_str());
  Expect("an answer is sent", send(fresh.fd, "answer", 6, 0) == 6);
  const Got answer = PeerGet(fresh.peer, 6, 5000);
  Say("the other peer: %s", answer.text.c_str());
  ExpectAll("the old peer", PeerGet(old.peer, kBulk, 10000), text);
  call.Join("the call");
  SayGot("the old peer, then", old.peer);
  close(fresh.fd);
  SayGot("the other peer, then", fresh.peer);
  if (file >= 0) close(file);
}

void SendClose() { SendWhile(Away::kClose, Kind::kSend); }
void SendDup2() { SendWhile(Away::kDup2, Kind::kSend); }
void SendKindsClose() {
  for (const Kind kind : {Kind::kWrite, Kind::kWritev, Kind::kSendmsg, Kind::kSendmmsg})
    SendWhile(Away::kClose, kind);
}
void SendKindsDup2() {
  for (const Kind kind : {Kind::kWrite, Kind::kWritev, Kind::kSendmsg, Kind::kSendmmsg})
    SendWhile(Away::kDup2, kind);
}
void SendfileClose() { SendWhile(Away::kClose, Kind::kSendfile); }
void SendfileDup2() { SendWhile(Away::kDup2, Kind::kSendfile); }

void SendCloseReset() {
  const Conn old = Connected();
  const std::string text = Pattern(kBulk, 1);
  Blocked call([&] { return send(old.fd, text.data(), text.size(), 0) >= 0 ? 0 : -1; });
  call.AwaitAsleep("send");
  close(old.fd);
  const Conn fresh = ConnectedAs(old.fd);
  PeerReset(old.peer);
  call.Join("send after RST");
  ExpectQuiet("the other connection is not touched", fresh.peer);
  close(fresh.fd);
  SayGot("the other peer", fresh.peer);
}

struct Pipe {
  int ends[2];
  Pipe() {
    int low[2];
    if (pipe(low) != 0) Die("pipe");
    for (int i = 0; i < 2; i++) ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 100), close(low[i]);
  }
  ~Pipe() { close(ends[0]), close(ends[1]); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
};

// From the connection into a pipe.
void SpliceOutWhile(Away how) {
  const Conn old = Connected();
  Pipe p;
  Blocked call([&] { return splice(old.fd, nullptr, p.ends[1], nullptr, 4096, 0); });
  call.AwaitAsleep("splice");
  const Conn fresh = TakeAway(how, old.fd);
  PeerSend(fresh.peer, "fresh");
  call.AwaitAsleep("splice, while another connection has its number");
  Say("the other connection: %s", Text(fresh.fd).c_str());
  PeerSend(old.peer, "oldish");
  const long n = call.Join("splice");
  char text[32] = {};
  if (n > 0) Expect("the pipe has it", read(p.ends[0], text, static_cast<size_t>(n)) == n);
  Say("text: %s", text);
  SayGot("the old peer", old.peer);
  close(fresh.fd);
  SayGot("the other peer", fresh.peer);
}
void SpliceOutClose() { SpliceOutWhile(Away::kClose); }
void SpliceOutDup2() { SpliceOutWhile(Away::kDup2); }

// From a pipe into a connection that has no room.
void SpliceInWhile(Away how) {
  const Conn old = Connected();
  Pipe p;
  const std::string text = Pattern(kBulk, 2);
  size_t sent = 0;
  for (ssize_t n; (n = send(old.fd, text.data() + sent, text.size() - sent, MSG_DONTWAIT)) > 0;)
    sent += static_cast<size_t>(n);
  Blocked call([&]() -> long {
    size_t at = sent;
    while (at - sent < (1 << 20)) {  // as much as makes sure that one of the calls waits
      const ssize_t in = write(p.ends[1], text.data() + at, 4096);
      const ssize_t out = in > 0 ? splice(p.ends[0], nullptr, old.fd, nullptr, 4096, 0) : -1;
      if (out <= 0) return at - sent != 0 ? static_cast<long>(at - sent) : -1;
      at += static_cast<size_t>(out);
      if (out != in) return static_cast<long>(at - sent);
    }
    return static_cast<long>(at - sent);
  });
  call.AwaitAsleep("splice");
  const Conn fresh = TakeAway(how, old.fd);
  ExpectQuiet("nothing comes by the other connection", fresh.peer);
  const Got first = PeerGet(old.peer, sent, 10000);
  Expect("what was sent before", first.hash == Hash(text.data(), sent));
  Got rest = PeerGet(old.peer, 1 << 30, 10000);
  Say("the rest: %s, then %c", rest.bytes != 0 ? "some" : "nothing", rest.state);
  Expect("of splice()", rest.hash == Hash(text.data() + sent, rest.bytes));
  call.JoinQuietly();
  close(fresh.fd);
}
// Only the call under way has the old connection; the next one would have the other, so it is only
// one that is made.
void SpliceInClose() { SpliceInWhile(Away::kClose); }
void SpliceInDup2() { SpliceInWhile(Away::kDup2); }

}  // namespace

const Case kAll[] = {{"send_close", SendClose},
                     {"send_dup2", SendDup2},
                     {"send_kinds_close", SendKindsClose},
                     {"send_kinds_dup2", SendKindsDup2},
                     {"send_close_reset", SendCloseReset},
                     {"sendfile_close", SendfileClose},
                     {"sendfile_dup2", SendfileDup2},
                     {"splice_out_close", SpliceOutClose},
                     {"splice_out_dup2", SpliceOutDup2},
                     {"splice_in_close", SpliceInClose},
                     {"splice_in_dup2", SpliceInDup2},
                     {nullptr, nullptr}};

}  // namespace descriptors::send_cases
