// SPDX-License-Identifier: Apache-2.0
// route_test.cc - look-ups in tables that were made by hand: what they answer, and where it is
// undecided. That the kernel says the same is routes_test.py's business.
#include "stack/route/route.h"

#include <fcntl.h>
#include <linux/neighbour.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <random>

#include "../kit/catch.h"
#include "base/clock.h"
#include "route_world.h"
#include "state/area.h"

namespace postern::route_test {
namespace {

// mt19937's numbers have 32 bits, but not its type.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t operator()() { return static_cast<uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

using V = RouteVerdict;
using R = RouteReason;

TEST_CASE("route: the longest prefix, its gateway, source and metrics") {
  World w;
  w.AddRoute("0.0.0.0", 0, {Hop(2, "10.0.0.254")});
  w.AddRoute("10.0.1.0", 24, {Hop(3)});
  daemon::RouteEntry& r = w.AddRoute("20.0.0.0", 8, {Hop(3, "10.0.1.254")});
  r.has_metrics = true;
  r.metrics.value[RTAX_MTU] = 1400;
  r.metrics.value[RTAX_HOPLIMIT] = 9;
  r.metrics.value[RTAX_FEATURES] = RTAX_FEATURE_ECN;
  r.metrics.value[RTAX_LOCK] = 1u << RTAX_MTU;
  r.metrics.value[RTAX_INITCWND] = 20;

  RouteAnswer a = w.Ask("8.8.8.8");
  CHECK(a.verdict == V::kUnicast);
  CHECK(a.ifindex == 2);
  CHECK(IpAt(a.next_hop) == Ip("10.0.0.254"));
  CHECK(IpAt(a.source) == Ip("10.0.0.1"));
  CHECK(a.mtu == 1500);
  CHECK(a.hop_limit == 64);
  CHECK(a.prefix_len == 0);
  CHECK(a.table == RT_TABLE_MAIN);

  a = w.Ask("10.0.1.9");
  CHECK(a.has_gateway == 0);
  CHECK(IpAt(a.next_hop) == Ip("10.0.1.9"));
  CHECK(IpAt(a.source) == Ip("10.0.1.1"));

  a = w.Ask("20.1.1.1");
  CHECK(IpAt(a.next_hop) == Ip("10.0.1.254"));
  CHECK(a.mtu == 1400);
  CHECK(a.mtu_locked == 1);
  CHECK(a.hop_limit == 9);
  CHECK(a.metrics.features == kRouteFeatureEcn);
  CHECK(a.metrics.initcwnd == 20);
}

TEST_CASE("route: refusals have Linux's errno") {
  World w;
  w.AddRoute("20.0.0.0", 8, {}, RTN_UNREACHABLE);
  w.AddRoute("21.0.0.0", 8, {}, RTN_PROHIBIT);
  w.AddRoute("22.0.0.0", 8, {}, RTN_BLACKHOLE);
  w.AddRoute("2001::", 16, {Hop(1)}, RTN_UNREACHABLE);
  const std::pair<const char*, int> expected[] = {
      {"20.0.0.1", EHOSTUNREACH}, {"21.0.0.1", EACCES},      {"22.0.0.1", EINVAL},
      {"23.0.0.1", ENETUNREACH},  {"2001::1", EHOSTUNREACH}, {"2002::1", ENETUNREACH}};
  for (const auto& [dst, error] : expected) {
    const RouteAnswer a = w.Ask(dst);
    INFO(dst);
    CHECK(a.verdict == V::kRefused);
    CHECK(a.error == error);
  }
}

TEST_CASE("route: rules in their order; unknown conditions only where they matter") {
  World w;
  w.AddRoute("20.0.0.0", 8, {Hop(2, "10.0.0.254")});
  w.AddRoute("20.0.0.0", 8, {Hop(3, "10.0.1.254")}, RTN_UNICAST, 100);
  daemon::RuleEntry& rule = w.AddRule(4, 100, 100);
  RouteQuery q;
  memcpy(q.dst, Ip("20.0.0.1").bytes, 16);

  SECTION("all") { CHECK(w.Ask(q).ifindex == 3); }
  SECTION("another destination") {
    memcpy(rule.rule.dst, Ip("30.0.0.0").bytes, 16);
    rule.rule.dst_plen = 104;
    CHECK(w.Ask(q).ifindex == 2);
    // A mark that nobody knows doesn't matter where the destination doesn't fit.
    rule.rule.mark = rule.rule.mark_mask = 1;
    CHECK(w.Ask(q).ifindex == 2);
  }
  SECTION("a mark") {
    rule.rule.mark = rule.rule.mark_mask = 1;
    CHECK(w.Ask(q).reason == R::kMark);
    q.known = kRouteKnowsMark;
    CHECK(w.Ask(q).ifindex == 2);
    q.mark = 1;
    CHECK(w.Ask(q).ifindex == 3);
    rule.rule.flags |= PSTN_RU_INVERT;
    CHECK(w.Ask(q).ifindex == 2);
  }
  SECTION("the source, which connect() knows the second time") {
    memcpy(rule.rule.src, Ip("10.0.0.0").bytes, 16);
    rule.rule.src_plen = 96 + 24;
    w.Publish();
    CHECK(RouteLookup(w.all(), q).ifindex == 2);
    CHECK(RouteConnect(w.all(), q).ifindex == 3);
  }
  SECTION("suppressed") {
    rule.rule.suppress_plen = 8;
    CHECK(w.Ask(q).ifindex == 2);
    rule.rule.suppress_plen = 7;
    CHECK(w.Ask(q).ifindex == 3);
  }
  SECTION("goto") {
    rule.rule.action = FR_ACT_GOTO;
    rule.goto_priority = 32766;
    daemon::RuleEntry& skipped = w.AddRule(4, 200, 0);
    skipped.rule.action = FR_ACT_UNREACHABLE;
    CHECK(w.Ask(q).ifindex == 2);
  }
  SECTION("what we don't know of") {
    rule.rule.flags |= PSTN_RU_UNKNOWN;
    CHECK(w.Ask(q).reason == R::kRule);
  }
  SECTION("an interface that is not there") {
    rule.iif = "none";
    CHECK(w.Ask(q).ifindex == 2);
    rule.iif = "lo";
    CHECK(w.Ask(q).ifindex == 3);
  }
}

TEST_CASE("route: what can't be exact is undecided, and says why") {
  World w;
  daemon::RouteEntry& r = w.AddRoute("20.0.0.0", 8, {Hop(2, "10.0.0.254")});
  SECTION("before anything was published") {
    RouteQuery q;
    CHECK(RouteLookup(w.all(), q).reason == R::kNoTables);
    CHECK(RouteVersion(w.all()) == 0);
  }
  SECTION("wrapped packets") {
    r.hops[0].flags = PSTN_RH_ENCAP;
    CHECK(w.Ask("20.0.0.1").reason == R::kEncapsulation);
  }
  SECTION("attributes that we don't know") {
    r.route.flags = PSTN_RR_UNKNOWN;
    CHECK(w.Ask("20.0.0.1").reason == R::kAttribute);
  }
  SECTION("netfilter and IPsec; what the routes say is told all the same") {
    w.model.netfilter = true;
    RouteAnswer a = w.Ask("20.0.0.1");
    CHECK(a.verdict == V::kUndecided);
    CHECK(a.reason == R::kNetfilter);
    CHECK(a.routes == V::kUnicast);
    CHECK(a.ifindex == 2);
    w.model.netfilter = false;
    w.model.xfrm = true;
    CHECK(w.Ask("20.0.0.1").reason == R::kXfrm);
  }
  SECTION("the kernel's one trie for local and main") {
    w.AddRoute("20.0.0.0", 8, {Hop(1)}, RTN_LOCAL, RT_TABLE_LOCAL);
    CHECK(w.Ask("20.0.0.1").verdict == V::kLocal);
    w.AddRoute("20.1.0.0", 16, {Hop(2)});
    CHECK(w.Ask("20.1.0.1").reason == R::kMerged);
    w.AddRule(4, 5, 77);  // from now on they are two
    CHECK(w.Ask("20.1.0.1").verdict == V::kLocal);
  }
  SECTION("default routes whose gateways the kernel probes") {
    w.AddRoute("0.0.0.0", 0, {Hop(2, "10.0.0.253")});
    CHECK(w.Ask("9.9.9.9").verdict == V::kUnicast);
    w.AddRoute("0.0.0.0", 0, {Hop(3, "10.0.1.253")});
    CHECK(w.Ask("9.9.9.9").reason == R::kDefaults);
  }
  SECTION("TOS") {
    RouteQuery q;
    memcpy(q.dst, Ip("20.0.0.1").bytes, 16);
    q.tos = 0xb8;
    CHECK(w.Ask(q).verdict == V::kUnicast);
    r.route.tos = 0x10;
    CHECK(w.Ask(q).reason == R::kTos);
    q.tos = 0x12;  // ECN's bits don't count
    CHECK(w.Ask(q).verdict == V::kUnicast);
  }
  SECTION("VRF") {
    w.model.links[1].link.conf |= PSTN_LC_L3SLAVE;
    CHECK(w.Ask("20.0.0.1").reason == R::kL3mdev);
  }
  SECTION("an interface that can't be bypassed") {
    w.model.links[1].link.kind = PSTN_LINK_BRIDGE;
    const RouteAnswer a = w.Ask("20.0.0.1");
    CHECK(a.reason == R::kLink);
    CHECK(a.routes == V::kUnicast);
  }
  SECTION("more routes than fit, of one family") {
    for (uint32_t i = 0; i < PSTN_RT_ROUTES; i++) {
      daemon::RouteEntry& more = w.AddRoute("2001::", 128, {});
      more.route.dst[12] = static_cast<uint8_t>(i >> 16);
      more.route.dst[13] = static_cast<uint8_t>(i >> 8);
      more.route.dst[14] = static_cast<uint8_t>(i);
    }
    CHECK(w.Ask("fd00::7").reason == R::kFull);
    CHECK(w.Ask("20.0.0.1").verdict == V::kUnicast);
  }
}

TEST_CASE("route: dead next hops and downed interfaces") {
  World w;
  daemon::RouteEntry& r = w.AddRoute("20.0.0.0", 8, {Hop(2, "10.0.0.2"), Hop(3, "10.0.1.2")});
  r.hops[0].flags = PSTN_RH_DEAD;
  for (uint32_t hash = 0; hash < 64; hash++) {
    RouteQuery q;
    memcpy(q.dst, Ip("20.0.0.1").bytes, 16);
    q.hash = hash << 26 | 1;
    CHECK(w.Ask(q).ifindex == 3);
  }
  r.hops[1].flags = PSTN_RH_DEAD;
  CHECK(w.Ask("20.0.0.1").error == ENETUNREACH);
}

TEST_CASE("route: next hops are chosen by weight, a flow always the same") {
  World w;
  w.AddRoute("20.0.0.0", 8, {Hop(2, "10.0.0.2", 1), Hop(3, "10.0.1.2", 3)});
  w.Publish();
  std::map<uint32_t, int> chosen;
  for (uint16_t port = 1; port <= 4000; port++) {
    RouteQuery q;
    memcpy(q.dst, Ip("20.0.0.1").bytes, 16);
    q.sport = port;
    const RouteAnswer a = RouteLookup(w.all(), q);
    CHECK(a.ifindex == RouteLookup(w.all(), q).ifindex);
    chosen[a.ifindex]++;
  }
  CHECK(chosen[2] > 800);
  CHECK(chosen[2] < 1200);
  CHECK(chosen[2] + chosen[3] == 4000);
}

TEST_CASE("route: nexthop objects and groups") {
  World w;
  for (uint32_t id = 1; id <= 2; id++) {
    daemon::NexthopEntry nh;
    nh.id = id;
    nh.hop = Hop(1 + id, id == 1 ? "10.0.0.7" : "10.0.1.7");
    w.model.nexthops[id] = nh;
  }
  daemon::NexthopEntry group;
  group.id = 3;
  group.is_group = true;
  group.group = {{1, 1}, {2, 1}};
  w.model.nexthops[3] = group;
  w.AddRoute("20.0.0.0", 8, {}).nh_id = 3;
  w.AddRoute("21.0.0.0", 8, {}).nh_id = 2;
  w.AddRoute("22.0.0.0", 8, {}).nh_id = 9;
  RouteQuery q;
  memcpy(q.dst, Ip("20.0.0.1").bytes, 16);
  q.oif = 3;
  CHECK(IpAt(w.Ask(q).next_hop) == Ip("10.0.1.7"));
  CHECK(w.Ask("21.0.0.1").ifindex == 3);
  CHECK(w.Ask("22.0.0.1").reason == R::kAttribute);  // an object that we don't have
  w.model.nexthops[2].blackhole = true;
  CHECK(w.Ask("21.0.0.1").error == EINVAL);
}

TEST_CASE("route: IPv6 leaves a gateway that has failed if there is another way") {
  World w;
  w.AddRoute("2001::", 16, {Hop(2, "fd00::2")}, RTN_UNICAST, RT_TABLE_MAIN, 100);
  w.AddRoute("2001::", 16, {Hop(3, "fd01::2")}, RTN_UNICAST, RT_TABLE_MAIN, 200);
  CHECK(w.Ask("2001::1").ifindex == 2);
  w.SetNeigh(2, "fd00::2", NUD_FAILED);
  CHECK(w.Ask("2001::1").ifindex == 3);
  w.SetNeigh(3, "fd01::2", NUD_FAILED);
  CHECK(w.Ask("2001::1").ifindex == 2);  // none answers: as if all did
  w.SetNeigh(2, "fd00::2", NUD_FAILED, true);
  CHECK(w.Ask("2001::1").ifindex == 2);
  w.SetNeigh(2, "fd00::2", NUD_FAILED);
  w.SetNeigh(3, "fd01::2", NUD_REACHABLE);
  w.model.sysctls.forwarding6 = true;  // a router asks nobody
  CHECK(w.Ask("2001::1").ifindex == 2);
}

//= rfc6724#5
//= type=test
TEST_CASE("route: source addresses of IPv6") {
  World w;
  w.model.addrs.clear();
  w.AddRoute("::", 0, {Hop(2, "fe80::2")});
  w.AddRoute("fe80::", 64, {Hop(2)});
  pstn_rt_label any{}, ula{};
  any.label = 1;
  memcpy(ula.prefix, Ip("fc00::").bytes, 16);
  ula.plen = 7;
  ula.label = 5;
  w.model.labels = {ula, any};
  const auto source = [&](const char* dst) { return IpAt(w.Ask(dst).source); };
  w.AddAddr(2, "fe80::1", 64);
  CHECK(source("2001:db8::1") == Ip("fe80::1"));  // nothing better
  w.AddAddr(3, "2001:db8:1::1", 64);
  CHECK(source("2001:db8::1") == Ip("2001:db8:1::1"));  // scope (2) before interface (5)
  CHECK(source("fe80::9") == Ip("fe80::1"));
  w.AddAddr(2, "fd00::1", 64);
  CHECK(source("fd77::1") == Ip("fd00::1"));      // label (6)
  CHECK(source("2001:db8::1") == Ip("fd00::1"));  // interface (5) before label (6)
  w.AddAddr(2, "2001:db8:2::1", 64);
  CHECK(source("2001:db8:2::9") == Ip("2001:db8:2::1"));
  const auto flag = [&](uint32_t flags) {  // the model has been sorted
    for (daemon::AddrEntry& entry : w.model.addrs) {
      if (IpAt(entry.addr.ip) == Ip("2001:db8:2::1")) entry.addr.flags = flags;
    }
  };
  flag(IFA_F_DEPRECATED);
  CHECK(source("2001:db8:2::9") == Ip("fd00::1"));  // (3)
  flag(IFA_F_TENTATIVE);
  CHECK(source("2001:db8:2::1") == Ip("fd00::1"));  // not ours yet
}

TEST_CASE("route: a tie between interfaces that are not the outgoing one is undecided") {
  World w;
  w.model.addrs.clear();
  w.AddLink(4, "e2");
  w.AddRoute("2001::", 16, {Hop(4)});
  w.AddAddr(2, "fd00::1", 64);
  CHECK(w.Ask("2001::1").verdict == V::kUnicast);
  w.AddAddr(3, "fd00::2", 64);
  CHECK(w.Ask("2001::1").reason == R::kSource);
  w.AddAddr(4, "fd00::3", 64);
  CHECK(IpAt(w.Ask("2001::1").source) == Ip("fd00::3"));
}

TEST_CASE("route: VLANs and bonds lead to the device below") {
  World w;
  pstn_rt_link& vlan = w.AddLink(10, "e0.5", PSTN_LINK_VLAN);
  vlan.lower = 2;
  vlan.vid = 5;
  vlan.tpid = 0x8100;
  pstn_rt_link& inner = w.AddLink(11, "e0.5.7", PSTN_LINK_VLAN);
  inner.lower = 10;
  inner.vid = 7;
  inner.tpid = 0x8100;
  w.AddLink(12, "bond", PSTN_LINK_BOND).lower = 3;
  w.AddLink(13, "balanced", PSTN_LINK_BOND);
  w.model.links[2].link.conf |= PSTN_LC_PORT;  // e1, of the bond
  w.Publish();
  LinkAnswer a = LinkOf(w.all(), 10);
  CHECK((a.reason == R::kNone && a.vi_ifindex == 2 && a.tags == 1 && a.vid[0] == 5));
  a = LinkOf(w.all(), 11);
  CHECK(
      (a.reason == R::kNone && a.vi_ifindex == 2 && a.tags == 2 && a.vid[0] == 5 && a.vid[1] == 7));
  a = LinkOf(w.all(), 12);
  CHECK((a.reason == R::kNone && a.vi_ifindex == 3 && a.tags == 0));
  CHECK(LinkOf(w.all(), 13).reason == R::kLink);
  CHECK(LinkOf(w.all(), 3).reason == R::kLink);
  CHECK(LinkOf(w.all(), 99).reason == R::kLink);
}

TEST_CASE("route: neighbours come, go, and are found behind gaps") {
  World w;
  std::map<std::pair<uint32_t, uint32_t>, uint16_t> expected;
  Random random(7);
  const uint16_t states[] = {NUD_REACHABLE, NUD_STALE, NUD_FAILED, NUD_INCOMPLETE, NUD_PERMANENT};
  const auto name = [](uint32_t i) {
    return "10.1." + std::to_string(i / 256) + "." + std::to_string(i % 256);
  };
  for (int i = 0; i < 20000; i++) {
    const uint32_t link = random() % 3, ip = random() % 2000;
    const bool gone = random() % 3 == 0;
    const uint16_t state = states[random() % 5];
    w.SetNeigh(link + 1, name(ip).c_str(), state, gone);
    if (gone) {
      expected.erase({link, ip});
    } else {
      expected[{link, ip}] = state;
    }
  }
  CHECK(w.all().neigh_count == expected.size());
  for (uint32_t link = 0; link < 3; link++) {
    for (uint32_t ip = 0; ip < 2000; ip++) {
      const auto at = expected.find({link, ip});
      const uint16_t state = at == expected.end() ? NUD_NONE : at->second;
      const NeighbourState wanted = state == NUD_FAILED       ? NeighbourState::kFailed
                                    : state == NUD_STALE      ? NeighbourState::kStale
                                    : state == NUD_INCOMPLETE ? NeighbourState::kAsking
                                    : state == NUD_NONE       ? NeighbourState::kUnknown
                                                              : NeighbourState::kGood;
      CHECK(NeighbourOf(w.all(), link + 1, Ip(name(ip).c_str()).bytes).state == wanted);
    }
  }
  const uint8_t group[6] = {0x01, 0, 0x5e, 1, 2, 3};
  CHECK(memcmp(NeighbourOf(w.all(), 2, Ip("224.129.2.3").bytes).mac, group, 6) == 0);
  const uint8_t group6[6] = {0x33, 0x33, 0, 0, 0, 5};
  CHECK(memcmp(NeighbourOf(w.all(), 2, Ip("ff02::5").bytes).mac, group6, 6) == 0);
}

TEST_CASE("route: the tables are sealed, and nobody but posternd writes them") {
  World w;
  w.Publish();
  const int fd = w.tables.fd()->get();
  const pstn_routes* mine = MapRoutes(fd);
  REQUIRE(mine != nullptr);
  CHECK(RouteVersion(*mine) == RouteVersion(w.all()));
  const uint64_t before = RouteVersion(*mine);
  w.Publish();
  CHECK(RouteVersion(*mine) != before);
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(ftruncate(fd, 4096) != 0);
  UnmapRoutes(mine);
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  CHECK(MapRoutes(plain) == nullptr);
  close(plain);
}

// ---- against a reference that looks at everything ----------------------------------------------

struct Naive {
  const daemon::RouteModel& m;

  const daemon::RouteEntry* In(uint32_t table, uint8_t family, const Ip& dst) const {
    const daemon::RouteEntry* best = nullptr;
    for (const daemon::RouteEntry& r : m.routes) {
      if (r.family != family || r.table_id != table) continue;
      if (!SamePrefix(r.route.dst, dst.bytes, r.route.plen)) continue;
      if (best == nullptr || r.route.plen > best->route.plen) best = &r;  // the first of equals
    }
    return best;
  }
  // The route that counts; null: none.
  const daemon::RouteEntry* Find(uint8_t family, const Ip& dst) const {
    for (const daemon::RuleEntry& rule : m.rules) {
      if (rule.rule.family != family) continue;
      const bool asks = rule.rule.dst_plen > (family == 4 ? 96u : 0u);
      if (asks && !SamePrefix(rule.rule.dst, dst.bytes, rule.rule.dst_plen)) continue;
      const daemon::RouteEntry* r = In(rule.table_id, family, dst);
      if (r != nullptr && r->route.type != RTN_THROW) return r;
    }
    return nullptr;
  }
};

Ip RandomIp(Random& random, bool v4) {
  Ip ip(v4 ? "20.0.0.0" : "2001::");
  for (int i = v4 ? 13 : 2; i < 16; i++)
    ip.bytes[i] = static_cast<uint8_t>(random() % 4 == 0 ? random() : random() % 2 * 128);
  return ip;
}

void RandomRoutes(World& w, Random& random) {
  const uint8_t types[] = {RTN_UNICAST, RTN_UNICAST, RTN_UNICAST, RTN_UNREACHABLE, RTN_THROW};
  for (int i = 0; i < 400; i++) {
    const bool v4 = random() % 2 == 0;
    daemon::RouteEntry& r =
        w.AddRoute(v4 ? "20.0.0.0" : "2001::", 0, {}, types[random() % 5], 100 + random() % 3);
    r.route.plen = v4 ? 96 + 8 + random() % 25 : 16 + random() % 113;
    memcpy(r.route.dst, RandomIp(random, v4).bytes, 16);
    const RouteKey key = Masked(KeyOf(r.route.dst), r.route.plen);
    for (int b = 0; b < 8; b++) {
      r.route.dst[b] = static_cast<uint8_t>(key.hi >> (56 - 8 * b));
      r.route.dst[8 + b] = static_cast<uint8_t>(key.lo >> (56 - 8 * b));
    }
    r.route.metric = 0;
    r.hops = {r.route.type == RTN_UNICAST ? Hop(2 + random() % 2) : Hop(1)};
  }
  for (uint32_t i = 0; i < 6; i++) {
    const bool v4 = i % 2 == 0;
    daemon::RuleEntry& rule = w.AddRule(v4 ? 4 : 6, 100 + i, 100 + i / 2);
    if (i >= 4) continue;
    rule.rule.dst_plen = v4 ? 96 + 10 : 20;
    memcpy(rule.rule.dst, RandomIp(random, v4).bytes, 16);
  }
}

TEST_CASE("route: thousands of random look-ups agree with a look at every route") {
  for (uint32_t seed = 1; seed <= 20; seed++) {
    Random random(seed);
    World w;
    RandomRoutes(w, random);
    w.Publish();
    const Naive naive{w.model};
    for (int i = 0; i < 500; i++) {
      const bool v4 = random() % 2 == 0;
      RouteQuery q;
      const Ip dst = RandomIp(random, v4);
      memcpy(q.dst, dst.bytes, 16);
      const RouteAnswer a = RouteLookup(w.all(), q);
      const daemon::RouteEntry* r = naive.Find(v4 ? 4 : 6, dst);
      INFO("seed " << seed << ", look-up " << i);
      CAPTURE(v4, int(a.routes), int(a.reason), a.table, int(a.prefix_len), a.ifindex);
      if (r == nullptr) {
        REQUIRE(a.error == ENETUNREACH);
      } else if (r->route.type == RTN_UNREACHABLE) {
        REQUIRE(a.error == EHOSTUNREACH);
      } else {
        REQUIRE(a.verdict == V::kUnicast);
        REQUIRE(a.ifindex == r->hops[0].ifindex);
        REQUIRE(a.prefix_len == (v4 ? r->route.plen - 96 : r->route.plen));
        REQUIRE(a.table == r->table_id);
      }
    }
  }
}

// Nothing is asserted of time: it is printed with every run (`postern_unit "[cost]"`: alone), and
// docs/routes.md has figures.
TEST_CASE("route: what a look-up costs", "[cost]") {
  Random random(1);
  World w;
  for (uint32_t i = 0; i < 1000; i++) {
    daemon::RouteEntry& r = w.AddRoute("20.0.0.0", 24, {Hop(2, "10.0.0.254")});
    r.route.dst[13] = static_cast<uint8_t>(i / 4);
    r.route.dst[14] = static_cast<uint8_t>(i);
  }
  w.AddRoute("0.0.0.0", 0, {Hop(2, "10.0.0.254")});
  w.AddRoute("::", 0, {Hop(2, "fd00::2")});
  w.SetNeigh(2, "10.0.0.254", NUD_REACHABLE);
  w.Publish();
  const auto cost = [&](const char* what, const char* dst, auto call) {
    RouteQuery q;
    memcpy(q.dst, Ip(dst).bytes, 16);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    constexpr int kTimes = 10000;  // what it costs there says nothing
#else
    constexpr int kTimes = 1000000;
#endif
    const uint64_t begin = MonotonicNs();
    uint64_t sum = 0;
    for (int i = 0; i < kTimes; i++) sum += call(q);
    printf("%s: %.1f ns (%llu)\n", what, static_cast<double>(MonotonicNs() - begin) / kTimes,
           static_cast<unsigned long long>(sum));
  };
  const auto look = [&](const RouteQuery& q) { return RouteLookup(w.all(), q).ifindex; };
  cost("IPv4, /24 of 1,000", "20.7.31.1", look);
  cost("IPv4, default route", "8.8.8.8", look);
  cost("IPv6, default route", "2001::1", look);
  cost("neighbour", "10.0.0.254", [&](const RouteQuery& q) {
    return static_cast<uint64_t>(NeighbourOf(w.all(), 2, q.dst).state);
  });
  cost("version", "10.0.0.254", [&](const RouteQuery&) { return RouteVersion(w.all()); });
}

}  // namespace
}  // namespace postern::route_test
