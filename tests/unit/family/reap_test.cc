// SPDX-License-Identifier: Apache-2.0
// reap_test.cc - connections in the hands of a process that dies: admitted, accepted or closed all
// the same.

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "event/wait.h"
#include "family/family.h"
#include "life/reap.h"
#include "option/socket_options.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "sock/own_family.h"
#include "stream/stream.h"

namespace postern {
namespace {

constexpr uint32_t kDead = 3, kConn = 70;

// A listener of the stack, and a client's connection to it that has been announced.
struct ReapWorld {
  RingWorld world;
  StackView before = g_family.view;
  uint32_t listener;

  ReapWorld() {
    g_family.view = {};
    StackView& v = g_family.view;
    v.s = &world.stack();
    for (uint32_t side = 0; side < 2; side++) {
      uint32_t idx = v.s->lgrs.IndexOf(world.ref(side)).word();
      v.lgr[idx] = world.lgr();
      v.lgr_id[idx] = v.s->lgrs.Own(LgrIndex(idx)).id;
    }
    v.s->slots.Own(ProcIndex(kDead)).state = PSTN_SL_LIVE;
    for (uint32_t& c : v.s->slots.Own(ProcIndex(kDead)).chunk) c = PSTN_NONE;
    listener = NewEp(g_family, AF_INET);
    v.s->eps.Own(EpIndex(listener)).state = PSTN_EP_LISTEN;
    LgrHdr(world.lgr()).conns_hw = kConn + 1;
    constexpr uint8_t kHere[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
    memcpy(conn().setup.client.ip, kHere, 16);
    memcpy(conn().setup.server.ip, kHere, 16);
    conn().setup.client.port = 40000;
    conn().setup.server.port = v.s->eps.Own(EpIndex(listener)).local.port = 80;
    conn().setup.listener_idx = listener;
    conn().setup.listener_gen = v.s->eps.Own(EpIndex(listener)).gen;
    conn().setup.state = PSTN_CS_SYN;
    AnnounceSyn(g_family.bells, world.lgr(), kConn);
  }
  ~ReapWorld() { g_family.view = before; }
  ReapWorld(const ReapWorld&) = delete;
  ReapWorld& operator=(const ReapWorld&) = delete;
  StackMap& s() { return world.stack(); }
  pstn_ep& l() { return s().eps.Own(EpIndex(listener)); }
  pstn_conn& conn() { return LgrConn(world.lgr(), kConn); }
  pstn_ep& Accepted() { return s().eps.Own(EpIndex(world.ref(1).conn_ep[kConn] - 1)); }
  void Die() {
    s().slots.Own(ProcIndex(kDead)).state = PSTN_SL_DEAD;
    ReapSlot(g_family, kDead);
  }
};

TEST_CASE(
    "reap: a dead process's listener on the wire is the keeper's to give back, which is told") {
  for (const uint16_t wire : {uint16_t{0}, uint16_t{1}}) {
    ReapWorld p;
    pstn_waiter& keeper = p.s().waiters.Own(WaiterIndex(PSTN_EVMAP_WIRE));
    p.l().wire = wire;
    keeper.posted = 0;
    CloseEp(g_family, p.l());
    CHECK(keeper.posted == wire);
  }
}

TEST_CASE("reap: a connection whose announcement the dead process had taken is admitted") {
  ReapWorld p;
  pstn_evmap& map = LgrEvmap(p.world.lgr(), 1, PSTN_EVMAP_SYN);
  map.summary = 0;
  for (uint64_t& leaf : map.leaf) leaf = 0;
  p.Die();
  CHECK(p.l().accept_count == 1);
  CHECK(p.conn().setup.state == PSTN_CS_ESTABLISHED);
}

TEST_CASE(
    "reap: a connection that was on its way into the accept queue, or out of it, is there again") {
  ReapWorld p;
  AdmitSyns(g_family);
  REQUIRE(p.l().accept_count == 1);
  pstn_ep& ep = p.Accepted();
  p.Die();
  CHECK(p.l().accept_count == 1);  // it was in nobody's hands
  p.l().accept_head = p.l().accept_tail = PSTN_NONE;
  p.l().accept_count = 0;
  const uint64_t in_hands = Refs(1, kDead + 1, PSTN_REFS_ALONE).word();
  ep.owner_slot = kDead;
  ep.refs = in_hands;
  p.Die();
  CHECK(p.l().accept_count == 1);
  p.l().accept_head = p.l().accept_tail = PSTN_NONE;
  p.l().accept_count = 0;
  ep.state = PSTN_EP_NEW;
  ep.owner_slot = kDead;
  ep.refs = in_hands;
  p.conn().setup.state = PSTN_CS_SYN;
  p.Die();
  CHECK(p.l().accept_count == 1);
}

TEST_CASE("reap: a connection that was being closed is closed") {
  ReapWorld p;
  AdmitSyns(g_family);
  pstn_ep& ep = p.Accepted();
  ep.refs = 0;
  ep.owner_slot = kDead;
  ep.state = PSTN_EP_CLOSED;
  p.Die();
  CHECK(ep.state == PSTN_EP_FREE);
  CHECK((p.conn().ctl[1].flags & (PSTN_CF_CLOSED | PSTN_CF_FIN)) == (PSTN_CF_CLOSED | PSTN_CF_FIN));
  CHECK(p.conn().setup.state == PSTN_CS_SERVER_GONE);
}

TEST_CASE("reap: a lock in the name of an embryo's slot was its last owner's, and is taken over") {
  ReapWorld p;
  REQUIRE(UseLockSlot(g_family, kDead + 1));
  pstn_slot& slot = p.s().slots.Own(ProcIndex(kDead));
  slot.pidns = OwnPidns(g_family);
  slot.pid = SelfTid();  // an embryo has the id of the thread that forks
  slot.state = PSTN_SL_EMBRYO;
  pstn_lock& lock = p.l().item_lock;
  lock.word = (kDead + 1) << PSTN_LOCK_SLOT_SHIFT | PSTN_LOCK_TID;  // no such thread
  CHECK_FALSE(LockOwnerLives(lock, lock.word));
  lock.word = 0;
  LeaveLocks(g_family);
}

TEST_CASE("reap: the locks of the image before an exec, whose thread id is this one's") {
  ReapWorld p;
  REQUIRE(UseLockSlot(g_family, kDead));
  pstn_slot& slot = p.s().slots.Own(ProcIndex(kDead));
  slot.pidns = OwnPidns(g_family);
  slot.pid = static_cast<uint32_t>(getpid());
  slot.state = PSTN_SL_LIVE;
  const uint32_t word = (kDead + 1) << PSTN_LOCK_SLOT_SHIFT | SelfTid();
  p.l().item_lock.word = p.l().tx.lock.word = p.l().accept_lock.word = word;
  CHECK_FALSE(LockOwnerLives(p.l().item_lock, word));  // this thread would not wait for itself
  g_family.holder.arrives = true;
  TakeOverLocksOf(g_family, kDead);
  g_family.holder.arrives = false;
  CHECK(p.l().item_lock.word == 0);
  CHECK(p.l().tx.lock.word == 0);
  CHECK(p.l().accept_lock.word == 0);
  // Of a segment that is mapped later, when other threads use locks already.
  pstn_lock later = {word};
  REQUIRE(AddLocksOf(g_family.holder, &later, sizeof later));
  CHECK(TakeFromLastImage(later));
  Unlock(later);
  later.word = (kDead + 2) << PSTN_LOCK_SLOT_SHIFT | SelfTid();
  CHECK_FALSE(TakeFromLastImage(later));
  DropLocksAt(&later);
  LeaveLocks(g_family);
}

TEST_CASE("reap: listeners go before connections") {
  ReapWorld p;
  AdmitSyns(g_family);
  pstn_slot& slot = p.s().slots.Own(ProcIndex(kDead));
  uint32_t chunk = TakeFdChunk(p.s());
  REQUIRE(chunk < Stack(g_family).fdchunks.count());
  slot.chunk[0] = chunk;
  uint32_t accepted = p.world.ref(1).conn_ep[kConn] - 1;
  p.l().accept_head = p.l().accept_tail = PSTN_NONE;
  p.l().accept_count = 0;
  p.s().eps.Own(EpIndex(accepted)).state = PSTN_EP_ESTABLISHED;
  p.s().eps.Own(EpIndex(accepted)).refs = 1;
  p.l().refs = 1;
  p.s().fdchunks.Own(ChunkIndex(chunk)).fd[3] = PSTN_FD_EP | p.listener;
  p.s().fdchunks.Own(ChunkIndex(chunk)).fd[2] = PSTN_FD_EP | accepted;
  slot.state = PSTN_SL_DEAD;
  ReapListeners(g_family, kDead);
  CHECK(p.s().eps.Own(EpIndex(p.listener)).state == PSTN_EP_FREE);
  CHECK((p.conn().ctl[1].flags & PSTN_CF_CLOSED) == 0);
  p.Die();
  CHECK((p.conn().ctl[1].flags & PSTN_CF_CLOSED) != 0);
}

TEST_CASE("reap: a sleeper whose wake-up the dead process may have begun is woken") {
  const bool told = GENERATE(true, false);
  ReapWorld p;
  AdmitSyns(g_family);
  uint32_t idx = p.world.ref(1).conn_ep[kConn] - 1;
  pstn_ep& ep = p.s().eps.Own(EpIndex(idx));
  ep.state = PSTN_EP_ESTABLISHED;
  ep.refs = 2;  // the dead process's and another one's: the connection stays
  pstn_slot& slot = p.s().slots.Own(ProcIndex(kDead));
  uint32_t chunk = TakeFdChunk(p.s());
  REQUIRE(chunk < Stack(g_family).fdchunks.count());
  slot.chunk[0] = chunk;
  slot.told = told ? 1 : 0;
  p.s().fdchunks.Own(ChunkIndex(chunk)).fd[3] = PSTN_FD_EP | idx;
  constexpr uint32_t kWaiter = 9;
  pstn_evmap& map = LgrEvmap(p.world.lgr(), 0, kWaiter);
  map.in_use = PSTN_EV_USED;
  map.sleeping = 0;  // taken, and not rung
  LgrHdr(p.world.lgr()).waiters_hw[0] = kWaiter + 1;
  p.conn().ctl[0].rx_notify = kWaiter + 1;
  int bell = OpenBell({LgrHdr(p.world.lgr()).stack[0], kWaiter, 0});
  REQUIRE(bell >= 0);
  p.Die();
  char byte;
  CHECK((recv(bell, &byte, 1, MSG_DONTWAIT) == 1) == told);  // none that it never had news for
  CHECK((map.leaf[kConn / 64] != 0) == told);
  CHECK(ep.state == PSTN_EP_ESTABLISHED);
  close(bell);
}

// A peer that has written whatever it liked, and died.
TEST_CASE("reap: the survivor hears of a death whatever the dead peer has left in the link group") {
  ReapWorld p;
  AdmitSyns(g_family);
  pstn_ep& ep = p.Accepted();
  ep.state = PSTN_EP_ESTABLISHED;
  const uint32_t waiter = TakeWaiter(p.s());
  p.s().waiters.Own(WaiterIndex(waiter)).state = 1;
  const int bell = OpenBell(BellOf(p.s(), waiter));
  REQUIRE(bell >= 0);
  p.conn().setup.state = GENERATE(0u, 4u, 6u, 77u);  // FREE, CLIENT_GONE, SYN_GONE, nonsense
  p.conn().ctl[0].flags = 0;
  p.conn().ctl[1].rx_notify = p.conn().ctl[1].rx_wait = 0;  // nobody wants to hear of it
  LgrHdr(p.world.lgr()).conns_hw = 0;
  LgrHdr(p.world.lgr()).waiters_hw[1] = 0;
  MarkPeerDead(g_family, p.s().lgrs.IndexOf(p.world.ref(1)).word());
  char byte;
  CHECK(recv(bell, &byte, 1, MSG_DONTWAIT) == 1);
  CHECK((LgrEvmap(p.world.lgr(), 1, waiter).leaf[kConn / 64] >> (kConn % 64) & 1u) == 1);
  CHECK((Readiness(g_family, ep) & (EPOLLIN | EPOLLHUP)) == (EPOLLIN | EPOLLHUP));
  const iovec iov = {&byte, 1};
  Call call(g_family, ep);
  CHECK(StreamRecv(g_family, call, &iov, 1, 0) == -ECONNRESET);
  close(bell);
}

TEST_CASE("reap: a dead peer's records that go round in a circle come to an end") {
  ReapWorld p;
  AdmitSyns(g_family);
  pstn_ep& ep = p.Accepted();
  ep.state = PSTN_EP_ESTABLISHED;
  const ConnEnd liar = p.world.End(0, kConn);
  std::vector<uint8_t> bytes(1000);
  iovec iov = {bytes.data(), bytes.size()};
  IovCursor from(&iov, 1);
  REQUIRE(RingWrite(liar, from, {}) == bytes.size());
  const uint64_t again = PSTN_REC_WRAP;
  memcpy(RingAt(p.world.lgr(), 0, liar.ep->tx.ring).base + liar.ep->tx.off, &again, sizeof again);
  MarkPeerDead(g_family, p.s().lgrs.IndexOf(p.world.ref(1)).word());
  int n = 0;
  CHECK(SockIoctl(g_family, -1, ep, FIONREAD, &n) == 0);
  CHECK(n == 2 * PSTN_RING2_BYTES);
  size_t sum = 0;
  long r;
  Call call(g_family, ep);
  while ((r = StreamRecv(g_family, call, &iov, 1, MSG_DONTWAIT)) > 0 && sum < 10 * PSTN_RING2_BYTES)
    sum += static_cast<size_t>(r);
  CHECK(r == -ECONNRESET);
  CHECK(StreamRecv(g_family, call, &iov, 1, MSG_DONTWAIT) == 0);
  CHECK(p.s().hdr.counters[kCounterPeerViolations] == 1);
}

TEST_CASE("accept: a client may not say that it comes from where it can't") {
  ReapWorld p;
  p.world.ref(1).peer.lo = 1;  // another family's: our own has no need to lie
  pstn_conn_setup& setup = p.conn().setup;
  pstn_dir& dir = *new pstn_dir{};
  g_family.dir = &dir;
  constexpr uint8_t kLoopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  constexpr uint8_t kOther[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
  constexpr uint8_t kFar[16] = {0x20, 1};
  memcpy(p.l().local.ip, kLoopback, 16);
  memcpy(setup.server.ip, kLoopback, 16);
  memcpy(setup.client.ip, kLoopback, 16);
  bool admitted = false;
  SECTION("as it should be") { admitted = true; }
  SECTION("another host") { memcpy(setup.client.ip, kOther, 16); }
  SECTION("another family") { memcpy(setup.client.ip, kFar, 16); }
  SECTION("another of this host's addresses") {
    memcpy(setup.client.ip, kOther, 16);
    memcpy(dir.addrs[0].ip, kOther, 16);
    dir.addr_count = 1;
    admitted = true;
  }
  SECTION("a privileged port") { setup.client.port = 1023; }
  SECTION("a scope") { setup.client.ip[15] = 2, setup.client.scope = 3; }
  SECTION("to another port") { setup.server.port = 81; }
  SECTION("to another address") { setup.server.ip[15] = 2; }
  AdmitSyns(g_family);
  CHECK(p.l().accept_count == (admitted ? 1 : 0));
  CHECK(((p.conn().ctl[1].flags & PSTN_CF_RST) != 0) == !admitted);
  CHECK(p.s().hdr.counters[kCounterPeerViolations] == (admitted ? 0 : 1));
  g_family.dir = nullptr;
  delete &dir;
}

TEST_CASE("notify: a post to all reaches every set, whoever spreads it") {
  ReapWorld p;
  AdmitSyns(g_family);
  pstn_ep& ep = p.Accepted();
  ep.state = PSTN_EP_ESTABLISHED;
  pstn_epoll* sets[2];
  for (pstn_epoll*& set : sets) {
    const uint32_t idx = TakeEpoll(p.s()), i = TakeItem(p.s());
    set = &p.s().epolls.Own(SetIndex(idx));
    set->state = 1;
    set->refs = 1;
    set->ready_head = set->ready_tail = set->all_head = PSTN_NONE;
    set->waiter_idx = TakeWaiter(p.s());
    p.s().waiters.Own(WaiterIndex(set->waiter_idx)).state = 1;
    p.s().items.Own(ItemIndex(i)).ep_idx = EpIdx(p.s(), ep);
    p.s().items.Own(ItemIndex(i)).epoll_idx = idx;
    LinkItem(p.s(), ep, *set, i);
  }
  RenotifyLocked(g_family, ep);
  const bool dies = GENERATE(false, true);  // the process that was rung
  AnnounceData(g_family.bells, p.world.End(0, kConn));
  CHECK(WaiterHasNews(g_family, sets[0]->waiter_idx, false));
  if (dies) {
    pstn_evmap& map = LgrEvmap(p.world.lgr(), 1, PSTN_EVMAP_ALL);
    if (GENERATE(false, true)) map.summary = map.leaf[kConn / 64] = 0;  // in the middle of it
    p.s().slots.Own(ProcIndex(kDead)).told = 1;
    p.Die();
  } else {
    SpreadPosts(g_family);
  }
  for (const pstn_epoll* set : sets) {
    CHECK(set->ready_count == 1);
    CHECK(p.s().waiters.Own(WaiterIndex(set->waiter_idx)).posted == 1);
  }
  CHECK(LgrEvmap(p.world.lgr(), 1, PSTN_EVMAP_ALL).summary == 0);
}

}  // namespace
}  // namespace postern
