// SPDX-License-Identifier: Apache-2.0
// backlog_test.cc - a listener's backlog binds clients that do not count themselves.
#include <cstring>

#include "../death/family_world.h"
#include "../kit/catch.h"
#include "peer/connect.h"
#include "smcd/notify.h"
#include "sock/socket.h"

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
    LgrHdr(w.ring.lgr()).conns_hw = lies ? 0 : c + 1;  // no slot was ever used, it says
    pstn_conn& conn = Conn(c);
    memcpy(conn.setup.client.ip, kSameHost, sizeof kSameHost);
    memcpy(conn.setup.server.ip, kSameHost, sizeof kSameHost);
    conn.setup.client.port = static_cast<uint16_t>(40000 + c);
    conn.setup.server.port = 80;
    conn.setup.listener_idx = idx;
    conn.setup.listener_gen = ep().gen;
    conn.setup.gen = conn.ctl[0].gen = c + 1;
    conn.setup.state = PSTN_CS_SYN;
    AnnounceSyn(w.fam().bells, w.ring.lgr(), c);
    AdmitSyns(w.fam(), kAllLooks);
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

}  // namespace
}  // namespace postern
