// verbs_port_test.cc - a raw packet queue pair: packets both ways, its limits, its errors, its
// rules.
// SPDX-License-Identifier: Apache-2.0
#include "../../../controlplane/verbsnic/verbs_port.h"

#include <arpa/inet.h>

#include <map>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "fake_card.h"
#include "verbs_frames.h"

namespace postern::verbsnic {
namespace {

using softnic::kBurst;
using View = VerbsPort::View;

constexpr uint32_t kMtu = 1500;

constexpr size_t kIdOff = 14 + 20 + 20;

// From 10.0.0.1 to 10.0.0.2, TCP; `id` is its data, in the first bytes of it.
Bytes Frame(uint16_t from, uint16_t to, uint32_t id = 0, size_t data = 4) {
  Bytes segment = Tcp(from, to, 16);
  segment.resize(segment.size() + data);
  Bytes frame = Ether(Ipv4(6, 1, 2, segment));
  memcpy(&frame[kIdOff], &id, sizeof(id));
  return frame;
}
uint32_t IdOf(const uint8_t* frame) {
  uint32_t id;
  memcpy(&id, frame + kIdOff, sizeof(id));
  return id;
}
pstn_xdp_port PortFilter(uint16_t port) { return {Ip(2), htons(port), 0, 6, {}}; }
pstn_xdp_flow FlowFilter(uint16_t local, uint16_t peer) {
  return {Ip(2), Ip(1), htons(local), htons(peer), 0, 6, 0};
}

class PortWorld {
 public:
  PortWorld() { REQUIRE(port.Open(kMac, kMtu)); }
  // What comes in one look, as ids.
  std::vector<uint32_t> Receive() {
    View views[kBurst];
    std::vector<uint32_t> ids;
    const uint32_t count = port.Receive(views);
    for (uint32_t i = 0; i < count; i++) ids.push_back(IdOf(views[i].data));
    return ids;
  }
  uint32_t Send(const std::vector<Bytes>& frames) {
    std::vector<View> views;
    for (const Bytes& f : frames) views.push_back({f.data(), static_cast<uint32_t>(f.size())});
    return port.Send(views.data(), static_cast<uint32_t>(views.size()));
  }
  FakeCard card;
  VerbsPort port{card};
};

TEST_CASE("verbs: packets of rules come, others are the kernel's; buffers go round") {
  PortWorld w;
  CHECK(w.card.rules().empty());  // the one to try is gone
  CHECK(w.card.state() == IBV_QPS_RTS);
  CHECK(w.card.receives() == VerbsPort::kDepth);
  CHECK_FALSE(w.card.Arrive(Frame(4000, 80)));
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  CHECK_FALSE(w.card.Arrive(Frame(4000, 81)));
  uint32_t sent = 0, got = 0;
  for (uint32_t round = 0; round < 500; round++) {
    for (uint32_t i = 0; i < round % 50; i++) CHECK(w.card.Arrive(Frame(4000, 80, sent++)));
    for (;;) {
      const auto ids = w.Receive();
      for (const uint32_t id : ids) CHECK(id == got++);
      if (ids.empty()) break;
    }
  }
  CHECK(got == sent);
  CHECK(w.card.missed == 0);
  CHECK(w.card.receives() == VerbsPort::kDepth);
  CHECK(w.port.counters().rx == sent);
}

TEST_CASE("verbs: a view is good until the next look, however many packets come meanwhile") {
  PortWorld w;
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  for (uint32_t i = 0; i < kBurst; i++) REQUIRE(w.card.Arrive(Frame(4000, 80, i)));
  View views[kBurst];
  REQUIRE(w.port.Receive(views) == kBurst);
  for (uint32_t i = 0; i < 3 * VerbsPort::kDepth; i++) (void)w.card.Arrive(Frame(4000, 80, 9999));
  for (uint32_t i = 0; i < kBurst; i++) CHECK(IdOf(views[i].data) == i);
  CHECK(w.card.missed == 3 * VerbsPort::kDepth - (VerbsPort::kDepth - kBurst));
}

TEST_CASE("verbs: what is sent goes out whole, padded; odd packets stop nobody") {
  PortWorld w;
  const Bytes whole = Frame(80, 4000, 7, 1400), small(20, 0xab), none;
  const Bytes huge(kMtu + 19, 1), tagged(kMtu + 18, 2);
  CHECK(w.Send({whole, none, small, huge, tagged}) == 5);
  REQUIRE(w.card.sent.size() == 3);
  CHECK(w.card.sent[0] == whole);
  Bytes padded = small;
  padded.resize(60);
  CHECK(w.card.sent[1] == padded);
  CHECK(w.card.sent[2] == tagged);
  CHECK(w.Send({none, huge}) == 2);
  CHECK(w.port.counters().errors == 2);
  CHECK(w.port.LookAfter());
  CHECK(w.card.state() == IBV_QPS_RTS);
}

TEST_CASE("verbs: a card that does not send takes as much as it has room for, and later the rest") {
  PortWorld w;
  w.card.holds_sends = true;
  uint32_t taken = 0;
  const std::vector<Bytes> burst(kBurst, Frame(80, 4000));
  for (;;) {
    const uint32_t now = w.Send(burst);
    taken += now;
    if (now < kBurst) break;
  }
  CHECK(taken == VerbsPort::kDepth);
  CHECK(w.Send(burst) == 0);
  w.card.CompleteSends();
  CHECK(w.Send(burst) == kBurst);
  CHECK(w.port.counters().errors == 0);
  CHECK(w.port.counters().tx == VerbsPort::kDepth);
}

TEST_CASE("verbs: a device with short queues") {
  FakeCard card;
  card.depth_max = 5;
  VerbsPort port(card);
  REQUIRE(port.Open(kMac, kMtu));
  CHECK(card.receives() == 5);
  REQUIRE(port.AddPort(PortFilter(80), 0) == 0);
  card.holds_sends = true;
  const Bytes f = Frame(80, 4000);
  const std::vector<View> views(kBurst, View{f.data(), static_cast<uint32_t>(f.size())});
  CHECK(port.Send(views.data(), kBurst) == 5);
  for (int i = 0; i < 8; i++) (void)card.Arrive(Frame(4000, 80));
  View in[kBurst];
  CHECK(port.Receive(in) == 5);
  CHECK(card.missed == 3);
}

TEST_CASE("verbs: a refused request ends a burst there; the rest is sent when it works again") {
  PortWorld w;
  w.card.post_error = ENOMEM;  // as a full queue: nothing is broken
  CHECK(w.Send({Frame(80, 4000, 1)}) == 0);
  CHECK(w.Send({Frame(80, 4000, 2)}) == 1);
  CHECK(w.port.counters().errors == 0);
  w.card.post_error = EINVAL;
  CHECK(w.Send({Bytes(), Frame(80, 4000, 3)}) == 1);  // what has no bytes is sent
  CHECK(w.Send({Frame(80, 4000, 4)}) == 0);           // not before it was looked after
  CHECK(w.port.LookAfter());
  CHECK(w.Send({Frame(80, 4000, 5)}) == 1);
  CHECK(w.card.sent.size() == 2);
}

TEST_CASE("verbs: after an error the queue pair begins anew, with its rules and all buffers") {
  PortWorld w;
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  w.card.holds_sends = true;
  const std::vector<Bytes> burst(kBurst, Frame(80, 4000));
  SECTION("a packet larger than a buffer") {
    CHECK(w.Send(burst) == kBurst);
    CHECK(w.card.Arrive(Frame(4000, 80, 1)));
    CHECK(w.card.Arrive(Frame(4000, 80, 2, 2100)));
    CHECK(w.Receive() == std::vector<uint32_t>{1});
  }
  SECTION("a flush, seen by receiving") {
    CHECK(w.Send(burst) == kBurst);
    w.card.Err();
    CHECK(w.Receive().empty());
  }
  SECTION("a flush, seen by sending") {
    CHECK(w.Send(burst) == kBurst);
    w.card.Err();
    CHECK(w.Send(burst) == 0);
  }
  SECTION("an event") {
    w.card.events = {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_QP_FATAL};
    w.card.Err();
  }
  REQUIRE(w.port.LookAfter());
  CHECK(w.card.state() == IBV_QPS_RTS);
  CHECK(w.card.receives() == VerbsPort::kDepth);
  CHECK(w.card.rules().size() == 1);
  w.card.holds_sends = false;
  for (uint32_t i = 0; i < 3 * VerbsPort::kDepth; i += kBurst) CHECK(w.Send(burst) == kBurst);
  for (uint32_t i = 0; i < 3 * VerbsPort::kDepth; i++) {
    REQUIRE(w.card.Arrive(Frame(4000, 80, i)));
    CHECK(w.Receive() == std::vector<uint32_t>{i});
  }
  CHECK(w.card.missed == 0);
}

TEST_CASE("verbs: a queue pair that always fails is given up; one that works between is not") {
  PortWorld w;
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  const auto fail = [&] {
    w.card.Err();
    (void)w.Receive();
    return w.port.LookAfter();
  };
  for (uint32_t i = 0; i < 3 * VerbsPort::kRestartsMax; i++) {
    CHECK(fail());
    CHECK(w.card.Arrive(Frame(4000, 80, i)));
    CHECK(w.Receive().size() == 1);
  }
  for (uint32_t i = 0; i < VerbsPort::kRestartsMax; i++) CHECK(fail());
  CHECK_FALSE(fail());
}

TEST_CASE("verbs: a device that is removed, or that can't begin anew, is the end") {
  PortWorld w;
  SECTION("removed") { w.card.events = {IBV_EVENT_DEVICE_FATAL}; }
  SECTION("a completion queue") { w.card.events = {IBV_EVENT_CQ_ERR}; }
  SECTION("nothing to be read") {
    w.card.poll_error = EIO;
    CHECK(w.Receive().empty());
    CHECK(w.Send({Frame(1, 2)}) == 0);
  }
  SECTION("no way back") {
    w.card.refused_state = IBV_QPS_RTR;
    w.card.Err();
    CHECK(w.Receive().empty());
  }
  CHECK_FALSE(w.port.LookAfter());
}

TEST_CASE("verbs: the link is the port's") {
  PortWorld w;
  CHECK(w.port.IsLinkUp());
  w.card.port_active = false;
  CHECK_FALSE(w.port.IsLinkUp());
}

TEST_CASE("verbs: rules come and go with filters, once each") {
  PortWorld w;
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  REQUIRE(w.port.AddPort(PortFilter(80), PSTN_XDP_ENDED) == 0);
  REQUIRE(w.port.AddFlow(FlowFilter(90, 4000), 0) == 0);
  REQUIRE(w.port.AddFlow(FlowFilter(90, 4001), PSTN_XDP_PASS) == 0);  // the kernel's
  CHECK(w.card.rules().size() == 2);
  CHECK(w.card.Arrive(Frame(4000, 90)));
  CHECK_FALSE(w.card.Arrive(Frame(4001, 90)));
  REQUIRE(w.port.AddFlow(FlowFilter(90, 4000), PSTN_XDP_PASS) == 0);
  CHECK_FALSE(w.card.Arrive(Frame(4000, 90)));
  w.port.RemovePort(PortFilter(81));
  w.port.RemovePort(PortFilter(80));
  w.port.RemovePort(PortFilter(80));
  CHECK(w.card.rules().empty());
  for (uint16_t i = 0; i < 10; i++) REQUIRE(w.port.AddFlow(FlowFilter(90, i), 0) == 0);
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  w.port.KeepOnly([](const pstn_xdp_flow& f) { return ntohs(f.peer_port) % 2 == 0; },
                  [](const pstn_xdp_port&) { return false; });
  CHECK(w.card.rules().size() == 5);
  CHECK(w.card.Arrive(Frame(4, 90)));
  CHECK_FALSE(w.card.Arrive(Frame(5, 90)));
  CHECK_FALSE(w.card.Arrive(Frame(5, 80)));
}

TEST_CASE("verbs: a rule that the card refuses is an error, and what is there stays") {
  PortWorld w;
  REQUIRE(w.port.AddPort(PortFilter(80), 0) == 0);
  w.card.rules_max = 3;
  for (uint16_t i = 0; i < 2; i++) CHECK(w.port.AddFlow(FlowFilter(90, i), 0) == 0);
  CHECK(w.port.AddFlow(FlowFilter(90, 7), 0) == -ENOSPC);
  CHECK(w.port.AddFlow(FlowFilter(90, 1), 0) == 0);  // is there
  w.port.RemoveFlow(FlowFilter(90, 7));              // is not
  w.port.RemoveFlow(FlowFilter(90, 0));
  CHECK(w.port.AddFlow(FlowFilter(90, 7), 0) == 0);
  w.card.flow_error = EPERM;
  CHECK(w.port.AddPort(PortFilter(81), 0) == -EPERM);
  CHECK(w.card.Arrive(Frame(1, 80)));
}

TEST_CASE("verbs: what can't work is said before anything is begun") {
  FakeCard card;
  VerbsPort port(card);
  SECTION("packets too large for a VI") { CHECK_FALSE(port.Open(kMac, 9000)); }
  SECTION("no queue pair") {
    card.create_error = EPERM;
    CHECK_FALSE(port.Open(kMac, kMtu));
  }
  SECTION("no states") {
    card.refused_state = IBV_QPS_INIT;
    CHECK_FALSE(port.Open(kMac, kMtu));
  }
  SECTION("no rules") {
    card.flow_error = EOPNOTSUPP;
    CHECK_FALSE(port.Open(kMac, kMtu));
  }
  CHECK(card.rules().empty());
}

TEST_CASE("verbs: errors of rules say what to do") {
  const std::map<int, const char*> wanted = {
      {EOPNOTSUPP, "does not steer"}, {ENOSYS, "does not steer"}, {EPERM, "CAP_NET_RAW"},
      {ENOSPC, "table is full"},      {ENOMEM, "table is full"},  {EINVAL, "does not know"}};
  for (const auto& [error, text] : wanted) {
    INFO(error);
    CHECK(std::string(FlowErrorText(error)).find(text) != std::string::npos);
  }
}

}  // namespace
}  // namespace postern::verbsnic
