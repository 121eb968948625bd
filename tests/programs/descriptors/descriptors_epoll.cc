// SPDX-License-Identifier: Apache-2.0
// descriptors_epoll.cc - the number of a set, or of a member, goes away under epoll_wait(): the
// wait goes on, on the set that it was made for.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

#include "descriptors.h"

namespace descriptors::epoll_cases {
namespace {

void Add(int set, int fd, uint32_t mark, int op = EPOLL_CTL_ADD) {
  epoll_event ev{};
  ev.events = EPOLLIN;
  ev.data.u32 = mark;
  if (epoll_ctl(set, op, fd, &ev) != 0) Die("epoll_ctl");
}

// -1, 0 (nothing until then), or what the first event's member was marked with.
long Wait(int set, int ms) {
  epoll_event got[4];
  const int n = epoll_wait(set, got, 4, ms);
  return n > 0 ? static_cast<long>(got[0].data.u32) : n;
}

enum class Away { kClose, kDup2Set, kDup3Set, kDup2Socket, kDup2Pipe };

// What the number is afterwards.
void TakeAway(Away how, int number, int set, int socket) {
  int r = -1;
  switch (how) {
    case Away::kClose:
      r = close(number);
      break;
    case Away::kDup2Set:
      r = dup2(set, number);
      break;
    case Away::kDup3Set:
      r = dup3(set, number, O_CLOEXEC);
      break;
    case Away::kDup2Socket:
      r = dup2(socket, number);
      break;
    case Away::kDup2Pipe: {
      int p[2];
      if (pipe(p) != 0) Die("pipe");
      r = dup2(p[0], number);
      close(p[0]), close(p[1]);
      break;
    }
  }
  Expect("the number is taken away", how == Away::kClose ? r == 0 : r == number);
}

void SetWhile(Away how) {
  const Conn old = Connected(), fresh = Connected();
  const int number = epoll_create1(0), other = epoll_create1(0);
  Add(number, old.fd, 77);
  Add(other, fresh.fd, 88);
  Blocked call([&] { return Wait(number, 5000); });
  call.AwaitAsleep("epoll_wait");
  TakeAway(how, number, other, fresh.fd);
  PeerSend(fresh.peer, "fresh");
  call.AwaitAsleep("epoll_wait, whose number is another's");
  Say("the other set: %ld", Wait(other, 2000));
  const long now = Wait(number, 0);
  Say("the number: %s", Outcome(now).c_str());
  PeerSend(old.peer, "old");
  call.Join("epoll_wait");
  Say("the old connection: %s", Text(old.fd).c_str());
  Say("the other connection: %s", Text(fresh.fd).c_str());
  close(old.fd);
  SayGot("the old peer", old.peer);
  close(number);
  close(fresh.fd);
  SayGot("the other peer", fresh.peer);
}
void EpollClose() { SetWhile(Away::kClose); }
void EpollDup2() { SetWhile(Away::kDup2Set); }
void EpollDup3() { SetWhile(Away::kDup3Set); }
void EpollDup2Socket() { SetWhile(Away::kDup2Socket); }
void EpollDup2Pipe() { SetWhile(Away::kDup2Pipe); }

// The number is free at once, and a new set has it.
void EpollCloseReuse() {
  const Conn old = Connected(), fresh = Connected();
  const int number = epoll_create1(0);
  Add(number, old.fd, 77);
  Blocked call([&] { return Wait(number, 5000); });
  call.AwaitAsleep("epoll_wait");
  close(number);
  Expect("the number is free at once", epoll_create1(0) == number);
  Add(number, fresh.fd, 88);
  Blocked next([&] { return Wait(number, 5000); });
  next.AwaitAsleep("epoll_wait on the new set");
  call.AwaitAsleep("epoll_wait on the old set");
  PeerSend(old.peer, "old");
  call.Join("the old set");
  next.AwaitAsleep("epoll_wait on the new set, still");
  PeerSend(fresh.peer, "fresh");
  next.Join("the new set");
}

void EpollCloseTimeout() {
  for (const Away how : {Away::kClose, Away::kDup2Set, Away::kDup3Set}) {
    const Conn old = Connected();
    const int number = epoll_create1(0), other = epoll_create1(0);
    Add(number, old.fd, 77);
    Add(other, old.fd, 88);
    Blocked call([&] { return Wait(number, 400); });
    call.AwaitAsleep("epoll_wait");
    TakeAway(how, number, other, -1);
    call.Join("epoll_wait");
    PeerSend(old.peer, "x");
    Say("the other set: %ld", Wait(other, 2000));
    close(other), close(number), close(old.fd);
  }
}

// A member's last number goes away: it is in the set no more, and the peer sees the end at once.
void EpollMemberClose() {
  const Conn old = Connected(), other = Connected();
  const int set = epoll_create1(0);
  Add(set, old.fd, 77);
  Add(set, other.fd, 88);
  Blocked call([&] { return Wait(set, 5000); });
  call.AwaitAsleep("epoll_wait");
  close(old.fd);
  SayGot("the old peer", old.peer);
  const Conn fresh = ConnectedAs(old.fd);
  PeerSend(fresh.peer, "not a member");
  call.AwaitAsleep("epoll_wait, one of whose members is gone");
  PeerSend(other.peer, "x");
  call.Join("epoll_wait");
  Add(set, fresh.fd, 99);
  Say("the other: %s", Text(other.fd).c_str());
  Say("the set: %ld", Wait(set, 2000));
}

// A member whose number is closed and that lives on, by a copy or by a call, still reports.
void EpollMemberLives() {
  const Conn old = Connected();
  const int set = epoll_create1(0);
  Add(set, old.fd, 77);
  const int copy = dup(old.fd);
  Blocked call([&] { return Wait(set, 5000); });
  call.AwaitAsleep("epoll_wait");
  close(old.fd);
  call.AwaitAsleep("epoll_wait, with the number of its member closed");
  PeerSend(old.peer, "x");
  call.Join("epoll_wait");
  Say("the copy: %s", Text(copy).c_str());
  close(copy);
  Say("the set: %ld", Wait(set, 50));
  SayGot("the old peer", old.peer);
}

// Held by recv() alone, which the first bytes do not end.
void EpollMemberHeld() {
  const Conn old = Connected();
  const int set = epoll_create1(0);
  Add(set, old.fd, 77);
  char text[8] = {};
  Blocked call([&] { return recv(old.fd, text, 4, MSG_WAITALL); });
  call.AwaitAsleep("recv");
  close(old.fd);
  Say("the set: %ld", Wait(set, 50));
  PeerSend(old.peer, "ab");
  call.AwaitAsleep("recv, which has a part");
  ExpectQuiet("the connection lives", old.peer);
  PeerSend(old.peer, "cd");
  call.Join("recv");
  Say("text: %s", text);
  Say("the set: %ld", Wait(set, 50));
  SayGot("the old peer", old.peer);
}

// epoll_ctl by a number that is another set's meanwhile is that set's; the wait is the old one's.
void EpollCtlByNumber() {
  const Conn old = Connected(), fresh = Connected();
  const int number = epoll_create1(0), other = epoll_create1(0), keep = dup(number);
  Add(number, old.fd, 77);
  Blocked call([&] { return Wait(number, 5000); });
  call.AwaitAsleep("epoll_wait");
  dup2(other, number);
  Add(number, fresh.fd, 88);
  PeerSend(fresh.peer, "x");
  call.AwaitAsleep("epoll_wait on the old set");
  Say("the other set: %ld", Wait(other, 2000));
  Add(keep, fresh.fd, 99);
  call.Join("epoll_wait on the old set");
}

}  // namespace

const Case kAll[] = {{"epoll_close", EpollClose},
                     {"epoll_dup2", EpollDup2},
                     {"epoll_dup3", EpollDup3},
                     {"epoll_dup2_socket", EpollDup2Socket},
                     {"epoll_dup2_pipe", EpollDup2Pipe},
                     {"epoll_close_reuse", EpollCloseReuse},
                     {"epoll_close_timeout", EpollCloseTimeout},
                     {"epoll_member_close", EpollMemberClose},
                     {"epoll_member_lives", EpollMemberLives},
                     {"epoll_member_held", EpollMemberHeld},
                     {"epoll_ctl_by_number", EpollCtlByNumber},
                     {nullptr, nullptr}};

}  // namespace descriptors::epoll_cases
