// SPDX-License-Identifier: Apache-2.0
// items_test.cc - registrations in event sets: both lists, the ready list, and what a dead process
// leaves.

#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "../kit/catch.h"
#include "base/check.h"
#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "event/epoll.h"
#include "family/family.h"
#include "sock/own_family.h"

namespace postern {
namespace {

// A stack as this process's own, with one set and one endpoint.
struct SetWorld {
  int fd = CreateStack(NewUuid());
  StackMap& s = *MapStack(fd);
  StackMap* before = g_family.view.s;
  uint32_t set_idx, ep_idx;

  SetWorld() {
    g_family.view.s = &s;
    set_idx = TakeEpoll(s);
    ep_idx = NewEp(g_family, AF_INET);
    pstn_epoll& e = set();
    e.refs = 1;
    e.ready_head = e.ready_tail = e.all_head = PSTN_NONE;
    e.waiter_idx = TakeWaiter(s);
    e.state = 1;
  }
  ~SetWorld() {
    g_family.view.s = before;
    UnmapStack(&s);
    sys::Close(fd);
  }
  SetWorld(const SetWorld&) = delete;
  SetWorld& operator=(const SetWorld&) = delete;
  pstn_epoll& set() { return s.epolls.Own(SetIndex(set_idx)); }
  pstn_ep& ep() { return s.eps.Own(EpIndex(ep_idx)); }
  uint32_t Add(int number) {
    uint32_t i = TakeItem(s);
    pstn_item& item = s.items.Own(ItemIndex(i));
    item.flags = 0;
    item.ep_idx = ep_idx;
    item.epoll_idx = set_idx;
    item.fd = static_cast<uint32_t>(number);
    LinkItem(s, ep(), set(), i);
    return i;
  }
};

TEST_CASE("items: found, ready once, gone from all lists") {
  SetWorld p;
  const uint32_t a = p.Add(5), b = p.Add(6), c = p.Add(7);
  for (uint32_t i : {a, b, c, b}) PushReady(p.s, p.set(), i);
  CHECK(p.set().ready_count == 3);
  uint32_t prev;
  CHECK(FindItem(p.s, p.ep(), p.set_idx, 6, &prev) == b);
  RemoveItem(p.s, p.ep(), p.set(), b, prev);
  CHECK(FindItem(p.s, p.ep(), p.set_idx, 6, &prev) == PSTN_NONE);
  CHECK(PopReady(p.s, p.set()) == a);
  CHECK(PopReady(p.s, p.set()) == c);
  CHECK(PopReady(p.s, p.set()) == PSTN_NONE);
  CHECK(p.set().ready_count == 0);
}

TEST_CASE("items: a set is taken apart though a process died while it added or removed a member") {
  SetWorld p;
  (void)p.Add(5);
  const uint32_t half = p.Add(6);
  (void)p.Add(7);
  p.s.items.Own(ItemIndex(p.ep().item_head)).ep_next =
      p.s.items.Own(ItemIndex(half)).ep_next;  // in the set's list alone
  PushReady(p.s, p.set(), half);
  DropEpoll(g_family, p.set_idx);
  CHECK(PoolUsed(p.s.hdr.items) == 0);
  CHECK(PoolUsed(p.s.hdr.epolls) == 0);
  CHECK(p.ep().item_head == PSTN_NONE);
}

TEST_CASE("items: who takes a set over from a dead process finds every member, once") {
  SetWorld p;
  const uint32_t a = p.Add(5), b = p.Add(6), c = p.Add(7);
  p.s.items.Own(ItemIndex(c)).flags = PSTN_IT_KERNEL;
  PushReady(p.s, p.set(), a);
  p.s.items.Own(ItemIndex(b)).flags = PSTN_IT_READY;  // it died before it put `b` on the list ...
  p.set().ready_count = 7;                            // ... and at other places
  p.s.items.Own(ItemIndex(a)).all_prev = PSTN_NONE;
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  REQUIRE(waitpid(dead, nullptr, 0) == dead);
  p.set().lock.word = static_cast<uint32_t>(dead);
  {
    SetGuard g(p.s, p.set());
    CHECK(p.set().ready_count == 3);
    CHECK(p.set().listeners == 1);
    for (uint32_t i : {c, b, a}) CHECK(PopReady(p.s, p.set()) == i);
    CHECK(p.s.items.Own(ItemIndex(a)).all_prev == b);
  }
  CHECK(p.set().lock.word == 0);
}

TEST_CASE("items: memory that makes no sense ends no process") {
  SetWorld p;
  const uint32_t a = p.Add(5), b = p.Add(6);
  p.s.items.Own(ItemIndex(a)).all_prev = p.s.items.Own(ItemIndex(b)).all_next = 0x7fffffff;
  p.s.items.Own(ItemIndex(a)).ep_next = b;  // a circle
  p.s.items.Own(ItemIndex(b)).ready_next = b;
  p.s.items.Own(ItemIndex(b)).flags = p.s.items.Own(ItemIndex(a)).flags = PSTN_IT_READY;
  p.set().ready_head = p.set().ready_tail = b;
  p.set().waiter_idx = 0x7fffffff;
  ExpectLies();  // as the reaper does
  DropItemsOfEp(g_family, p.ep());
  DropEpoll(g_family, p.set_idx);
  ExpectLies(false);
  SUCCEED();
}

}  // namespace
}  // namespace postern
