// SPDX-License-Identifier: Apache-2.0
// netlink_fuzz.cc - rtnetlink's messages, broken: no read outside of them, and whatever comes of
// them, tables in which each look-up ends, with an answer that holds together.
//
// The kernel doesn't lie, but newer kernels say what we don't know, and a parser in a daemon of
// root's had better not rely on it. The input is a list of edits of a set of whole messages, so
// that random inputs get past the headers; or, where its first byte says so, messages as they are.
#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/neighbour.h>
#include <linux/nexthop.h>
#include <linux/rtnetlink.h>

#include <initializer_list>
#include <span>

#include "../unit/stack/route_world.h"
#include "replay.h"

namespace postern {
namespace {

using route_test::Ip;
using route_test::Message;

[[maybe_unused]] constexpr size_t kInputMax = 96;

template <typename Header>
Header OfFamily(uint8_t family) {
  Header h{};
  reinterpret_cast<uint8_t&>(h) = family;
  return h;
}

void Add(std::vector<std::vector<char>>& to, Message& m) {
  (void)m.get();
  to.push_back(m.bytes());
}

std::vector<std::vector<char>> Whole() {
  std::vector<std::vector<char>> out;
  for (int i = 1; i <= 3; i++) {
    ifinfomsg h{};
    h.ifi_index = i;
    h.ifi_flags = IFF_UP;
    h.ifi_type = i == 1 ? 772 : 1;
    Message link(RTM_NEWLINK, h);
    link.Text(IFLA_IFNAME, i == 1 ? "lo" : "e0").Put(IFLA_MTU, 1500u).Put(IFLA_LINK, 2u);
    link.Nest(IFLA_LINKINFO, [](Message& in) {
      in.Text(IFLA_INFO_KIND, "vlan");
      in.Nest(IFLA_INFO_DATA, [](Message& d) { d.Put(IFLA_VLAN_ID, uint16_t{7}); });
    });
    Add(out, link);
  }
  for (const char* ip : {"10.0.0.1", "fd00::1"}) {
    const bool v4 = ip[0] == '1';
    auto a = OfFamily<ifaddrmsg>(v4 ? AF_INET : AF_INET6);
    a.ifa_index = 2;
    a.ifa_prefixlen = v4 ? 24 : 64;
    Message addr(RTM_NEWADDR, a);
    Add(out, addr.Address(IFA_LOCAL, ip).Address(IFA_ADDRESS, ip));
    auto r = OfFamily<rtmsg>(v4 ? AF_INET : AF_INET6);
    r.rtm_type = RTN_UNICAST;
    r.rtm_table = RT_TABLE_MAIN;
    r.rtm_dst_len = v4 ? 8 : 16;
    Message route(RTM_NEWROUTE, r);
    route.Address(RTA_DST, v4 ? "20.0.0.0" : "2001::").Put(RTA_OIF, 2u);
    route.Address(RTA_GATEWAY, v4 ? "10.0.0.2" : "fd00::2");
    Add(out, route.Nest(RTA_METRICS, [](Message& in) { in.Put(RTAX_MTU, 1400u); }));
    Message several(RTM_NEWROUTE, r);
    const uint32_t hops[] = {0x00000010, 2, 0x00050008, 0x0200000a, 0x00000008, 3};
    Add(out, several.Address(RTA_DST, v4 ? "20.0.0.0" : "2001::").Put(RTA_MULTIPATH, hops));
    Message object(RTM_NEWROUTE, r);
    Add(out, object.Address(RTA_DST, v4 ? "20.1.0.0" : "2001:1::").Put(RTA_NH_ID, 2u));
    auto u = OfFamily<fib_rule_hdr>(v4 ? AF_INET : AF_INET6);
    u.action = FR_ACT_TO_TBL;
    Message rule(RTM_NEWRULE, u);
    Add(out, rule.Put(FRA_TABLE, uint32_t{RT_TABLE_MAIN}).Put(FRA_PRIORITY, 5u));
    Message jump(RTM_NEWRULE, u);
    Add(out, jump.Put(FRA_GOTO, 5u).Put(FRA_PRIORITY, 3u).Text(FRA_IIFNAME, "lo"));
  }
  for (uint32_t id = 1; id <= 2; id++) {
    Message nh(RTM_NEWNEXTHOP, nhmsg{});
    nh.Put(NHA_ID, id);
    const uint32_t members[] = {1, 0, 2, 0};
    Add(out, id == 1 ? nh.Put(NHA_OIF, 2u) : nh.Put(NHA_GROUP, members));
  }
  return out;
}

// Four bytes each: which message, where, how, what.
void Edit(std::vector<std::vector<char>>& messages, std::span<const uint8_t> in) {
  for (; in.size() >= 4; in = in.subspan(4)) {
    std::vector<char>& m = messages[in[0] % messages.size()];
    const size_t at = 4 + in[1] % (m.size() - 4);
    switch (in[2] % 5) {
      case 0:
        m[at] = static_cast<char>(in[3]);
        break;
      case 1:
        m[at] = static_cast<char>(m[at] ^ 1 << in[3] % 8);
        break;
      case 2:
        m[at] = static_cast<char>(m[at] + in[3] % 9 - 4);
        break;
      case 3:
        m.resize(std::max<size_t>(m.size() * in[3] / 256, sizeof(nlmsghdr)));
        break;
      default:
        messages.push_back(m);
    }
  }
}

void Take(std::vector<char> m, daemon::RouteModel& model, daemon::RouteTables& tables) {
  m.shrink_to_fit();  // so that a sanitizer sees a byte too many
  if (m.size() < sizeof(nlmsghdr)) return;
  auto* head = reinterpret_cast<nlmsghdr*>(m.data());
  head->nlmsg_len = static_cast<uint32_t>(m.size());
  (void)daemon::TakeMessage(head, model);
  daemon::NeighEntry neigh;
  if (daemon::ParseNeigh(head, neigh)) daemon::RouteTables::NeighChange(tables).Take(neigh);
}

void Check(const pstn_routes& all, const RouteQuery& q) {
  const RouteAnswer a = RouteLookup(all, q);
  FUZZ_CHECK(a.version == RouteVersion(all));
  const bool sent = a.routes != RouteVerdict::kUndecided && a.routes != RouteVerdict::kRefused;
  FUZZ_CHECK((a.routes == RouteVerdict::kRefused) == (a.error != 0));
  FUZZ_CHECK((a.verdict == RouteVerdict::kUndecided) == (a.reason != RouteReason::kNone));
  FUZZ_CHECK(a.verdict == a.routes || a.verdict == RouteVerdict::kUndecided);
  FUZZ_CHECK(!sent || a.ifindex != 0 || a.verdict == RouteVerdict::kUndecided);
  FUZZ_CHECK(a.verdict != RouteVerdict::kUnicast || a.link.vi_ifindex != 0);
  FUZZ_CHECK(static_cast<size_t>(a.reason) < static_cast<size_t>(RouteReason::kCount));
}

void One(std::span<const uint8_t> in) {
  static daemon::RouteTables* const tables = [] {
    auto* made = new daemon::RouteTables;
    if (made->Create(1) != 0) FuzzDie("no tables");
    return made;
  }();
  static const std::vector<std::vector<char>> whole = Whole();
  std::vector<std::vector<char>> messages = whole;
  if (in[0] % 8 == 0) {
    const auto* at = reinterpret_cast<const char*>(in.data());
    messages.emplace_back(at, at + in.size());
  } else {
    Edit(messages, in.subspan(1));
  }
  daemon::RouteModel model;
  for (const std::vector<char>& m : messages) Take(m, model, *tables);
  tables->Publish(model);
  for (const char* dst : {"20.1.2.3", "10.0.0.2", "2001::1", "2001:1::1", "ff02::1",
                          "255.255.255.255", "224.0.0.1"}) {
    RouteQuery q;
    memcpy(q.dst, Ip(dst).bytes, 16);
    Check(*tables->map(), q);
    q.oif = 2;
    Check(*tables->map(), q);
    memcpy(q.src, Ip(IpAt(q.dst).IsV4() ? "10.0.0.1" : "fd00::1").bytes, 16);
    Check(*tables->map(), q);
  }
  if (tables->map()->neigh_count > 1000) daemon::RouteTables::NeighChange(*tables).Clear();
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) postern::One({data, size});
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::kInputMax); }
#endif
