// SPDX-License-Identifier: Apache-2.0
// two_families.cc - one process that is of two families: each end of a connection is of another.
//
//   two_families        runs its checks, says on stdout what it has seen, exits 0 if all hold
//
// Nobody preloads the library here: the program calls its facade with one Family or the other, each
// with a stack of its own. The environment names posternd (POSTERN_RUNTIME_DIR, POSTERN_DAEMON).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/sys.h"
#include "endpoint/call.h"
#include "event/poll.h"
#include "life/process.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "sock/rooms.h"
#include "sock/socket.h"
#include "stream/stream.h"

namespace postern {
namespace {

constinit Rooms rooms[2];
constinit Family families[2] = {FamilyIn(rooms[0]), FamilyIn(rooms[1])};

[[noreturn]] void Fail(const char* what, long r) {
  printf("failed: %s: %ld\n", what, r);
  fflush(stdout);
  _exit(1);
}

void Check(bool holds, const char* what, long r = 0) {
  if (!holds) Fail(what, r);
}

// One end of a connection, or a listener.
struct Socket {
  Family* fam;
  int fd;
};

Socket NewSocket(Family& fam) {
  const long fd = SockSocket(fam, AF_INET, SOCK_STREAM, 0);
  Check(fd >= 0, "socket", fd);
  return {&fam, static_cast<int>(fd)};
}

bool IsAccelerated(const Socket& s) {
  const Call call(*s.fam, s.fd);
  return call.ep() != nullptr && LoadAcquire(call.ep()->state) == PSTN_EP_ESTABLISHED;
}

Socket Listen(Family& fam, sockaddr_in& name) {
  const Socket s = NewSocket(fam);
  const Call call(fam, s.fd);
  name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t len = sizeof name;
  auto* sa = reinterpret_cast<sockaddr*>(&name);
  long r = SockBind(fam, s.fd, *call.ep(), sa, len);
  Check(r == 0 || r == kPass, "bind", r);
  r = SockListen(fam, s.fd, *call.ep(), 16);
  Check(r == 0, "listen", r);
  Check(getsockname(s.fd, sa, &len) == 0, "getsockname", errno);
  return s;
}

Socket Connect(Family& fam, const sockaddr_in& to) {
  const Socket s = NewSocket(fam);
  Call call(fam, s.fd);
  const long r = SockConnect(fam, call, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  Check(r == 0, "connect", r);
  return s;
}

Socket Accept(const Socket& listener) {
  Call call(*listener.fam, listener.fd);
  const long fd = SockAccept(*listener.fam, call, nullptr, nullptr, 0);
  Check(fd >= 0, "accept", fd);
  return {listener.fam, static_cast<int>(fd)};
}

void Send(const Socket& s, const std::vector<uint8_t>& data) {
  for (size_t done = 0; done < data.size();) {
    Call call(*s.fam, s.fd);
    const iovec iov = {const_cast<uint8_t*>(data.data()) + done, data.size() - done};
    const long r = StreamSend(*s.fam, call, &iov, 1, MSG_NOSIGNAL);
    Check(r > 0, "send", r);
    done += static_cast<size_t>(r);
  }
}

std::vector<uint8_t> Receive(const Socket& s, size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (size_t done = 0; done < bytes;) {
    Call call(*s.fam, s.fd);
    const iovec iov = {data.data() + done, bytes - done};
    const long r = StreamRecv(*s.fam, call, &iov, 1, 0);
    Check(r > 0, "recv", r);
    done += static_cast<size_t>(r);
  }
  return data;
}

bool EndsHere(const Socket& s) {
  uint8_t byte;
  const iovec iov = {&byte, 1};
  Call call(*s.fam, s.fd);
  return StreamRecv(*s.fam, call, &iov, 1, 0) == 0;
}

void Close(const Socket& s) {
  const long r = SockClose(*s.fam, s.fd, FdMeans(*s.fam, s.fd));
  Check(r == 0, "close", r);
}

std::vector<uint8_t> Pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; i++) data[i] = static_cast<uint8_t>((i * 131 + seed * 29) >> 3);
  return data;
}

constexpr uint32_t kRounds = 300;
constexpr size_t kLargest = 700'000;
size_t BytesOf(uint32_t round) { return round % 50 == 49 ? kLargest : 1 + round * 97 % 5000; }

// What comes goes back, until the end.
void Echo(Socket s) {
  for (uint32_t i = 0; i < kRounds; i++) {
    const auto data = Receive(s, BytesOf(i));
    Send(s, data);
  }
  Check(EndsHere(s), "the end");
  Close(s);
}

void Ask(Socket s, uint32_t seed) {
  for (uint32_t i = 0; i < kRounds; i++) {
    const auto data = Pattern(BytesOf(i), seed + i);
    std::thread sends([&] { Send(s, data); });  // more than the buffers hold
    Check(Receive(s, data.size()) == data, "what came back", i);
    sends.join();
  }
  Close(s);
}

// Both ways at once: each family is the server of one connection and the client of another.
void Crosswise() {
  sockaddr_in name[2];
  const Socket listener[2] = {Listen(families[0], name[0]), Listen(families[1], name[1])};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; i++) {
    const Socket client = Connect(families[1 - i], name[i]);
    const Socket server = Accept(listener[i]);
    Check(IsAccelerated(client) && IsAccelerated(server), "accelerated", i);
    Check(client.fam->view.s != server.fam->view.s, "two stacks");
    threads.emplace_back(Echo, server);
    threads.emplace_back(Ask, client, i * 1000);
  }
  for (std::thread& t : threads) t.join();
  for (const Socket& l : listener) Close(l);
  printf("crosswise: 2 connections, %u rounds each\n", kRounds);
}

// A number of one family's means nothing to the other.
void Apart(const Socket& a, const Socket& b) {
  Check(FdEntry(*b.fam, a.fd) == 0 && FdEntry(*a.fam, b.fd) == 0, "numbers apart");
  // Of each stack, the process has a slot of its own: so have its locks.
  const uint32_t of_a = LockWord(Stack(*a.fam).hdr.slot_lock);
  const uint32_t of_b = LockWord(Stack(*b.fam).hdr.slot_lock);
  Check(of_a == (SelfTid() | (a.fam->slot + 1) << PSTN_LOCK_SLOT_SHIFT), "mark", of_a);
  Check(of_b == (SelfTid() | (b.fam->slot + 1) << PSTN_LOCK_SLOT_SHIFT), "mark", of_b);
  static pstn_lock own;
  Check(LockWord(own) == SelfTid(), "no mark", LockWord(own));
}

long Poll(const Socket& s, short events, long ms) {
  pollfd p = {s.fd, events, 0};
  const Deadline until = Deadline::AfterMs(ms);
  return SockPoll(*s.fam, &p, 1, until, nullptr) == 1 ? p.revents : 0;
}

// One thread waits on an end of one family, then on one of the other.
void Polled(const Socket& a, const Socket& b) {
  Check(Poll(b, POLLIN, 50) == 0, "nothing yet");
  std::thread later([&] {
    sys::Nap(50'000'000);
    Send(a, {1});
  });
  Check(Poll(b, POLLIN, 5000) == POLLIN, "POLLIN at b");
  later.join();
  Check(Receive(b, 1)[0] == 1, "the byte");
  std::thread again([&] {
    sys::Nap(50'000'000);
    Send(b, {2});
  });
  Check(Poll(a, POLLIN, 5000) == POLLIN, "POLLIN at a");
  again.join();
  Check(Receive(a, 1)[0] == 2, "the byte");
}

// A child has what its parent has of both; the connection ends with the last process that has it.
void Forked(const Socket& a, const Socket& b) {
  for (Family& fam : families) ForkPrepare(fam);
  const pid_t child = fork();
  if (child == 0) {
    for (Family& fam : families) ForkChild(fam);
    Check(IsAccelerated(a) && IsAccelerated(b), "accelerated in the child");
    Send(a, {3});
    Send(b, {4});
    _exit(0);
  }
  for (Family& fam : families) ForkParent(fam);
  Check(child > 0, "fork", errno);
  Check(Receive(b, 1)[0] == 3 && Receive(a, 1)[0] == 4, "the child's bytes");
  int status = -1;
  Check(waitpid(child, &status, 0) == child && status == 0, "the child", status);
  for (Family& fam : families) ChildEnded(fam, child);
}

void Run() {
  for (Family& fam : families) {
    ProcessInit(fam, environ);
    Check(fam.enabled, "enabled");
  }
  Crosswise();
  sockaddr_in name;
  const Socket listener = Listen(families[0], name);
  const Socket b = Connect(families[1], name);
  const Socket a = Accept(listener);
  Apart(a, b);
  printf("apart\n");
  Polled(a, b);
  printf("polled\n");
  Forked(a, b);
  printf("forked\n");
  Close(a);
  Check(EndsHere(b), "the end at b");
  Close(b);
  Close(listener);
  printf("closed\n");
}

}  // namespace
}  // namespace postern

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  postern::Run();
  return 0;
}
