// verbs_flow_rule_test.cc - filters as specs of ibv_create_flow(), byte by byte.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>

#include <string>
#include <vector>

#include "../../../controlplane/verbsnic/flow_rule.h"
#include "../kit/catch.h"
#include "verbs_frames.h"

namespace postern::verbsnic {
namespace {

constexpr uint8_t kTcp = 6, kUdp = 17;

pstn_xdp_ip Ip6(uint8_t n) {
  pstn_xdp_ip ip{};
  ip.byte[0] = 0xfd;
  ip.byte[15] = n;
  return ip;
}
pstn_xdp_ip Any4() {
  pstn_xdp_ip ip = Ip(0);
  ip.byte[12] = 0;
  return ip;
}

std::string Hex(const FlowRule& rule, size_t from, size_t to) {
  std::string text;
  for (size_t i = from; i < to; i++) {
    char two[4];
    snprintf(two, sizeof(two), "%02x", rule.bytes()[i]);
    if (i != from && (i - from) % 4 == 0) text += ' ';
    text += two;
  }
  return text;
}

// On a machine that is little-endian, as those are that this is tested on: types, sizes and the
// attribute are the machine's, all else is as on the wire.
TEST_CASE("verbs: a flow of IPv4 as specs") {
  const pstn_xdp_flow flow = {Ip(2), Ip(1), htons(80), htons(0x1234), 0, kTcp, 0};
  FlowRule rule(flow, kMac, 1);
  REQUIRE(rule.size() == 20 + 40 + 24 + 16);
  // comp_mask, type, size and priority, specs and port, flags
  CHECK(Hex(rule, 0, 20) == "00000000 00000000 64000000 03010000 00000000");
  // type, size; dst, src, ether type, tag; their masks
  CHECK(
      Hex(rule, 20, 60) ==
      "20000000 28000211 22334455 00000000 00000800 0000ffff ffffffff 00000000 0000ffff 00000000");
  // type, size and a gap; src, dst; masks
  CHECK(Hex(rule, 60, 84) == "30000000 18000000 0a000001 0a000002 ffffffff ffffffff");
  // type, size; dst, src; masks
  CHECK(Hex(rule, 84, 100) == "40000000 10000050 1234ffff ffff0000");
}

TEST_CASE("verbs: a flow of IPv6, of UDP, with a tag") {
  const pstn_xdp_flow flow = {Ip6(2), Ip6(1), htons(53), htons(7), 0x123, kUdp, 0};
  FlowRule rule(flow, kMac, 2);
  REQUIRE(rule.size() == 20 + 40 + 88 + 16);
  CHECK(Hex(rule, 0, 20) == "00000000 00000000 a4000000 03020000 00000000");
  CHECK(
      Hex(rule, 20, 60) ==
      "20000000 28000211 22334455 00000000 000086dd 0123ffff ffffffff 00000000 0000ffff 0fff0000");
  CHECK(Hex(rule, 60, 108) ==
        "31000000 58000000 fd000000 00000000 00000000 00000001 fd000000 00000000 00000000 00000002 "
        "00000000 00000000");
  CHECK(
      Hex(rule, 108, 148) ==
      "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 00000000 00000000");
  CHECK(Hex(rule, 148, 164) == "41000000 10000035 0007ffff ffff0000");
}

TEST_CASE("verbs: a port at an address, and at any") {
  FlowRule one(pstn_xdp_port{Ip(2), htons(80), 0, kTcp, {}}, kMac, 1);
  CHECK(Hex(one, 60, 84) == "30000000 18000000 00000000 0a000002 00000000 ffffffff");
  CHECK(Hex(one, 84, 100) == "40000000 10000050 0000ffff 00000000");
  FlowRule any(pstn_xdp_port{Any4(), htons(80), 0, kTcp, {}}, kMac, 1);
  CHECK(Hex(any, 60, 84) == "30000000 18000000 00000000 00000000 00000000 00000000");
  CHECK(Hex(any, 84, 100) == "40000000 10000050 0000ffff 00000000");
  // Any of IPv6 is of IPv6: the type of the frame says it.
  FlowRule any6(pstn_xdp_port{{}, htons(80), 0, kTcp, {}}, kMac, 1);
  CHECK(Hex(any6, 60, 68) == "31000000 58000000");
  CHECK(Hex(any6, 38, 40) == "86dd");
  CHECK(Hex(any6, 68, 148) == Hex(FlowRule(pstn_xdp_port{}, kMac, 1), 68, 148));
}

}  // namespace
}  // namespace postern::verbsnic
