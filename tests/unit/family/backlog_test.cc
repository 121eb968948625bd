// SPDX-License-Identifier: Apache-2.0
// backlog_test.cc - a listener's backlog binds clients that do not count themselves.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "../death/family_world.h"
#include "../kit/catch.h"
#include "base/clock.h"
#include "endpoint/places/places.h"
#include "event/wait.h"
#include "peer/connect.h"
#include "smcd/notify.h"
#include "sock/socket.h"
#include "state/area.h"
#include "state/view.h"

namespace postern {
namespace {

constexpr uint32_t kListenBacklog = 3, kSlack = 16;  // accept_queue.cc
constexpr uint32_t kQueueMost = kListenBacklog + 1 + kSlack;
constexpr uint8_t kSameHost[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

struct CrowdedListener {
  FamilyWorld w;
  uint32_t idx;
  bool lies = false;

  CrowdedListener() {
    const int fd = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
    REQUIRE(fd >= 0);
    idx = FdEntry(w.fam(), fd) & PSTN_FD_IDX;
    ep().state = PSTN_EP_LISTEN;
    ep().backlog = kListenBacklog;
    memcpy(ep().local.ip, kSameHost, sizeof kSameHost);
    ep().local.port = 80;
    w.ring.ref(1).peer = {7, 7};  // another stack's
    w.ring.ref(1).remote = PSTN_LGR_SAME_USER;
  }
  pstn_ep& ep() { return w.s().eps.Own(EpIndex(idx)); }
  pstn_conn& Conn(uint32_t c) { return LgrConn(w.ring.lgr(), c); }
  uint32_t& Pending() { return LgrHdr(w.ring.lgr()).pending[idx % PSTN_PENDING]; }
  void Come(uint32_t c) {
    Fill(c);
    Conn(c).setup.state = PSTN_CS_SYN;
    Announce(c);
  }
  void Announce(uint32_t c) {
    AnnounceSyn(w.fam().bells, w.ring.lgr(), c);
    AdmitSyns(w.fam(), kAllLooks);
  }
  void Fill(uint32_t c) {
    uint32_t& hw = LgrHdr(w.ring.lgr()).conns_hw;
    hw = lies ? 0 : std::max(hw, c + 1);  // no slot was ever used, it says
    pstn_conn& conn = Conn(c);
    memcpy(conn.setup.client.ip, kSameHost, sizeof kSameHost);
    memcpy(conn.setup.server.ip, kSameHost, sizeof kSameHost);
    conn.setup.client.port = static_cast<uint16_t>(40000 + c);
    conn.setup.server.port = 80;
    conn.setup.listener_idx = idx;
    conn.setup.listener_gen = ep().gen;
    conn.setup.gen = conn.ctl[0].gen = c + 1;
  }
  bool IsRefused(uint32_t c) { return (Conn(c).ctl[1].flags & PSTN_CF_REFUSED) != 0; }
};

TEST_CASE("backlog: a client that does not count itself fills the queue, and is refused then") {
  CrowdedListener l;
  l.lies = GENERATE(false, true);
  for (uint32_t c = 0; c < 2 * kQueueMost; c++) {
    l.Come(c);
    l.Pending() = 0;  // it says
    CHECK(l.IsRefused(c) == (c >= kQueueMost));
  }
  CHECK(l.ep().accept_count == kQueueMost);
  // What is accepted leaves a place.
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  l.Come(2 * kQueueMost);
  CHECK(!l.IsRefused(2 * kQueueMost));
  l.Come(2 * kQueueMost + 1);
  CHECK(l.IsRefused(2 * kQueueMost + 1));
}

// Clients of all link groups count in one memory, which each of them can write.
struct SharedQueue : CrowdedListener {
  std::unique_ptr<pstn_queues> queues = std::make_unique<pstn_queues>();

  SharedQueue() {
    w.ring.ref(1).queued = 1;
    w.fam().view.queues[kOwnQueues].map = queues.get();
  }
  ~SharedQueue() { w.fam().view.queues[kOwnQueues].map = nullptr; }
  uint32_t& Taken() { return queues->at[idx].taken; }
  void ComeHonestly(uint32_t c) {
    REQUIRE(TakePlace(Taken(), kListenBacklog));
    Come(c);
  }
  uint32_t StateOf(uint32_t c) { return Conn(c).setup.state; }
  void ComeToWait(uint32_t c) {
    Fill(c);
    Conn(c).setup.state = PSTN_CS_WAITS;
    Announce(c);
  }
  // A second passes, and it comes again.
  void ComeAgain(uint32_t c) {
    if (ep().misfit_ms != 0) ep().misfit_ms -= 1100;
    Announce(c);
  }
};

TEST_CASE("backlog: clients without a place wait, and get the next one in their order") {
  SharedQueue l;
  for (uint32_t c = 0; c <= kListenBacklog; c++) l.ComeHonestly(c);
  CHECK_FALSE(TakePlace(l.Taken(), kListenBacklog));
  const uint32_t first = kListenBacklog + 2, second = kListenBacklog + 1;  // not the map's order
  l.ComeToWait(first);
  l.ComeToWait(second);
  l.Conn(first).ctl[0].syn_ns = MonotonicNs() - 2'000'000;
  l.Conn(second).ctl[0].syn_ns = MonotonicNs() - 1'000'000;
  CHECK(l.StateOf(first) == PSTN_CS_WAITS);
  CHECK(l.StateOf(second) == PSTN_CS_WAITS);
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  AdmitWaiting(l.w.fam(), l.ep());
  CHECK(l.StateOf(first) == PSTN_CS_ESTABLISHED);
  CHECK(l.StateOf(second) == PSTN_CS_WAITS);
  CHECK(l.ep().accept_count == kListenBacklog + 1);
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  AdmitWaiting(l.w.fam(), l.ep());
  CHECK(l.StateOf(second) == PSTN_CS_ESTABLISHED);
  // Nobody waits any more: the place is free.
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  AdmitWaiting(l.w.fam(), l.ep());
  CHECK(l.ep().waits == 0);
  CHECK(l.Taken() == kListenBacklog);
}

// Another user's client, which counts in its own link group, and is not told to wait.
struct Stranger {
  static constexpr uint32_t kGroup = 2, kClaims = 16;
  FamilyWorld& w;
  const pstn_uuid id = NewUuid();
  const int fd = CreateLgr(id, {8, 8}, w.s().hdr.id);
  uint8_t* const lgr = MapLgr(fd, &id);

  explicit Stranger(FamilyWorld& of) : w(of) {
    REQUIRE(lgr != nullptr);
    pstn_lgr_ref& ref = w.s().lgrs.Own(LgrIndex(kGroup));
    ref.side = 1;
    ref.id = id;
    ref.peer = {8, 8};
    ref.remote = PSTN_LGR_OTHER_USER;
    ref.state = 1;
    w.s().hdr.lgrs_hw = kGroup + 1;
    SetLgrMapping(w.fam().view, kGroup, lgr, fd);
  }
  ~Stranger() {
    w.s().lgrs.Own(LgrIndex(kGroup)).state = 0;
    DropLgrMapping(w.fam().view, kGroup);
    close(fd);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  void ClaimToWait(const CrowdedListener& l, uint32_t gen) {
    LgrHdr(lgr).conns_hw = kClaims;
    for (uint32_t c = 0; c < kClaims; c++) {
      pstn_conn& conn = LgrConn(lgr, c);
      conn.setup.listener_idx = l.idx;
      conn.setup.listener_gen = gen;
      conn.ctl[0].syn_ns = MonotonicNs() - 9'000'000'000;
      conn.setup.state = PSTN_CS_WAITS;
    }
  }
};

TEST_CASE("backlog: clients that wait are let in beside another user's that say they do") {
  SharedQueue l;
  Stranger stranger(l.w);
  for (uint32_t c = 0; c <= kListenBacklog; c++) l.ComeHonestly(c);
  const uint32_t honest = kListenBacklog + 1;
  l.ComeToWait(honest);
  CHECK(l.StateOf(honest) == PSTN_CS_WAITS);
  l.Conn(honest).ctl[0].syn_ns = MonotonicNs();
  stranger.ClaimToWait(l, l.ep().gen);
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  AdmitWaiting(l.w.fam(), l.ep());
  CHECK(l.StateOf(honest) == PSTN_CS_ESTABLISHED);
}

TEST_CASE("backlog: a place that no client has is free again after a second") {
  SharedQueue l;
  l.ComeHonestly(0);
  l.Taken() = 1000;  // some client says
  l.ComeToWait(1);
  CHECK(l.StateOf(1) == PSTN_CS_WAITS);
  l.Announce(1);
  CHECK(l.StateOf(1) == PSTN_CS_WAITS);
  l.ComeAgain(1);
  CHECK(l.StateOf(1) == PSTN_CS_ESTABLISHED);
  CHECK(l.Taken() == 2);
}

TEST_CASE(
    "backlog: a client that says that all is taken, and does not stop, holds nobody up for long") {
  SharedQueue l;
  l.Taken() = 1000;
  l.ComeToWait(0);
  l.ComeAgain(0);
  CHECK(l.StateOf(0) == PSTN_CS_ESTABLISHED);
  for (uint32_t c = 1; c <= kListenBacklog + 1; c++) {
    l.Taken() = 1000;
    l.ComeToWait(c);
    CHECK(l.StateOf(c) ==
          (c <= kListenBacklog ? uint32_t{PSTN_CS_ESTABLISHED} : uint32_t{PSTN_CS_WAITS}));
  }
  CHECK(l.ep().accept_count == kListenBacklog + 1);
}

TEST_CASE("backlog: a client that says now and then that there is room holds nobody up for long") {
  SharedQueue l;
  l.Taken() = 1000;
  l.ComeToWait(0);
  for (uint32_t c = 1; c <= 3; c++) {  // within the second after which the other one comes again
    l.ep().misfit_ms -= 300;
    l.Taken() = 0;
    l.ComeToWait(c);
    CHECK(l.StateOf(c) == PSTN_CS_ESTABLISHED);
    l.Taken() = 1000;
  }
  l.ep().misfit_ms -= 100;
  l.Announce(0);
  CHECK(l.StateOf(0) == PSTN_CS_ESTABLISHED);
}

TEST_CASE("backlog: a lost place comes back where clients are left until they have written") {
  SharedQueue l;
  l.ep().defer_accept = 1;
  l.Taken() = kListenBacklog + 1;
  l.ComeToWait(0);
  CHECK(l.StateOf(0) == PSTN_CS_WAITS);
  l.ComeAgain(0);
  CHECK(l.StateOf(0) != PSTN_CS_WAITS);
}

TEST_CASE("backlog: looks at clients that are left where they are keep apart, whatever these say") {
  constexpr uint64_t kStepNs = 1'000'000'000;
  CrowdedListener l;
  Beds& beds = *l.w.fam().beds;
  l.ep().defer_accept = 1;
  for (uint32_t c : {0u, 1u}) {
    l.Fill(c);
    l.Conn(c).ctl[0].syn_ns = MonotonicNs() - kStepNs + 20'000'000 + c;  // one after the other
    l.Conn(c).setup.state = PSTN_CS_SYN;
    l.Announce(c);
    CHECK(l.Conn(c).setup.state == PSTN_CS_SYN);
  }
  LgrHdr(l.w.ring.lgr()).conns_hw = PSTN_CONNS;  // all are to be looked at
  const uint64_t first = beds.deferred_ns;
  REQUIRE(first != 0);
  while (l.Conn(0).setup.state == PSTN_CS_SYN) AdmitSyns(l.w.fam(), kAllLooks);
  CHECK(beds.deferred_rest_ns > first);
  CHECK((beds.deferred_ns == 0 || beds.deferred_ns >= beds.deferred_rest_ns));
  while (l.Conn(1).setup.state == PSTN_CS_SYN) AdmitSyns(l.w.fam(), kAllLooks);
  CHECK(l.ep().accept_count == 2);
}

TEST_CASE("backlog: those that have their place come first, where the count is not believed") {
  SharedQueue l;
  l.Taken() = 1000;
  l.ComeToWait(0);
  l.ComeAgain(0);
  REQUIRE(l.ep().accept_count == 1);
  l.Taken() = 1;
  l.Fill(1);
  l.Conn(1).setup.state = PSTN_CS_WAITS;
  for (uint32_t c = 2; c <= kListenBacklog + 1; c++) {
    REQUIRE(TakePlace(l.Taken(), kListenBacklog));
    l.Fill(c);
    l.Conn(c).setup.state = PSTN_CS_SYN;
    AnnounceSyn(l.w.fam().bells, l.w.ring.lgr(), c);
  }
  l.Announce(1);
  CHECK(l.StateOf(1) == PSTN_CS_WAITS);
  CHECK(l.ep().accept_count == kListenBacklog + 1);
}

TEST_CASE("backlog: a queue that is full has no place, however long a client waits") {
  SharedQueue l;
  for (uint32_t c = 0; c <= kListenBacklog; c++) l.ComeHonestly(c);
  l.ComeToWait(kListenBacklog + 1);
  for (int i = 0; i < 3; i++) l.ComeAgain(kListenBacklog + 1);
  CHECK(l.StateOf(kListenBacklog + 1) == PSTN_CS_WAITS);
}

TEST_CASE("backlog: clients that say that none waits are counted when the next one comes") {
  SharedQueue l;
  l.ComeHonestly(0);
  l.ComeHonestly(1);
  l.Taken() = 0;
  l.ComeHonestly(2);
  CHECK(l.Taken() == 3);
  l.Taken() = 0;
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  CHECK(l.Taken() == 0);  // not less than nothing
}

TEST_CASE("backlog: clients that count in their link group count in the queue, too") {
  SharedQueue l;
  l.w.ring.ref(1).queued = 0;
  l.Pending() = 1;
  l.Come(0);
  CHECK(l.Taken() == 1);
  CHECK(DequeueEmbryo(l.w.fam(), l.ep()) != PSTN_NONE);
  CHECK(l.Pending() == 0);
  CHECK(l.Taken() == 0);
}

TEST_CASE(
    "backlog: a process that does not have the memory lets clients in as its queue has room") {
  SharedQueue l;
  l.w.fam().view.queues[kOwnQueues].map = nullptr;
  l.ComeToWait(0);
  CHECK(l.StateOf(0) == PSTN_CS_WAITS);
  l.ComeAgain(0);
  CHECK(l.StateOf(0) == PSTN_CS_ESTABLISHED);
}

// What an earlier listener had there, and what a client of an earlier one does not give back.
TEST_CASE("backlog: a listener that begins has all its places") {
  SharedQueue l;
  l.Taken() = 7;
  BeginPlaces(l.w.fam(), l.ep());
  CHECK(l.Taken() == 0);
  l.ep().flags |= PSTN_EPF_PUBLISHED;
  l.ComeHonestly(0);
  BeginPlaces(l.w.fam(), l.ep());  // it listens once more, or a new posternd is told of it
  CHECK(l.Taken() == 1);
  l.Taken() = 0;  // the new posternd's memory
  BeginPlaces(l.w.fam(), l.ep());
  CHECK(l.Taken() == 1);
}

TEST_CASE("backlog: who waits at a listener that leaves its family goes with the others") {
  SharedQueue l;
  for (uint32_t c = 0; c <= kListenBacklog; c++) l.ComeHonestly(c);
  l.ComeToWait(kListenBacklog + 1);
  EndWaiting(l.w.fam(), l.ep());
  CHECK(l.StateOf(kListenBacklog + 1) == PSTN_CS_ESTABLISHED);
  CHECK(l.ep().accept_count == kListenBacklog + 2);
  CHECK(l.Taken() == kListenBacklog + 2);
}

TEST_CASE("backlog: who waits at a listener that ends is refused") {
  SharedQueue l;
  for (uint32_t c = 0; c <= kListenBacklog; c++) l.ComeHonestly(c);
  l.ComeToWait(kListenBacklog + 1);
  l.ep().state = PSTN_EP_CLOSED;
  EndWaiting(l.w.fam(), l.ep());
  CHECK(l.IsRefused(kListenBacklog + 1));
  CHECK(l.StateOf(kListenBacklog + 1) == PSTN_CS_SERVER_GONE);
}

}  // namespace
}  // namespace postern
