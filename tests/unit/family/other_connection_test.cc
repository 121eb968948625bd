// SPDX-License-Identifier: Apache-2.0
// other_connection_test.cc - calls that find their connection and, under its lock, another one in
// its endpoint: their thread was held up while others disconnected and connected it. And what a
// disconnect leaves of a connection.
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "../kit/catch.h"
#include "../smcd/ring_pair.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "family/family.h"
#include "option/socket_options.h"
#include "option/tcp_info.h"
#include "peer/close.h"
#include "sock/own_family.h"
#include "stream/stream.h"
#include "stream/urgent.h"

namespace postern {
namespace {

// Two ends, between which the first has sent some bytes, the last of them urgent.
struct OtherWorld {
  RingWorld world;
  StackView before = g_family.view;
  ConnEnd from = world.End(0), to = world.End(1);

  OtherWorld() {
    StackView& v = g_family.view;
    v = {};
    v.s = &world.stack();
    for (uint32_t side = 0; side < 2; side++) {
      const uint32_t idx = v.s->lgrs.IndexOf(world.ref(side)).word();
      v.lgr[idx] = world.lgr();
      v.lgr_id[idx] = v.s->lgrs.Own(LgrIndex(idx)).id;
    }
    LgrHdr(world.lgr()).conns_hw = 1;
    to.which = Which(*to.ep);
    Send("first!", 6);
    to.ep->rx.bytes = 0;
  }
  ~OtherWorld() { g_family.view = before; }
  OtherWorld(const OtherWorld&) = delete;
  OtherWorld& operator=(const OtherWorld&) = delete;

  void Send(const char* text, size_t bytes) {
    iovec iov = {const_cast<char*>(text), bytes};
    IovCursor left(&iov, 1);
    Lock(from.ep->tx.lock);
    REQUIRE(RingWrite(from, left, {}) == bytes);
    StoreRelease(from.ctl().urgent,
                 Mark::After(0, from.ep->tx.bytes, static_cast<uint8_t>(text[bytes - 1])));
    Unlock(from.ep->tx.lock);
  }
  // The endpoint has a connection that is not the one with which `to` began.
  void Change() { StoreRelaxed(to.ep->conn_gen, to.ep->conn_gen + 1); }
  // What `call` returns if that happens while it waits for the lock of the endpoint's reader.
  template <typename Fn>
  long WhileItWaits(Fn call) {
    pstn_lock& lock = to.ep->rx.lock;
    long r = 0;
    Lock(lock);
    const uint32_t alone = LoadRelaxed(lock.word);
    std::thread thread([&] { r = call(); });
    while (LoadRelaxed(lock.word) == alone) sched_yield();  // until it sleeps
    Change();
    Unlock(lock);
    thread.join();
    return r;
  }
};

TEST_CASE("another connection in the endpoint: the place of its urgent byte is not the first one's",
          "[endpoint]") {
  OtherWorld w;
  const MarkState own = LookAtMark(w.to);
  CHECK(own.ready);
  CHECK(own.before == 5);
  const uint64_t end = w.to.ep->rx.urgent_end;
  w.Send("second!", 7);
  w.Change();
  const MarkState other = LookAtMark(w.to);
  CHECK_FALSE(other.ready);
  CHECK(other.before == 0);
  CHECK(w.to.ep->rx.urgent_end == end);
}

TEST_CASE("another connection in the endpoint: its urgent byte is not received", "[endpoint]") {
  OtherWorld w;
  char byte = 0;
  const iovec iov = {&byte, 1};
  w.Change();
  CHECK(RecvUrgent(w.to, &iov, 1, 0) == -EBADF);
  CHECK(byte == 0);
  CHECK((w.to.ep->rx.gate & PSTN_RXG_URGENT_TAKEN) == 0);
}

TEST_CASE("another connection in the endpoint: FIONREAD and TCP_INQ don't count its bytes",
          "[endpoint]") {
  OtherWorld w;
  StoreRelease(w.from.ctl().urgent, uint64_t{0});
  int n = -1;
  CHECK(SockIoctl(g_family, -1, *w.to.ep, FIONREAD, &n) == 0);
  CHECK(n == 6);
  n = -1;
  CHECK(w.WhileItWaits([&] { return SockIoctl(g_family, -1, *w.to.ep, FIONREAD, &n); }) == kPass);
  CHECK(n == -1);
  alignas(cmsghdr) char room[64] = {};
  msghdr m = {};
  m.msg_control = room;
  (void)w.WhileItWaits([&] { return PutInq(g_family, *w.to.ep, m, sizeof room), 0L; });
  REQUIRE(CMSG_FIRSTHDR(&m) != nullptr);
  memcpy(&n, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof n);
  CHECK(n == 0);
}

TEST_CASE("disconnect: nothing of the connection is left to the next one", "[endpoint]") {
  OtherWorld w;
  pstn_ep& ep = *w.to.ep;
  ep.tx.seen = ep.tx.step = ep.tx.since = ep.tx.burst = ep.tx.records = 1;
  ep.rx.run = ep.rx.pause_ns = ep.rx.unreturned = 1;
  REQUIRE(ResetConnection(g_family, ep));
  constexpr char kZero[sizeof(pstn_tx)] = {};
  static_assert(sizeof(pstn_tx) == sizeof(pstn_rx));
  const size_t behind = sizeof(pstn_lock);
  CHECK(memcmp(reinterpret_cast<const char*>(&ep.tx) + behind, kZero, sizeof ep.tx - behind) == 0);
  CHECK(memcmp(reinterpret_cast<const char*>(&ep.rx) + behind, kZero, sizeof ep.rx - behind) == 0);
}

}  // namespace
}  // namespace postern
