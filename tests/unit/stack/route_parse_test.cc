// SPDX-License-Identifier: Apache-2.0
// route_parse_test.cc - rtnetlink's messages, whole, cut at each place, and with what is not known.
#include <arpa/inet.h>
#include <linux/if_addrlabel.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/nexthop.h>

#include <initializer_list>

#include "../kit/catch.h"
#include "route_world.h"

namespace postern::route_test {
namespace {

using namespace daemon;  // NOLINT(google-build-using-namespace): what is tested

rtmsg RouteHeader(unsigned char plen, unsigned char type = RTN_UNICAST) {
  rtmsg h{};
  h.rtm_family = AF_INET;
  h.rtm_dst_len = plen;
  h.rtm_type = type;
  h.rtm_table = RT_TABLE_MAIN;
  return h;
}

// Two hops in a RTA_MULTIPATH.
std::vector<char> TwoHops() {
  std::vector<char> out;
  for (int i = 0; i < 2; i++) {
    rtnexthop hop{};
    hop.rtnh_len = sizeof hop + 8;
    hop.rtnh_ifindex = 2 + i;
    hop.rtnh_hops = static_cast<unsigned char>(i * 4);
    hop.rtnh_flags = i == 1 ? RTNH_F_DEAD | RTNH_F_LINKDOWN : 0;
    const nlattr attr = {8, RTA_GATEWAY};
    const uint32_t gateway = htonl(0x0a000002u + static_cast<uint32_t>(i));
    const auto add = [&out](const void* data, size_t size) {
      const auto* at = static_cast<const char*>(data);
      out.insert(out.end(), at, at + size);
    };
    add(&hop, sizeof hop);
    add(&attr, sizeof attr);
    add(&gateway, sizeof gateway);
  }
  return out;
}

Message Multipath() {
  Message m(RTM_NEWROUTE, RouteHeader(24));
  m.Address(RTA_DST, "20.1.2.0").Put(RTA_PRIORITY, 77u).Put(RTA_TABLE, 1234u);
  m.Nest(RTA_METRICS, [](Message& in) {
    in.Put(RTAX_MTU, 1400u).Put(RTAX_LOCK, 4u).Text(RTAX_CC_ALGO, "reno");
  });
  const std::vector<char> hops = TwoHops();
  m.Put(RTA_MULTIPATH, hops.data(), hops.size());
  return m;
}

TEST_CASE("route_parse: a route with two next hops and metrics") {
  RouteEntry r;
  REQUIRE(ParseRoute(Multipath().get(), r));
  CHECK(IpAt(r.route.dst) == Ip("20.1.2.0"));
  CHECK(r.route.plen == 96 + 24);
  CHECK(r.table_id == 1234);
  CHECK(r.route.metric == 77);
  CHECK(r.metrics.value[RTAX_MTU] == 1400);
  CHECK(std::string(r.metrics.congestion) == "reno");
  REQUIRE(r.hops.size() == 2);
  CHECK(IpAt(r.hops[0].gateway) == Ip("10.0.0.2"));
  CHECK(r.hops[0].weight == 1);
  CHECK(r.hops[1].weight == 5);
  CHECK(r.hops[1].flags == (PSTN_RH_DEAD | PSTN_RH_LINKDOWN));
  CHECK(r.route.flags == 0);
}

TEST_CASE("route_parse: what we don't know is marked, not ignored") {
  RouteEntry r;
  Message wrapped(RTM_NEWROUTE, RouteHeader(8));
  wrapped.Put(RTA_OIF, 2u).Put(RTA_ENCAP_TYPE, uint16_t{1});
  REQUIRE(ParseRoute(wrapped.get(), r));
  CHECK((r.hops[0].flags & PSTN_RH_ENCAP) != 0);
  Message unknown(RTM_NEWROUTE, RouteHeader(8));
  unknown.Put(RTA_OIF, 2u).Put(200, 1u);
  REQUIRE(ParseRoute(unknown.get(), r));
  CHECK((r.route.flags & PSTN_RR_UNKNOWN) != 0);
  fib_rule_hdr h{};
  h.family = AF_INET;
  h.action = FR_ACT_TO_TBL;
  RuleEntry rule;
  Message strange(RTM_NEWRULE, h);
  REQUIRE(ParseRule(strange.Put(FRA_TABLE, 5u).get(), rule));
  CHECK(rule.rule.flags == 0);
  REQUIRE(ParseRule(strange.Put(99, 1u).get(), rule));
  CHECK(rule.rule.flags == PSTN_RU_UNKNOWN);
  Message clone(RTM_NEWROUTE, [] {
    rtmsg c = RouteHeader(32);
    c.rtm_flags = RTM_F_CLONED;
    return c;
  }());
  CHECK_FALSE(ParseRoute(clone.get(), r));
}

TEST_CASE("route_parse: an IPv4 route by an IPv6 gateway, and one that has expired") {
  struct {
    uint16_t family = AF_INET6;
    uint8_t ip[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5};
  } via;
  Message m(RTM_NEWROUTE, RouteHeader(8));
  m.Put(RTA_OIF, 3u).Put(RTA_VIA, &via, sizeof via);
  RouteEntry r;
  REQUIRE(ParseRoute(m.get(), r));
  CHECK(r.hops[0].via == 6);
  CHECK(IpAt(r.hops[0].gateway) == Ip("fe80::5"));
  rta_cacheinfo info{};
  info.rta_expires = 250;
  REQUIRE(ParseRoute(m.Put(RTA_CACHEINFO, info).get(), r));
  CHECK(r.expires_ms == 2510);
  info.rta_expires = -1;
  CHECK_FALSE(ParseRoute(m.Put(RTA_CACHEINFO, info).get(), r));
}

TEST_CASE("route_parse: rules") {
  fib_rule_hdr h{};
  h.family = AF_INET6;
  h.action = FR_ACT_TO_TBL;
  h.src_len = 64;
  h.flags = FIB_RULE_INVERT;
  Message m(RTM_NEWRULE, h);
  const fib_rule_port_range ports = {100, 200};
  const fib_rule_uid_range uids = {5, 9};
  m.Address(FRA_SRC, "fd00::").Put(FRA_PRIORITY, 10u).Put(FRA_TABLE, 300u).Put(FRA_FWMARK, 1u);
  m.Text(FRA_IIFNAME, "lo").Put(FRA_DPORT_RANGE, ports).Put(FRA_UID_RANGE, uids);
  m.Put(FRA_IP_PROTO, uint8_t{6}).Put(FRA_SUPPRESS_PREFIXLEN, 0u).Put(29, uint16_t{0xffff});
  RuleEntry r;
  REQUIRE(ParseRule(m.get(), r));
  CHECK(r.rule.flags == (PSTN_RU_INVERT | PSTN_RU_UID));
  CHECK((r.rule.priority == 10 && r.table_id == 300 && r.rule.src_plen == 64));
  CHECK((r.rule.mark == 1 && r.rule.mark_mask == 0xffffffff && r.iif == "lo"));
  CHECK((r.rule.dport_first == 100 && r.rule.dport_last == 200 && r.rule.proto == 6));
  CHECK((r.rule.uid_first == 5 && r.rule.uid_last == 9 && r.rule.suppress_plen == 0));
}

ifinfomsg LinkHeader(int ifindex) {
  ifinfomsg h{};
  h.ifi_index = ifindex;
  h.ifi_type = 1;
  h.ifi_flags = IFF_UP | IFF_LOWER_UP;
  return h;
}

TEST_CASE("route_parse: VLANs, bonds and ports of a VRF") {
  LinkEntry l;
  Message vlan(RTM_NEWLINK, LinkHeader(9));
  vlan.Text(IFLA_IFNAME, "e0.5").Put(IFLA_MTU, 1496u).Put(IFLA_LINK, 2u);
  vlan.Nest(IFLA_LINKINFO, [](Message& info) {
    info.Text(IFLA_INFO_KIND, "vlan").Nest(IFLA_INFO_DATA, [](Message& data) {
      data.Put(IFLA_VLAN_ID, uint16_t{5}).Put(IFLA_VLAN_PROTOCOL, htons(0x8100));
    });
  });
  REQUIRE(ParseLink(vlan.get(), l));
  CHECK((l.name == "e0.5" && l.link.kind == PSTN_LINK_VLAN && l.link.lower == 2));
  CHECK((l.link.vid == 5 && l.link.tpid == 0x8100 && l.link.mtu == 1496));
  REQUIRE(ParseLink(vlan.Put(IFLA_LINK_NETNSID, 0u).get(), l));
  CHECK(l.link.lower == 0);  // the device below is in another namespace

  for (const uint8_t mode : {uint8_t{1}, uint8_t{0}}) {
    Message bond(RTM_NEWLINK, LinkHeader(10));
    bond.Nest(IFLA_LINKINFO, [&](Message& info) {
      info.Text(IFLA_INFO_KIND, "bond").Nest(IFLA_INFO_DATA, [&](Message& data) {
        data.Put(IFLA_BOND_MODE, mode).Put(IFLA_BOND_ACTIVE_SLAVE, 3u);
      });
    });
    REQUIRE(ParseLink(bond.get(), l));
    CHECK(l.link.lower == (mode == 1 ? 3u : 0u));
  }
  Message port(RTM_NEWLINK, LinkHeader(3));
  port.Put(IFLA_MASTER, 12u);
  port.Nest(IFLA_LINKINFO, [](Message& info) { info.Text(IFLA_INFO_SLAVE_KIND, "vrf"); });
  REQUIRE(ParseLink(port.get(), l));
  CHECK(l.link.conf == PSTN_LC_L3SLAVE);
}

TEST_CASE("route_parse: neighbours, addresses, labels, nexthop objects") {
  ndmsg nd{};
  nd.ndm_family = AF_INET;
  nd.ndm_ifindex = 4;
  nd.ndm_state = NUD_STALE;
  const uint8_t mac[6] = {2, 0, 0, 0, 0, 1};
  NeighEntry n;
  Message neigh(RTM_NEWNEIGH, nd);
  CHECK_FALSE(ParseNeigh(neigh.get(), n));  // whose?
  REQUIRE(ParseNeigh(neigh.Address(NDA_DST, "10.0.0.9").Put(NDA_LLADDR, mac).get(), n));
  CHECK((n.neigh.ifindex == 4 && n.neigh.state == NUD_STALE && !n.gone));
  CHECK(n.neigh.flags == PSTN_NB_MAC);
  nd.ndm_flags = NTF_PROXY;
  CHECK_FALSE(ParseNeigh(Message(RTM_NEWNEIGH, nd).Address(NDA_DST, "10.0.0.9").get(), n));

  ifaddrmsg ia{};
  ia.ifa_family = AF_INET;
  ia.ifa_prefixlen = 24;
  ia.ifa_index = 2;
  AddrEntry a;
  Message addr(RTM_NEWADDR, ia);
  addr.Address(IFA_LOCAL, "10.0.0.1").Address(IFA_ADDRESS, "10.9.0.1").Put(IFA_FLAGS, 0x80u);
  REQUIRE(ParseAddr(addr.get(), a));
  CHECK(IpAt(a.addr.ip) == Ip("10.0.0.1"));
  CHECK(IpAt(a.addr.peer) == Ip("10.9.0.1"));
  CHECK((a.addr.plen == 120 && a.addr.flags == 0x80));

  nhmsg nh{};
  NexthopEntry x;
  const uint32_t members[] = {1, 2, 7, 4};  // id, weight 3; id 7, weight 5
  REQUIRE(
      ParseNexthop(Message(RTM_NEWNEXTHOP, nh).Put(NHA_ID, 9u).Put(NHA_GROUP, members).get(), x));
  REQUIRE(x.group.size() == 2);
  CHECK((x.group[0].id == 1 && x.group[0].weight == 3 && x.group[1].weight == 5));
}

TEST_CASE(
    "route_parse: a message that is cut anywhere is refused or taken in part, never read past") {
  const Message whole[] = {Multipath()};
  for (Message m : whole) {
    (void)m.get();
    const std::vector<char> bytes = m.bytes();
    for (size_t size = sizeof(nlmsghdr); size <= bytes.size(); size++) {
      std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      cut.shrink_to_fit();  // so that a sanitizer sees one byte too many
      auto* head = reinterpret_cast<nlmsghdr*>(cut.data());
      head->nlmsg_len = static_cast<uint32_t>(size);
      RouteModel model;
      (void)TakeMessage(head, model);
      for (const RouteEntry& r : model.routes) CHECK(r.hops.size() <= 2);
    }
  }
}

}  // namespace
}  // namespace postern::route_test
