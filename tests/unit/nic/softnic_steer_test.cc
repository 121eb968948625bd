// softnic_steer_test.cc - whose a packet is, in the driver of soft VIs: the table of docs/vi.md.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>

#include <initializer_list>
#include <set>

#include "../../../controlplane/softnic/steer.h"
#include "../kit/catch.h"
#include "../wire/wire_frames.h"

namespace postern::softnic {
namespace {

using wire_test::Bytes;
using wire_test::Put;
using wire_test::Put16;
using wire_test::Put32;

constexpr uint8_t kTcp = 6, kUdp = 17, kIcmp = 1, kIcmp6 = 58;
constexpr uint8_t kSyn = 2, kAck = 16, kRst = 4;
constexpr uint32_t kKernel = Steer::kKernel;
constexpr uint32_t kOwn = 1000, kStranger = 1001;  // users

// 10.0.0.N or fd00::N.
pstn_xdp_ip Ip(uint8_t n, bool v6 = false) {
  pstn_xdp_ip ip{};
  if (v6) {
    ip.byte[0] = 0xfd;
  } else {
    ip.byte[10] = ip.byte[11] = 0xff;
    ip.byte[12] = 10;
  }
  ip.byte[15] = n;
  return ip;
}

struct How {
  bool v6 = false;
  uint16_t fragment = 0;  // IPv4's field
  uint16_t id = 7;
  uint32_t options = 0;  // bytes of IPv4's
  uint16_t vlan = 0;
};

Bytes IpPacket(uint8_t protocol, uint8_t src, uint8_t dst, const Bytes& payload, How how = {}) {
  Bytes p;
  const pstn_xdp_ip from = Ip(src, how.v6), to = Ip(dst, how.v6);
  if (how.v6) {
    Put32(p, 6U << 28);
    Put16(p, static_cast<uint32_t>(payload.size()));
    p.push_back(protocol);
    p.push_back(64);
    p.insert(p.end(), from.byte, from.byte + 16);
    p.insert(p.end(), to.byte, to.byte + 16);
  } else {
    p.push_back(static_cast<uint8_t>(0x45 + how.options / 4));
    p.push_back(0);
    Put16(p, static_cast<uint32_t>(20 + how.options + payload.size()));
    Put16(p, how.id);
    Put16(p, how.fragment);
    p.push_back(64);
    p.push_back(protocol);
    Put16(p, 0);
    p.insert(p.end(), from.byte + 12, from.byte + 16);
    p.insert(p.end(), to.byte + 12, to.byte + 16);
    p.insert(p.end(), how.options, 1);
  }
  Put(p, payload);
  return p;
}

Bytes Ether(const Bytes& packet, const How& how) {
  Bytes f;
  for (int i = 0; i < 3; i++) Put32(f, 0x02000000);
  if (how.vlan != 0) {
    Put16(f, 0x8100);
    Put16(f, how.vlan);
  }
  Put16(f, how.v6 ? 0x86dd : 0x0800);
  Put(f, packet);
  return f;
}

Bytes Ports(uint16_t from, uint16_t to, uint8_t flags = kAck) {
  Bytes b;
  Put16(b, from);
  Put16(b, to);
  Put32(b, 1);
  Put32(b, 2);
  b.push_back(5 << 4);
  b.push_back(flags);
  b.resize(20);
  return b;
}

// From 10.0.0.1 to 10.0.0.2.
Bytes Segment(uint16_t from, uint16_t to, uint8_t flags = kAck, How how = {},
              uint8_t protocol = kTcp) {
  return Ether(IpPacket(protocol, 1, 2, Ports(from, to, flags), how), how);
}

pstn_xdp_flow Flow(uint16_t local, uint16_t peer, bool v6 = false) {
  return {Ip(2, v6), Ip(1, v6), htons(local), htons(peer), 0, kTcp, 0};
}

pstn_xdp_port PortRule(uint16_t port, const pstn_xdp_ip& local, uint16_t vlan = 0) {
  return {local, htons(port), vlan, kTcp, {}};
}

pstn_xdp_ip Any4() {
  pstn_xdp_ip ip{};
  ip.byte[10] = ip.byte[11] = 0xff;
  return ip;
}

class World {
 public:
  World() {
    const pstn_xdp_ip local[] = {Ip(2), Ip(2, true)};
    steer.SetLocal(local, 2);
  }
  uint32_t Of(const Bytes& frame) {
    // A copy of its own size: what is read behind it, the sanitizer sees.
    const Bytes exact(frame);
    return steer.Route(exact.data(), static_cast<uint32_t>(exact.size()));
  }
  std::set<uint16_t> kernels_peers;
  std::set<uint16_t> ended_peers;
  uint32_t asked = 0;
  bool kernel_listens = false;
  uint32_t listener = kOwn;  // its owner
  Steer steer{99, [this](const pstn_xdp_flow& flow, Steer::Why why) -> Steer::Holder {
                if (why == Steer::Why::kUnknown) asked++;
                if (kernels_peers.count(ntohs(flow.peer_port)) != 0)
                  return {Steer::Has::kConnection, kOwn};
                if (ended_peers.count(ntohs(flow.peer_port)) != 0) return {Steer::Has::kEnded, 0};
                if (kernel_listens) return {Steer::Has::kListener, listener};
                return {};
              }};
};

TEST_CASE("softnic: flow before port at an address before port; the rest is the kernel's") {
  World w;
  CHECK(w.Of(Segment(4000, 80)) == kKernel);
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddPort(PortRule(81, Ip(2)), {2, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddFlow(Flow(80, 4001), {3, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddFlow(Flow(80, 4002), {3, PSTN_XDP_PASS, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(4000, 80)) == 1);
  CHECK(w.Of(Segment(4000, 81)) == 2);
  CHECK(w.Of(Segment(4001, 80)) == 3);
  CHECK(w.Of(Segment(4002, 80)) == kKernel);
  CHECK(w.Of(Segment(4000, 82)) == kKernel);
  CHECK(w.Of(Segment(4000, 80, kAck, {}, kUdp)) == kKernel);
  // A wildcard is of one family, and means addresses of this host.
  CHECK(w.Of(Segment(4000, 80, kAck, {.v6 = true})) == kKernel);
  REQUIRE(w.steer.AddPort(PortRule(80, {}), {4, 0, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(4000, 80, kAck, {.v6 = true})) == 4);
  CHECK(w.Of(Ether(IpPacket(kTcp, 1, 3, Ports(4000, 80)), {})) == kKernel);
  // VLANs; options of IPv4.
  CHECK(w.Of(Segment(4000, 80, kAck, {.vlan = 5})) == kKernel);
  REQUIRE(w.steer.AddPort(PortRule(80, Any4(), 5), {5, 0, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(4000, 80, kAck, {.vlan = 5})) == 5);
  CHECK(w.Of(Segment(4000, 80, kAck, {.options = 8})) == 1);
  // Removed only by whose it is.
  w.steer.RemovePort(PortRule(81, Ip(2)), 1);
  CHECK(w.Of(Segment(4000, 81)) == 2);
  w.steer.RemovePort(PortRule(81, Ip(2)), 2);
  CHECK(w.Of(Segment(4000, 81)) == kKernel);
  w.steer.DropSlot(3);
  CHECK(w.Of(Segment(4001, 80)) == 1);
}

TEST_CASE("softnic: what the kernel has for another user is not for the filter") {
  World w;
  w.kernel_listens = true;
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddFlow(Flow(81, 4000), {2, 0, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(5000, 80, kSyn)) == 1);
  CHECK(w.Of(Segment(4000, 81, kSyn)) == 2);
  CHECK(w.Of(Segment(4000, 81)) == 2);
  // Its socket has given the ports up, and another user listens there.
  w.listener = kStranger;
  CHECK(w.Of(Segment(5001, 80, kSyn)) == kKernel);
  CHECK(w.Of(Segment(5001, 80)) == kKernel);
  CHECK(w.Of(Segment(5000, 80)) == 1);  // its connections go on
  CHECK(w.Of(Segment(4000, 81, kSyn)) == kKernel);
  CHECK(w.Of(Segment(4000, 81)) == kKernel);
  // Another VI's filter for that port gets them, since its listener it is.
  REQUIRE(w.steer.AddPort(PortRule(81, Any4()), {3, 0, kStranger}, 1) == 0);
  CHECK(w.Of(Segment(4000, 81, kSyn)) == 3);
  CHECK(w.Of(Segment(4000, 81)) == 3);
}

TEST_CASE("softnic: a connection of the kernel's is not for the filter of its ends") {
  World w;
  REQUIRE(w.steer.AddFlow(Flow(81, 4000), {2, 0, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(4000, 81)) == 2);
  w.kernels_peers = {4000};  // from a port that both have bound
  CHECK(w.Of(Segment(4000, 81, kSyn | kAck)) == kKernel);
  CHECK(w.Of(Segment(4000, 81)) == kKernel);
  w.kernels_peers = {};
  w.ended_peers = {4000};
  CHECK(w.Of(Segment(4000, 81, kSyn | kAck)) == 2);
}

TEST_CASE("softnic: a connection that the kernel had before stays with it, and is asked for once") {
  World w;
  w.kernels_peers = {5000};
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, 0, kOwn}, 1) == 0);
  for (int i = 0; i < 3; i++) CHECK(w.Of(Segment(5000, 80)) == kKernel);
  CHECK(w.asked == 1);
  for (int i = 0; i < 3; i++) CHECK(w.Of(Segment(5001, 80)) == 1);
  CHECK(w.asked == 2);
  CHECK(w.Of(Segment(5002, 80, kSyn)) == 1);  // nobody's yet
  CHECK(w.Of(Segment(5002, 80)) == 1);
  CHECK(w.asked == 2);
  CHECK(w.Of(Segment(5000, 80, kSyn)) == 1);  // the old one is over
  CHECK(w.Of(Segment(5000, 80)) == 1);
  // A new listener, and what the kernel has had meanwhile.
  w.steer.RemovePort(PortRule(80, Any4()), 1);
  w.kernels_peers = {5001};
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {2, 0, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(5001, 80)) == kKernel);
  CHECK(w.Of(Segment(5001, 80, kSyn | kAck | kRst)) == kKernel);
}

TEST_CASE(
    "softnic: ports that connections are made from, and listeners that have ended, leave listeners "
    "alone") {
  World w;
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, PSTN_XDP_OUTGOING, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddPort(PortRule(81, Any4()), {1, PSTN_XDP_ENDED, kOwn}, 1) == 0);
  CHECK(w.Of(Segment(4000, 80)) == 1);
  CHECK(w.Of(Segment(4001, 80, kSyn)) == 1);
  w.kernel_listens = true;
  CHECK(w.Of(Segment(4000, 80)) == 1);  // as before
  CHECK(w.Of(Segment(4002, 80)) == kKernel);
  CHECK(w.Of(Segment(4003, 80, kSyn)) == kKernel);
  CHECK(w.Of(Segment(4000, 81)) == 1);
  CHECK(w.Of(Segment(4001, 81, kSyn)) == kKernel);
  CHECK(w.Of(Segment(4001, 81)) == kKernel);
}

TEST_CASE("softnic: ICMP errors go with the packet that they are about") {
  World w;
  REQUIRE(w.steer.AddFlow(Flow(80, 4001), {3, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddFlow(Flow(80, 4001, true), {4, 0, kOwn}, 1) == 0);
  const auto error = [](uint8_t type, uint8_t inner_src, uint16_t from, bool v6) {
    const How how{.v6 = v6};
    Bytes icmp{type, 0, 0, 0, 0, 0, 0, 0};
    Put(icmp, IpPacket(kTcp, inner_src, 1, Ports(from, 4001), how));
    return Ether(IpPacket(v6 ? kIcmp6 : kIcmp, 9, 2, icmp, how), how);
  };
  CHECK(w.Of(error(3, 2, 80, false)) == 3);
  CHECK(w.Of(error(2, 2, 80, true)) == 4);
  CHECK(w.Of(error(8, 2, 80, false)) == kKernel);  // an echo
  CHECK(w.Of(error(3, 2, 81, false)) == kKernel);
  CHECK(w.Of(error(3, 5, 80, false)) == kKernel);   // about a packet of somebody else
  CHECK(w.Of(error(135, 2, 80, true)) == kKernel);  // neighbour discovery
}

TEST_CASE("softnic: fragments follow their first one, if the filter wants them") {
  World w;
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, PSTN_XDP_FRAGMENTS, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddPort(PortRule(81, Any4()), {2, 0, kOwn}, 1) == 0);
  const auto rest = [](uint16_t id) { return Segment(1, 2, 0, {.fragment = 0x00b9, .id = id}); };
  CHECK(w.Of(rest(1)) == kKernel);  // before the first
  CHECK(w.Of(Segment(4000, 80, kSyn, {.fragment = 0x2000, .id = 1})) == 1);
  CHECK(w.Of(rest(1)) == 1);
  CHECK(w.Of(rest(2)) == kKernel);
  CHECK(w.Of(Segment(4000, 81, kSyn, {.fragment = 0x2000, .id = 3})) == kKernel);
  CHECK(w.Of(rest(3)) == kKernel);
  w.steer.DropSlot(1);
  CHECK(w.Of(rest(1)) == kKernel);
}

TEST_CASE("softnic: what a posternd that is gone has left is swept, what came once more is not") {
  World w;
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddPort(PortRule(81, Any4()), {1, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddFlow(Flow(90, 4001), {1, 0, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddPort(PortRule(81, Any4()), {1, 0, kOwn}, 2) == 0);
  w.steer.Sweep([](uint64_t owner) { return owner == 2; });
  CHECK(w.Of(Segment(4000, 80)) == kKernel);
  CHECK(w.Of(Segment(4000, 81)) == 1);
  CHECK(w.Of(Segment(4001, 90)) == kKernel);
}

TEST_CASE("softnic: cut and odd packets are the kernel's, and nothing is read behind them") {
  World w;
  REQUIRE(w.steer.AddPort(PortRule(80, Any4()), {1, PSTN_XDP_FRAGMENTS, kOwn}, 1) == 0);
  REQUIRE(w.steer.AddPort(PortRule(80, {}), {1, PSTN_XDP_FRAGMENTS, kOwn}, 1) == 0);
  wire_test::Random random(3);
  for (const bool v6 : {false, true}) {
    Bytes with_extensions{kTcp, 0, 1, 4, 0, 0, 0, 0};
    Put(with_extensions, Ports(4000, 80));
    const How how{.v6 = v6};
    const Bytes whole[] = {Segment(4000, 80, kAck, how),
                           Segment(4000, 80, kAck, {.v6 = v6, .vlan = 7}),
                           Ether(IpPacket(v6 ? 0 : kTcp, 1, 2, with_extensions, how), how)};
    for (const Bytes& frame : whole) {
      for (size_t cut = 0; cut < frame.size(); cut++) {
        Bytes part(frame.begin(), frame.begin() + static_cast<ptrdiff_t>(cut));
        const uint32_t to = w.Of(part);
        if (cut < 14 + 24) CHECK(to == kKernel);
      }
      for (int i = 0; i < 20000; i++) {
        Bytes bent = frame;
        for (uint32_t n = random() % 6; n != 0; n--)
          bent[random() % bent.size()] = static_cast<uint8_t>(random());
        bent.resize(random() % (bent.size() + 1));
        (void)w.Of(bent);
      }
    }
  }
}

}  // namespace
}  // namespace postern::softnic
