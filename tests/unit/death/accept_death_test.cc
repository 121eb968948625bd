// SPDX-License-Identifier: Apache-2.0
// accept_death_test.cc - a process dies between any two instructions of admitting, accepting and
// refusing connections: each client is in the queue, in a survivor's hands, or knows its end.
#include <cstring>

#include "../kit/catch.h"
#include "endpoint/places/places.h"
#include "family_world.h"
#include "peer/connect.h"
#include "smcd/notify.h"
#include "sock/socket.h"

namespace postern {
namespace {

constexpr uint32_t kClients = 3;
constexpr uint8_t kHere[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

// A listener that the survivor has, too, and clients that have announced themselves.
struct Listener {
  FamilyWorld w;
  SharedPage<pstn_queues> queues;
  int fd;
  uint32_t entry, idx;

  // queued: clients count in the memory that all of them share.
  explicit Listener(bool queued = false) {
    if (queued) w.fam().view.queues[kOwnQueues].map = &*queues;
    w.ring.ref(1).queued = queued ? 1 : 0;
    fd = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
    REQUIRE(fd >= 0);
    entry = FdEntry(w.fam(), fd);
    idx = entry & PSTN_FD_IDX;
    pstn_ep& l = ep();
    l.state = PSTN_EP_LISTEN;
    l.backlog = 10;
    memcpy(l.local.ip, kHere, sizeof kHere);
    l.local.port = 80;
    FetchOr(l.flags, PSTN_EPF_NONBLOCK);
    w.Save(&queues->at[idx], sizeof queues->at[idx]);
    LgrHdr(w.ring.lgr()).conns_hw = kClients;
    for (uint32_t c = 0; c < kClients; c++) {
      pstn_conn& conn = Conn(c);
      memcpy(conn.setup.client.ip, kHere, sizeof kHere);
      memcpy(conn.setup.server.ip, kHere, sizeof kHere);
      conn.setup.client.port = static_cast<uint16_t>(40000 + c);
      conn.setup.server.port = 80;
      conn.setup.listener_idx = idx;
      conn.setup.listener_gen = l.gen;
      conn.setup.gen = conn.ctl[0].gen = c + 1;
      conn.setup.state = PSTN_CS_SYN;
      FetchAdd(Pending(), 1u);
      AnnounceSyn(w.fam().bells, w.ring.lgr(), c);
    }
  }
  pstn_ep& ep() { return w.s().eps.Own(EpIndex(idx)); }
  pstn_conn& Conn(uint32_t c) { return LgrConn(w.ring.lgr(), c); }
  uint32_t& Pending() { return *TakenAt(w.fam(), w.ring.ref(1), w.ring.lgr(), idx); }
  static bool Ended(const pstn_conn& c) { return (c.ctl[1].flags & PSTN_CF_CLOSED) != 0; }

  void Hold() { w.Hold(fd); }
  // Each client that has not been ended is accepted; with `all`, none has been.
  const char* AcceptRest() {
    AdmitSyns(w.fam(), kAllLooks);
    for (uint32_t i; (i = DequeueEmbryo(w.fam(), ep())) != PSTN_NONE;) {
      pstn_ep& got = w.s().eps.Own(EpIndex(i));
      if (Ended(Conn(got.conn_idx))) return "a connection that was reset is accepted";
      SetSharedFd(w.fam(), FamilyWorld::kHeld + 10 + static_cast<int>(got.conn_idx),
                  PSTN_FD_EP | i);
      got.state = PSTN_EP_ESTABLISHED;
    }
    for (uint32_t c = 0; c < kClients; c++) {
      if (!Ended(Conn(c)) && w.ring.ref(1).conn_ep[c] == 0) return "a client waits for ever";
    }
    return nullptr;
  }
  const char* Survives() {
    if (w.Held() != entry || ep().state != PSTN_EP_LISTEN) return "the survivor's listener is gone";
    if (const char* wrong = AcceptRest(); wrong != nullptr) return wrong;
    return Pending() <= 1 ? nullptr
                          : "the backlog counts clients that are not there";  // see DequeueEmbryo
  }
  // Without a survivor that listens: each client has heard of the end.
  const char* AllEnded() {
    for (uint32_t c = 0; c < kClients; c++) {
      if (!Ended(Conn(c))) return "a client does not hear that the listener has gone";
    }
    return nullptr;
  }
};

TEST_CASE("accept death: clients are admitted") {
  Listener l(GENERATE(false, true));
  l.Hold();
  const StepResult r =
      l.w.Step([&] { AdmitSyns(l.w.fam(), kAllLooks); }, [&] { return l.Survives(); });
  CheckSteps(r, 1000, 15);
}

TEST_CASE("accept death: clients are accepted") {
  Listener l(GENERATE(false, true));
  l.Hold();
  const StepResult r = l.w.Step(
      [&] {
        Call call(l.w.fam(), l.fd);
        for (int i = 0; i < 2; i++) (void)SockAccept(l.w.fam(), call, nullptr, nullptr, 0);
      },
      [&] { return l.Survives(); });
  CheckSteps(r, 1000, 15);
}

// What accept() does when it can't have a number.
TEST_CASE("accept death: a client goes back to the queue") {
  Listener l(GENERATE(false, true));
  l.Hold();
  AdmitSyns(l.w.fam(), kAllLooks);
  const StepResult r = l.w.Step(
      [&] {
        const uint32_t i = DequeueEmbryo(l.w.fam(), l.ep());
        if (i == PSTN_NONE) _exit(1);
        RequeueEmbryo(l.w.fam(), l.ep(), i);
      },
      [&] { return l.Survives(); });
  CheckSteps(r, 100, 15);
}

// One is accepted, and lets the next one in, which waits for a place.
TEST_CASE("accept death: clients wait for a place") {
  Listener l(true);
  l.Hold();
  l.ep().backlog = 0;
  l.Pending() = 1;
  for (uint32_t c = 1; c < kClients; c++) l.Conn(c).setup.state = PSTN_CS_WAITS;
  AdmitSyns(l.w.fam(), kAllLooks);
  REQUIRE(l.ep().accept_count == 1);
  REQUIRE(l.ep().waits == 1);
  const StepResult r = l.w.Step(
      [&] {
        Call call(l.w.fam(), l.fd);
        (void)SockAccept(l.w.fam(), call, nullptr, nullptr, 0);
      },
      [&]() -> const char* {
        uint32_t came = 0;
        for (uint32_t second = 0; second < 2 * kClients; second++) {
          if (l.ep().misfit_ms != 0) l.ep().misfit_ms -= 1100;
          for (uint32_t c = 0; c < kClients; c++) {
            if (l.Conn(c).setup.state == PSTN_CS_WAITS)
              AnnounceSyn(l.w.fam().bells, l.w.ring.lgr(), c);
          }
          if (l.ep().accept_count > 1) return "more wait than the backlog says";
          const char* const wrong = l.AcceptRest();
          if (second + 1 == 2 * kClients && wrong != nullptr) return wrong;
          AdmitWaiting(l.w.fam(), l.ep());
        }
        for (uint32_t c = 0; c < kClients; c++)
          came += l.Conn(c).setup.state != PSTN_CS_WAITS ? 1u : 0u;
        if (came != kClients) return "a client waits for ever";
        return l.Pending() <= 1 ? nullptr : "the backlog counts clients that are not there";
      });
  CheckSteps(r, 500, 15);
}

// It shut its listener down: clients that come are refused.
TEST_CASE("accept death: clients are refused") {
  Listener l;
  l.Hold();
  FetchOr(l.ep().flags, PSTN_EPF_SHUT_RD);
  const StepResult r = l.w.Step([&] { AdmitSyns(l.w.fam(), kAllLooks); },
                                [&]() -> const char* {
                                  AdmitSyns(l.w.fam(), kAllLooks);
                                  return l.AllEnded();
                                });
  CheckSteps(r, 500, 15);
}

// It admits clients for a process that died before it could.
TEST_CASE("accept death: the reaper dies while it admits clients") {
  Listener l;
  l.Hold();
  for (uint32_t c = 0; c < kClients; c++) {  // their bits were taken
    LgrEvmap(l.w.ring.lgr(), 1, PSTN_EVMAP_SYN).leaf[c / 64] = 0;
  }
  LgrEvmap(l.w.ring.lgr(), 1, PSTN_EVMAP_SYN).summary = 0;
  l.w.s().slots.Own(ProcIndex(FamilyWorld::kDying)).state = PSTN_SL_DEAD;
  const StepResult r = l.w.Step(
      [&] {
        l.w.AsReaper();
        ReapSlot(l.w.fam(), FamilyWorld::kDying);
      },
      [&] { return l.Survives(); });
  CheckSteps(r, 1000, 15);
}

TEST_CASE("accept death: a listener with a queue is closed") {
  Listener l;
  AdmitSyns(l.w.fam(), kAllLooks);
  REQUIRE(l.ep().accept_count == kClients);
  const StepResult r =
      l.w.Step([&] { (void)SockClose(l.w.fam(), l.fd, l.entry); }, [&] { return l.AllEnded(); });
  CheckSteps(r, 1000, 15);
}

TEST_CASE("accept death: a listener is closed while clients come") {
  Listener l;
  const StepResult r =
      l.w.Step([&] { (void)SockClose(l.w.fam(), l.fd, l.entry); }, [&] { return l.AllEnded(); });
  CheckSteps(r, 500, 15);
}

TEST_CASE("accept death: a connection is closed") {
  Listener l;
  l.Hold();
  AdmitSyns(l.w.fam(), kAllLooks);
  const uint32_t i = DequeueEmbryo(l.w.fam(), l.ep());
  REQUIRE(i != PSTN_NONE);
  constexpr int kFd = 3000;
  SetFd(l.w.fam(), kFd, PSTN_FD_EP | i);
  l.w.s().eps.Own(EpIndex(i)).state = PSTN_EP_ESTABLISHED;
  const uint32_t conn = l.w.s().eps.Own(EpIndex(i)).conn_idx;
  const StepResult r = l.w.Step([&] { (void)SockClose(l.w.fam(), kFd, PSTN_FD_EP | i); },
                                [&]() -> const char* {
                                  if (!Listener::Ended(l.Conn(conn)))
                                    return "the client does not hear of the end";
                                  if (l.Conn(conn).setup.state != PSTN_CS_SERVER_GONE)
                                    return "the client can't free the slot";
                                  return l.Survives();
                                });
  CheckSteps(r, 300, 15);
}

}  // namespace
}  // namespace postern
