// wire_packet_test.cc - received frames: what is told of good ones, and that no bad one passes.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/packet.h"

#include <initializer_list>
#include <memory>
#include <string>

#include "../kit/catch.h"
#include "wire_frames.h"

namespace postern::wire {
namespace {

using namespace wire_test;  // NOLINT(google-build-using-namespace): helpers of these tests

// From memory of exactly that size, so that a sanitizer sees a byte too many.
Refusal Parse(const Bytes& frame, Packet& out, uint32_t rx = 0) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[frame.size()]);
  if (!frame.empty()) memcpy(exact.get(), frame.data(), frame.size());
  return ParseFrame(exact.get(), static_cast<uint32_t>(frame.size()), rx, out);
}
std::string Outcome(const Bytes& frame, uint32_t rx = 0) {
  Packet out;
  return RefusalName(Parse(frame, out, rx));
}
std::string Outcome(const FrameSpec& s, uint32_t rx = 0) { return Outcome(MakeFrame(s), rx); }

std::vector<FrameSpec> GoodOnes() {
  std::vector<FrameSpec> all;
  for (bool is6 : {false, true}) {
    all.push_back(TcpSpec(is6, Counting(11)));
    all.push_back(TcpSpec(is6, {}));
    all.push_back(UdpSpec(is6, Counting(33)));
    all.push_back(IcmpSpec(is6, is6 ? 128 : 8, 0, 0x00010002, Counting(56)));
  }
  FrameSpec tagged = TcpSpec(false, Counting(5));
  tagged.tags = {0x81, 0x00, 0x20, 0x07};
  tagged.padding = 9;
  all.push_back(tagged);
  FrameSpec twice = UdpSpec(true, Counting(4));
  twice.tags = {0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0xe0, 0x08};
  all.push_back(twice);
  FrameSpec options = TcpSpec(false, Counting(3));
  options.options = {7, 7, 4, 0, 0, 0, 0, 1, 0x94, 4, 0, 0};  // record route, nop, router alert
  all.push_back(options);
  FrameSpec extended = TcpSpec(true, Counting(6));
  extended.first_next = 0;
  extended.options = Extension(60, {5, 2, 0, 0});
  Put(extended.options, Extension(43, {1, 4, 0, 0, 0, 0, 0, 0}));
  Put(extended.options, Extension(44, {4, 0, 0x3e, 0x20}));  // segment routing, nothing left
  extended.options[extended.options.size() - 5] = 0;
  Put(extended.options, FragmentHeader(6, 0, false, 77));  // atomic
  all.push_back(extended);
  return all;
}

TEST_CASE("packet: what is told of a TCP segment") {
  for (bool is6 : {false, true}) {
    FrameSpec s = TcpSpec(is6, Counting(11));
    s.tos = 0xba;
    s.ttl = 63;
    s.padding = 3;
    const Bytes frame = MakeFrame(s);
    Packet p;
    REQUIRE(Parse(frame, p) == Refusal::kNone);
    CHECK(p.link.bytes == 14);
    CHECK(p.link.vlan == kNoVlan);
    CHECK(p.ip.family == (is6 ? Family::kIpv6 : Family::kIpv4));
    CHECK(p.ip.protocol == 6);
    CHECK(p.ip.tos == 0xba);
    CHECK(EcnOf(p.ip.tos) == 2);
    CHECK(p.ip.ttl == 63);
    CHECK(p.ip.is_fragment == 0);
    CHECK(p.ip.dont_fragment == 1);
    CHECK(p.ip.ip_off == 14);
    CHECK(p.ip.ip_bytes == frame.size() - 14 - 3);
    CHECK(p.ip.l4_off == L4OffOf(s));
    CHECK(p.ip.l4_bytes == s.l4.size());
    CHECK(p.payload_off == L4OffOf(s) + 32);
    CHECK(p.payload_bytes == 11);
    CHECK(p.source_port == 40001);
    CHECK(p.destination_port == 80);
    CHECK(p.l4_state == L4State::kVerified);
    IpAddress from, to;
    if (is6) {
      memcpy(from.bytes, Address6(1).data(), 16);
      memcpy(to.bytes, Address6(2).data(), 16);
    } else {
      from = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 1}};
      to = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 2}};
    }
    CHECK(p.ip.source == from);
    CHECK(p.ip.destination == to);
    CHECK(p.ip.source.IsV4() == !is6);
  }
}

TEST_CASE("packet: all kinds of good frames") {
  for (const FrameSpec& s : GoodOnes()) {
    Packet p;
    INFO("protocol " << int{s.protocol} << " v6 " << s.is6 << " tags " << s.tags.size());
    REQUIRE(std::string(RefusalName(Parse(MakeFrame(s), p))) == "none");
    CHECK(p.ip.l4_off == L4OffOf(s));
    CHECK(p.ip.l4_bytes == s.l4.size());
    CHECK(p.ip.protocol == s.protocol);
    CHECK(p.l4_state == L4State::kVerified);
    CHECK(p.ip.is_fragment == 0);
  }
}

TEST_CASE("packet: VLAN tags") {
  FrameSpec s = TcpSpec(false, {});
  Packet p;
  s.tags = {0x81, 0x00, 0x20, 0x07};
  REQUIRE(Parse(MakeFrame(s), p) == Refusal::kNone);
  CHECK(p.link.vlan == 0x2007);
  CHECK(p.link.outer_vlan == kNoVlan);
  s.tags = {0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0xe0, 0x08};
  REQUIRE(Parse(MakeFrame(s), p) == Refusal::kNone);
  CHECK(p.link.vlan == 0xe008);
  CHECK(p.link.outer_vlan == 0x0064);
  CHECK(p.link.bytes == 22);
  s.tags = {0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0xe0, 0x08, 0x81, 0x00, 0x00, 0x01};
  CHECK(Outcome(s) == "vlan-depth");
}

TEST_CASE("packet: an Ethernet header that is written is read") {
  for (int tags = 0; tags <= 2; tags++) {
    LinkOut link{{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}};
    if (tags > 0) link.vlan = 0x2007;
    if (tags > 1) link.outer_vlan = 0x0064;
    Bytes frame(EthernetBytes(link), 0xcc);
    REQUIRE(BuildEthernet(frame.data(), link, Family::kIpv6) == frame.size());
    LinkHead head;
    REQUIRE(ParseEthernet(frame.data(), static_cast<uint32_t>(frame.size()), head) ==
            Refusal::kNone);
    CHECK(head.bytes == frame.size());
    CHECK(head.type == kEtherIpv6);
    CHECK(head.vlan == link.vlan);
    CHECK(head.outer_vlan == link.outer_vlan);
    CHECK(head.is_multicast == 1);
    CHECK(memcmp(frame.data() + 6, link.source, 6) == 0);
  }
}

TEST_CASE("packet: no truncated frame passes") {
  for (const FrameSpec& s : GoodOnes()) {
    const Bytes whole = MakeFrame(s);
    for (size_t bytes = 0; bytes < whole.size() - s.padding; bytes++) {
      Packet p;
      REQUIRE(Parse(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes)), p) !=
              Refusal::kNone);
    }
  }
}

// Flips one bit anywhere under a checksum: header and payload of IPv4, payload of IPv6. (The flow
// label, the traffic class and the hop limit of IPv6, and the Ethernet header, have none.)
TEST_CASE("packet: no single changed byte passes as the same") {
  wire_test::Random random(11);
  for (const FrameSpec& s : GoodOnes()) {
    const Bytes whole = MakeFrame(s);
    const size_t ip = IpOffOf(s), l4 = L4OffOf(s);
    for (size_t at = ip; at < whole.size() - s.padding; at++) {
      const bool is_covered = !s.is6 || at >= l4 || (at >= ip + 8 && at < ip + 40);
      for (int bit = 0; bit < 8; bit++) {
        Bytes changed = whole;
        changed[at] ^= static_cast<uint8_t>(1 << bit);
        Packet p;
        const Refusal refusal = Parse(changed, p);
        if (refusal != Refusal::kNone) continue;
        INFO("byte " << at - ip << " bit " << bit << " protocol " << int{s.protocol} << " v6 "
                     << s.is6);
        // Another protocol has no checksum that we know; a length of 0 in UDP none at all.
        REQUIRE((!is_covered || p.ip.protocol != s.protocol || p.ip.is_fragment != 0));
        REQUIRE(s.is6);
      }
      Bytes changed = whole;
      changed[at] = static_cast<uint8_t>(random());
      Packet p;
      if (changed != whole && !s.is6) REQUIRE(Parse(changed, p) != Refusal::kNone);
    }
  }
}

TEST_CASE("packet: checksums that the device has verified are not asked again") {
  FrameSpec s = TcpSpec(false, Counting(9));
  s.l4.back() ^= 1;
  Bytes frame = MakeFrame(s);
  CHECK(Outcome(frame) == "l4-checksum");
  CHECK(Outcome(frame, kRxL4Verified) == "none");
  frame[14 + 8]++;
  CHECK(Outcome(frame, kRxL4Verified) == "ip-checksum");
  CHECK(Outcome(frame, kRxL4Verified | kRxIpVerified) == "none");
  // Nobody verifies those of ICMP for us.
  FrameSpec echo = IcmpSpec(false, 8, 0, 1, Counting(8));
  echo.l4.back() ^= 1;
  CHECK(Outcome(echo, kRxL4Verified) == "l4-checksum");
}

TEST_CASE("packet: lengths that contradict each other") {
  Bytes frame = MakeFrame(TcpSpec(false, Counting(4)));
  const auto with = [&](size_t off, uint32_t value) {
    Bytes changed = frame;
    Set16(changed, off, value);
    return Outcome(changed, kRxIpVerified | kRxL4Verified);
  };
  const uint32_t total = Get16(frame, 16);
  CHECK(with(16, total + 1) == "ip-length");
  CHECK(with(16, 19) == "ip-length");
  CHECK(with(16, 0) == "ip-length");
  CHECK(with(16, 20) == "l4-short");
  CHECK(with(16, 51) == "l4-length");  // the TCP header says 32
  CHECK(with(14, 0x4400) == "ip-length");
  CHECK(with(14, 0x5500) == "ip-version");
  CHECK(with(46, 0x4018) == "l4-length");
  frame = MakeFrame(UdpSpec(true, Counting(4)));
  CHECK(with(58, 7) == "l4-length");
  CHECK(with(58, 13) == "l4-length");
  CHECK(with(58, 12) == "none");
  CHECK(with(58, 11) == "none");  // UDP may end before the packet does
  CHECK(with(18, 13) == "ip-length");
}

TEST_CASE("packet: UDP without a checksum is IPv4's only") {
  for (bool is6 : {false, true}) {
    FrameSpec s = UdpSpec(is6, Counting(4));
    Set16(s.l4, 6, 0);
    Packet p;
    CHECK(Parse(MakeFrame(s), p) == (is6 ? Refusal::kL4Checksum : Refusal::kNone));
    if (!is6) CHECK(p.l4_state == L4State::kNoChecksum);
  }
}

TEST_CASE("packet: addresses that come from no wire") {
  const auto outcome4 = [](Bytes source, Bytes destination) {
    FrameSpec s = TcpSpec(false, {});
    s.source = std::move(source);
    s.destination = std::move(destination);
    FixChecksum(s);
    return Outcome(s);
  };
  CHECK(outcome4({127, 0, 0, 1}, {10, 1, 2, 2}) == "martian");
  CHECK(outcome4({10, 1, 2, 1}, {127, 3, 2, 1}) == "martian");
  CHECK(outcome4({0, 0, 0, 0}, {10, 1, 2, 2}) == "martian");
  CHECK(outcome4({255, 255, 255, 255}, {10, 1, 2, 2}) == "martian");
  CHECK(outcome4({224, 0, 0, 1}, {10, 1, 2, 2}) == "martian");
  CHECK(outcome4({10, 1, 2, 1}, {0, 0, 0, 0}) == "martian");
  CHECK(outcome4({10, 1, 2, 1}, {239, 1, 1, 1}) == "martian");  // TCP
  const auto outcome6 = [](Bytes source, Bytes destination) {
    FrameSpec s = TcpSpec(true, {});
    if (!source.empty()) s.source = std::move(source);
    if (!destination.empty()) s.destination = std::move(destination);
    FixChecksum(s);
    return Outcome(s);
  };
  Bytes unspecified(16, 0), loopback(16, 0), mapped(16, 0), group(16, 0);
  loopback[15] = 1;
  mapped[10] = mapped[11] = 0xff;
  mapped[12] = 10;
  group[0] = 0xff;
  group[1] = 2;
  CHECK(outcome6(unspecified, {}) == "martian");
  CHECK(outcome6(loopback, {}) == "martian");
  CHECK(outcome6(mapped, {}) == "martian");
  CHECK(outcome6(group, {}) == "martian");
  CHECK(outcome6({}, unspecified) == "martian");
  CHECK(outcome6({}, loopback) == "martian");
  CHECK(outcome6({}, mapped) == "martian");
  CHECK(outcome6({}, group) == "martian");  // TCP
}

TEST_CASE("packet: datagrams to groups pass, segments to groups do not") {
  Bytes everybody = MakeFrame(TcpSpec(false, {}));
  everybody[0] = 0xff;  // the link's broadcast
  CHECK(Outcome(everybody) == "martian");
  FrameSpec s = UdpSpec(false, {});
  for (const Bytes& group : {Bytes{239, 1, 1, 1}, Bytes{255, 255, 255, 255}}) {
    s.destination = group;
    FixChecksum(s);
    Packet p;
    CHECK(Parse(MakeFrame(s), p) == Refusal::kNone);
    CHECK(p.ip.is_multicast == 1);
  }
  s = UdpSpec(true, {});
  s.destination = Address6(9);
  for (uint8_t scope = 0; scope < 16; scope++) {
    s.destination[0] = 0xff;
    s.destination[1] = scope;
    FixChecksum(s);
    CHECK(Outcome(s) == (scope <= 1 ? "martian" : "none"));  // RFC 4291, 2.7
  }
}

TEST_CASE("packet: IPv4 options") {
  const auto outcome = [](Bytes options) {
    FrameSpec s = TcpSpec(false, {});
    s.options = std::move(options);
    return Outcome(s);
  };
  CHECK(outcome({1, 1, 1, 0}) == "none");
  CHECK(outcome({0, 131, 3, 4}) == "none");  // behind the end
  CHECK(outcome({131, 3, 4, 0}) == "source-route");
  CHECK(outcome({1, 137, 3, 4}) == "source-route");
  CHECK(outcome({7, 1, 0, 0}) == "ip-options");
  CHECK(outcome({7, 0, 0, 0}) == "ip-options");
  CHECK(outcome({7, 5, 0, 0}) == "ip-options");
  CHECK(outcome({1, 1, 1, 7}) == "ip-options");
}

TEST_CASE("packet: IPv6 extension headers") {
  const auto outcome = [](uint8_t first, const Bytes& options) {
    FrameSpec s = TcpSpec(true, {});
    s.first_next = first;
    s.options = options;
    return Outcome(s);
  };
  const auto chain = [](std::vector<Bytes> all) {
    Bytes out;
    for (const Bytes& one : all) Put(out, one);
    return out;
  };
  CHECK(outcome(0, Extension(6, {1, 4, 0, 0, 0, 0})) == "none");
  CHECK(outcome(60, Extension(6, {0x1e, 2, 9, 9})) == "none");  // unknown, may be skipped
  CHECK(outcome(60, Extension(6, {0x5e, 2, 9, 9})) == "ip6-extension");
  CHECK(outcome(60, Extension(6, {0x9e, 2, 9, 9})) == "ip6-extension");
  CHECK(outcome(60, Extension(6, {1, 5, 0, 0})) == "ip6-extension");  // beyond its header
  CHECK(outcome(0, Extension(6, {0xc2, 4, 0, 1, 0, 0})) == "ip6-jumbogram");
  CHECK(outcome(60, chain({Extension(0, {}), Extension(6, {})})) == "ip6-extension");
  CHECK(outcome(43, Extension(6, {0, 0, 0, 0, 0, 0})) == "source-route");  // type 0
  CHECK(outcome(43, Extension(6, {4, 1, 0, 0, 0, 0})) == "source-route");
  CHECK(outcome(43, Extension(6, {4, 0, 0, 0, 0, 0})) == "none");
  CHECK(outcome(44, FragmentHeader(6, 0, false, 1)) == "none");
  CHECK(outcome(60, {6, 200, 0, 0, 0, 0, 0, 0}) == "ip6-extension");
  Bytes many;
  for (int i = 0; i < 7; i++) Put(many, Extension(60, {}));
  Bytes eight = many, nine = many;
  Put(eight, Extension(6, {}));
  Put(nine, Extension(60, {}));
  Put(nine, Extension(6, {}));
  CHECK(outcome(60, eight) == "none");
  CHECK(outcome(60, nine) == "ip6-extensions");
}

TEST_CASE("packet: fragments of IPv4") {
  FrameSpec s = UdpSpec(false, Counting(40));
  const auto outcome = [&](uint32_t field, size_t from, size_t bytes, Packet& p) {
    FrameSpec piece = s;
    piece.fragment = field;
    piece.l4.assign(s.l4.begin() + static_cast<ptrdiff_t>(from),
                    s.l4.begin() + static_cast<ptrdiff_t>(from + bytes));
    return std::string(RefusalName(Parse(MakeFrame(piece), p)));
  };
  Packet p;
  REQUIRE(outcome(0x2000, 0, 24, p) == "none");
  CHECK(p.ip.is_fragment == 1);
  CHECK(p.ip.has_more == 1);
  CHECK(p.ip.fragment_off == 0);
  CHECK(p.ip.fragment_id == 0x1234);
  CHECK(p.ip.data_bytes == 24);
  CHECK(p.source_port == 5353);
  CHECK(p.l4_state == L4State::kUnknown);
  REQUIRE(outcome(3, 24, 24, p) == "none");
  CHECK(p.ip.has_more == 0);
  CHECK(p.ip.fragment_off == 24);
  CHECK(p.ip.data_bytes == 24);
  CHECK(p.source_port == 0);
  CHECK(outcome(0x2003, 24, 23, p) == "fragment");
  CHECK(outcome(0x2003, 24, 0, p) == "fragment");
  CHECK(outcome(3, 24, 23, p) == "none");
  CHECK(outcome(0x1fff, 0, 16, p) == "fragment");
  CHECK(outcome(0x1ffc, 0, 8, p) == "none");
  CHECK(outcome(0x1ffd, 0, 8, p) == "fragment");  // with the header it would be 65,536
  s = TcpSpec(false, Counting(40));
  CHECK(outcome(0x2000, 0, 16, p) == "tiny-fragment");
  CHECK(outcome(0x2000, 0, 24, p) == "tiny-fragment");  // 32 are its header
  CHECK(outcome(0x2000, 0, 32, p) == "none");
}

TEST_CASE("packet: fragments of IPv6") {
  const FrameSpec s = TcpSpec(true, Counting(40));
  const auto outcome = [&](const Bytes& headers, uint8_t first, size_t from, size_t bytes,
                           Packet& p) {
    FrameSpec piece = s;
    piece.options = headers;
    piece.first_next = first;
    piece.l4.assign(s.l4.begin() + static_cast<ptrdiff_t>(from),
                    s.l4.begin() + static_cast<ptrdiff_t>(from + bytes));
    return std::string(RefusalName(Parse(MakeFrame(piece), p)));
  };
  Packet p;
  Bytes behind = FragmentHeader(60, 0, true, 0xdeadbeef);
  Put(behind, Extension(6, {}));
  REQUIRE(outcome(behind, 44, 0, 32, p) == "none");
  CHECK(p.ip.is_fragment == 1);
  CHECK(p.ip.fragment_id == 0xdeadbeef);
  CHECK(p.ip.protocol == 6);
  CHECK(p.ip.data_off == 14 + 40 + 8);
  CHECK(p.ip.data_bytes == 40);
  CHECK(p.ip.l4_off == 14 + 40 + 16);
  CHECK(p.destination_port == 80);
  REQUIRE(outcome(FragmentHeader(60, 40, false, 1), 44, 32, 30, p) == "none");
  CHECK(p.ip.protocol == 60);  // what is here is from the middle
  CHECK(p.ip.fragment_off == 40);
  CHECK(p.ip.data_bytes == 30);
  CHECK(p.ip.l4_off == p.ip.data_off);
  CHECK(outcome(FragmentHeader(6, 40, true, 1), 44, 32, 30, p) == "fragment");
  CHECK(outcome(FragmentHeader(6, 40, true, 1), 44, 32, 0, p) == "fragment");
  CHECK(outcome(FragmentHeader(6, 0xfff8, false, 1), 44, 0, 7, p) == "none");
  CHECK(outcome(FragmentHeader(6, 0xfff8, false, 1), 44, 0, 8, p) == "fragment");
  CHECK(outcome(FragmentHeader(6, 0, true, 1), 44, 0, 24, p) == "tiny-fragment");
  CHECK(outcome(FragmentHeader(60, 0, true, 1), 44, 0, 0, p) == "fragment");
  Bytes cut = FragmentHeader(60, 0, true, 1);
  Put(cut, {6, 1, 0, 0, 0, 0, 0, 0});  // says 16 bytes
  CHECK(outcome(cut, 44, 0, 0, p) == "tiny-fragment");
}

TEST_CASE("packet: what is not IP is the kernel's") {
  Bytes frame = MakeFrame(TcpSpec(false, {}));
  Set16(frame, 12, 0x0806);
  CHECK(Outcome(frame) == "ether-type");
  Set16(frame, 12, 0x86dd);
  CHECK(Outcome(frame) == "ip-version");
  Set16(frame, 12, 0x0040);
  CHECK(Outcome(frame) == "ether-type");
}

TEST_CASE("packet: protocols that we do not speak pass unchecked") {
  for (bool is6 : {false, true}) {
    FrameSpec s;
    s.is6 = is6;
    s.protocol = is6 ? 1 : 58;  // ICMP of the other family
    s.l4 = Counting(5);
    Packet p;
    REQUIRE(Parse(MakeFrame(s), p) == Refusal::kNone);
    CHECK(p.l4_state == L4State::kUnknown);
    CHECK(p.payload_bytes == 5);
  }
}

// ---------------------------------------------------------------- building

IpOut Out(bool is6) {
  IpOut ip;
  ip.family = is6 ? Family::kIpv6 : Family::kIpv4;
  if (is6) {
    memcpy(ip.source.bytes, Address6(1).data(), 16);
    memcpy(ip.destination.bytes, Address6(2).data(), 16);
  } else {
    ip.source = Ipv4At(Address4(1).data());
    ip.destination = Ipv4At(Address4(2).data());
  }
  ip.protocol = 17;
  ip.tos = 0xb9;
  ip.ttl = 61;
  ip.id = is6 ? 0x12345678 : 0x5678;
  return ip;
}

TEST_CASE("packet: a header that is built is the one the RFC draws") {
  for (bool is6 : {false, true}) {
    FrameSpec s = UdpSpec(is6, Counting(13));
    s.tos = 0xb9;
    s.ttl = 61;
    s.id = 0x5678;
    const Bytes wanted = MakeFrame(s);
    IpOut ip = Out(is6);
    ip.flow_label = 0xabcde;
    Bytes header(IpHeaderBytes(ip));
    REQUIRE(BuildIp(header.data(), ip, static_cast<uint32_t>(s.l4.size())) == header.size());
    CHECK(memcmp(header.data(), wanted.data() + 14, header.size()) == 0);
  }
}

TEST_CASE("packet: fragments to be sent cover the datagram and fit the link") {
  for (bool is6 : {false, true}) {
    for (uint32_t mtu : {68u, 576u, 1280u, 1500u, 9000u}) {
      for (uint32_t l4_bytes : {9u, 40u, 1400u, 1473u, 1480u, 1481u, 8000u, 65515u}) {
        const Bytes l4 = Counting(l4_bytes);
        IpOut ip = Out(is6);
        ip.dont_fragment = false;
        uint32_t off = 0, pieces = 0;
        bool is_last = false;
        while (uint32_t bytes = NextFragment(ip, l4_bytes, mtu, off)) {
          Bytes frame = MakeFrame(FrameSpec{.is6 = is6});
          frame.resize(14);
          frame.resize(14 + IpHeaderBytes(ip));
          BuildIp(frame.data() + 14, ip, bytes);
          frame.insert(frame.end(), l4.begin() + off, l4.begin() + off + bytes);
          REQUIRE(frame.size() - 14 <= mtu);
          REQUIRE(!is_last);
          Packet p;
          const Refusal refusal = Parse(frame, p, kRxL4Verified);
          if (off == 0) {
            // Its UDP header is nonsense; what it says of lengths may be refused.
            REQUIRE((refusal == Refusal::kNone || refusal == Refusal::kL4Length));
          } else {
            REQUIRE(refusal == Refusal::kNone);
            REQUIRE(p.ip.is_fragment == 1);
            REQUIRE(p.ip.fragment_off == off);
            REQUIRE(p.ip.fragment_id == ip.id);
            REQUIRE(p.ip.data_bytes == bytes);
            REQUIRE((p.ip.has_more != 0) == ip.has_more);
          }
          is_last = !ip.has_more;
          off += bytes;
          pieces++;
        }
        REQUIRE(off == l4_bytes);
        REQUIRE(is_last);
        REQUIRE((pieces == 1) == (l4_bytes + (is6 ? 40 : 20) <= mtu));
      }
    }
  }
}

TEST_CASE("packet: what cannot be cut is not") {
  IpOut ip = Out(false);
  CHECK(NextFragment(ip, 1480, 1500, 0) == 1480);
  CHECK(NextFragment(ip, 1481, 1500, 0) == 0);  // don't fragment
  ip.dont_fragment = false;
  CHECK(NextFragment(ip, 1481, 27, 0) == 0);
  CHECK(NextFragment(ip, 65516, 1500, 0) == 0);
  ip = Out(true);
  CHECK(NextFragment(ip, 65536, 1500, 0) == 0);
  CHECK(NextFragment(ip, 65535, 1500, 0) == 1448);
}

}  // namespace
}  // namespace postern::wire
