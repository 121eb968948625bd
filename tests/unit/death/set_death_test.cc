// SPDX-License-Identifier: Apache-2.0
// set_death_test.cc - a process dies between any two instructions of what it does with an event
// set: the survivor's registrations tell, and no other is left.
#include <sys/epoll.h>
#include <unistd.h>

#include <initializer_list>

#include "../kit/catch.h"
#include "endpoint/items.h"
#include "event/epoll.h"
#include "family_world.h"
#include "peer/kernel_half.h"
#include "sock/socket.h"

namespace postern {
namespace {

// A set with one registration, which the survivor shares, and a second socket that is in none.
struct SetWorld {
  FamilyWorld w;
  int epfd = epoll_create1(EPOLL_CLOEXEC), first, second;
  uint32_t set_idx;
  static constexpr int kSet = 0, kFirst = 1;

  SetWorld() {
    SockEpollMade(w.fam(), epfd);
    first = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
    second = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
    REQUIRE((epfd >= 0 && first >= 0 && second >= 0));
    REQUIRE(Ctl(EPOLL_CTL_ADD, first) == 0);
    set_idx = FdEntry(w.fam(), epfd) & PSTN_FD_IDX;
    REQUIRE(FdEntry(w.fam(), epfd) == (PSTN_FD_EPOLL | set_idx));
  }
  ~SetWorld() {
    close(epfd);
    close(first);
    close(second);
  }
  SetWorld(const SetWorld&) = delete;
  SetWorld& operator=(const SetWorld&) = delete;
  long Ctl(int op, int fd) {
    epoll_event ev = {};
    ev.events = EPOLLIN | EPOLLOUT;
    ev.data.u64 = static_cast<uint64_t>(fd);
    return SockEpollCtl(w.fam(), epfd, op, fd, &ev);
  }
  void Hold() {
    w.Hold(epfd, kSet);
    w.Hold(first, kFirst);
  }
  pstn_epoll& set() { return w.s().epolls.Own(SetIndex(set_idx)); }
  uint32_t ItemOf(uint32_t entry) {
    uint32_t prev;
    const pstn_ep& ep = w.s().eps.Own(EpIndex(entry & PSTN_FD_IDX));
    for (const int fd : {first, second}) {
      const uint32_t i = FindItem(w.s(), ep, set_idx, fd, &prev);
      if (i != PSTN_NONE) return i;
    }
    return PSTN_NONE;
  }
  // The survivor's half: what it registered is ready when posted, and all goes when it closes.
  const char* Survives(bool registered = true) {
    if (w.Held(kSet) != (PSTN_FD_EPOLL | set_idx) || set().state != 1)
      return "the survivor's set is gone";
    const uint32_t entry = w.Held(kFirst), item = ItemOf(entry);
    if (entry == 0) return "the survivor's socket is gone";
    if (registered && item == PSTN_NONE) return "a registration is gone";
    if (item != PSTN_NONE) {
      SetGuard g(w.s(), set());
      PushReady(w.s(), set(), item);
      uint32_t seen = 0;
      for (uint32_t i; (i = PopReady(w.s(), set())) != PSTN_NONE;) seen += i == item ? 1 : 0;
      if (seen != 1) return "an event is lost";
    }
    w.CloseHeld(kSet);
    w.CloseHeld(kFirst);
    return PoolUsed(w.s().hdr.items) == 0 ? nullptr : "a registration is left";
  }
};

TEST_CASE("set death: a kernel's set becomes ours, and goes") {
  FamilyWorld w;
  const int epfd = epoll_create1(EPOLL_CLOEXEC);
  SockEpollMade(w.fam(), epfd);
  const int fd = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
  REQUIRE((epfd >= 0 && fd >= 0));
  const StepResult r = w.Step(
      [&] {
        epoll_event ev = {};
        ev.events = EPOLLIN;
        if (SockEpollCtl(w.fam(), epfd, EPOLL_CTL_ADD, fd, &ev) != 0) _exit(1);
        (void)SockClose(w.fam(), epfd, FdEntry(w.fam(), epfd));
      },
      [] { return nullptr; });
  close(epfd);
  close(fd);
  CheckSteps(r, 1000, 15);
}

TEST_CASE("set death: registrations come, change and go") {
  SetWorld p;
  p.Hold();
  const StepResult r = p.w.Step(
      [&] {
        if (p.Ctl(EPOLL_CTL_ADD, p.second) != 0) _exit(1);
        if (p.Ctl(EPOLL_CTL_MOD, p.second) != 0) _exit(2);
        if (p.Ctl(EPOLL_CTL_DEL, p.second) != 0) _exit(3);
        if (p.Ctl(EPOLL_CTL_ADD, p.second) != 0) _exit(4);
        (void)SockClose(p.w.fam(), p.second, FdEntry(p.w.fam(), p.second));
      },
      [&] { return p.Survives(); });
  CheckSteps(r, 1000, 15);
}

TEST_CASE("set death: a wait takes what is ready") {
  SetWorld p;
  REQUIRE(p.Ctl(EPOLL_CTL_ADD, p.second) == 0);
  p.Hold();
  const StepResult r = p.w.Step(
      [&] {
        epoll_event ev[4];
        for (int i = 0; i < 2; i++)
          if (SockEpollWait(p.w.fam(), p.epfd, ev, 4, Deadline::AfterNs(0), nullptr) != 2) _exit(1);
      },
      [&] { return p.Survives(); });
  CheckSteps(r, 500, 15);
}

TEST_CASE("set death: registrations move to the kernel's set") {
  SetWorld p;
  p.Hold();
  const StepResult r = p.w.Step(
      [&] {
        FallBack(p.w.fam(), p.first,
                 p.w.s().eps.Own(EpIndex(FdEntry(p.w.fam(), p.first) & PSTN_FD_IDX)),
                 kReasonExported);
      },
      [&] { return p.Survives(false); });
  CheckSteps(r, 300, 15);
}

}  // namespace
}  // namespace postern
