// route_world.h - a small host for the tests of the routes: messages as the kernel sends them, and
// tables made from a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include "../../../controlplane/posternd/routes/routes_parse.h"
#include "../../../controlplane/posternd/routes/routes_tables.h"
#include "stack/route/route.h"
#include "stack/route/route_key.h"

namespace postern::route_test {

struct Ip : IpAddress {
  Ip() : IpAddress{} {}
  Ip(const char* text) {  // NOLINT(google-explicit-constructor): addresses are written as text
    if (!IpFromText(text, *this)) abort();
  }
};

// A netlink message that grows.
class Message {
 public:
  template <typename Header>
  Message(int type, const Header& header) : bytes_(sizeof(nlmsghdr)) {
    head()->nlmsg_type = static_cast<uint16_t>(type);
    Append(&header, sizeof header);
  }
  Message& Put(int type, const void* data, size_t size) {
    const nlattr attr = {static_cast<uint16_t>(sizeof(nlattr) + size), static_cast<uint16_t>(type)};
    Append(&attr, sizeof attr);
    Append(data, size);
    return *this;
  }
  template <typename T>
  Message& Put(int type, const T& value) {
    return Put(type, &value, sizeof value);
  }
  Message& Text(int type, const char* text) { return Put(type, text, strlen(text) + 1); }
  Message& Address(int type, const Ip& ip) {
    return ip.IsV4() ? Put(type, ip.bytes + 12, 4) : Put(type, ip.bytes, 16);
  }
  // Attributes inside of one: fill in another Message and put its attributes here.
  template <typename Fn>
  Message& Nest(int type, Fn fill) {
    Message inner(0, Empty{});
    fill(inner);
    const size_t skip = sizeof(nlmsghdr) + 4;
    return Put(type, inner.bytes_.data() + skip, inner.bytes_.size() - skip);
  }
  const nlmsghdr* get() {
    head()->nlmsg_len = static_cast<uint32_t>(bytes_.size());
    return head();
  }
  std::vector<char>& bytes() { return bytes_; }

 private:
  struct Empty {
    uint32_t zero = 0;
  };
  nlmsghdr* head() { return reinterpret_cast<nlmsghdr*>(bytes_.data()); }
  void Append(const void* data, size_t size) {
    const auto* at = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), at, at + size);
    bytes_.resize((bytes_.size() + 3) / 4 * 4);
  }
  std::vector<char> bytes_;
};

inline pstn_rt_hop Hop(uint32_t ifindex, const char* gateway = nullptr, uint32_t weight = 1) {
  pstn_rt_hop hop{};
  hop.ifindex = ifindex;
  hop.weight = weight;
  if (gateway != nullptr) {
    const Ip ip(gateway);
    memcpy(hop.gateway, ip.bytes, 16);
    hop.via = ip.IsV4() ? 4 : 6;
  }
  return hop;
}

// lo, e0 (2) with 10.0.0.1/24 and fd00::1/64, e1 (3) with 10.0.1.1/24 and fd01::1/64; the kernel's
// own rules.
struct World {
  daemon::RouteModel model;
  daemon::RouteTables tables;

  World() {
    if (tables.Create(1) != 0) abort();
    AddLink(1, "lo", PSTN_LINK_LOOPBACK, IFF_UP | IFF_LOOPBACK | IFF_LOWER_UP, 65536).arp_type =
        772;
    AddLink(2, "e0");
    AddLink(3, "e1");
    AddAddr(1, "127.0.0.1", 8, RT_SCOPE_HOST);
    AddAddr(2, "10.0.0.1", 24);
    AddAddr(3, "10.0.1.1", 24);
    AddAddr(1, "::1", 128, RT_SCOPE_HOST);
    AddAddr(2, "fd00::1", 64);
    AddAddr(3, "fd01::1", 64);
    AddRule(4, 0, RT_TABLE_LOCAL);
    AddRule(4, 32766, RT_TABLE_MAIN);
    AddRule(4, 32767, RT_TABLE_DEFAULT);
    AddRule(6, 0, RT_TABLE_LOCAL);
    AddRule(6, 32766, RT_TABLE_MAIN);
  }

  pstn_rt_link& AddLink(uint32_t ifindex, const char* name, uint32_t kind = PSTN_LINK_DEVICE,
                        uint32_t flags = IFF_UP | IFF_LOWER_UP, uint32_t mtu = 1500) {
    daemon::LinkEntry entry;
    entry.name = name;
    entry.link.ifindex = ifindex;
    entry.link.kind = kind;
    entry.link.flags = flags;
    entry.link.mtu = entry.link.mtu6 = mtu;
    entry.link.arp_type = 1;
    entry.link.hop_limit = 64;
    entry.link.conf = PSTN_LC_INET | PSTN_LC_INET6;
    model.links.push_back(entry);
    return model.links.back().link;
  }
  pstn_rt_addr& AddAddr(uint32_t ifindex, const char* ip, uint32_t plen, uint32_t scope = 0) {
    daemon::AddrEntry entry;
    const Ip address(ip);
    entry.family = address.IsV4() ? 4 : 6;
    memcpy(entry.addr.ip, address.bytes, 16);
    memcpy(entry.addr.peer, address.bytes, 16);
    entry.addr.ifindex = ifindex;
    entry.addr.plen = daemon::Bits(entry.family, plen);
    entry.addr.scope = scope;
    model.addrs.push_back(entry);
    return model.addrs.back().addr;
  }
  daemon::RuleEntry& AddRule(uint8_t family, uint32_t priority, uint32_t table) {
    daemon::RuleEntry entry;
    pstn_rt_rule& r = entry.rule;
    r.family = family;
    r.priority = priority;
    r.action = FR_ACT_TO_TBL;
    r.dst_plen = r.src_plen = family == 4 ? 96 : 0;
    r.suppress_plen = r.suppress_group = r.target = PSTN_NONE;
    entry.table_id = table;
    auto at = model.rules.begin();
    while (at != model.rules.end() && (at->rule.family != family || at->rule.priority <= priority))
      ++at;
    return *model.rules.insert(at, entry);
  }
  daemon::RouteEntry& AddRoute(const char* prefix, uint32_t plen, std::vector<pstn_rt_hop> hops,
                               uint8_t type = RTN_UNICAST, uint32_t table = RT_TABLE_MAIN,
                               uint32_t metric = 0) {
    daemon::RouteEntry entry;
    const Ip ip(prefix);
    entry.family = ip.IsV4() ? 4 : 6;
    entry.table_id = table;
    memcpy(entry.route.dst, ip.bytes, 16);
    entry.route.plen = daemon::Bits(entry.family, plen);
    entry.route.type = type;
    entry.route.metric = metric;
    entry.hops = std::move(hops);
    model.routes.push_back(entry);
    return model.routes.back();
  }
  void Publish() { tables.Publish(model); }
  const pstn_routes& all() const { return *tables.map(); }
  RouteAnswer Ask(const RouteQuery& q) {
    Publish();
    return RouteLookup(all(), q);
  }
  RouteAnswer Ask(const char* dst, const char* src = nullptr) {
    RouteQuery q;
    memcpy(q.dst, Ip(dst).bytes, 16);
    if (src != nullptr) memcpy(q.src, Ip(src).bytes, 16);
    return Ask(q);
  }
  void SetNeigh(uint32_t ifindex, const char* ip, uint16_t state, bool gone = false) {
    daemon::NeighEntry entry;
    entry.gone = gone;
    entry.neigh.ifindex = ifindex;
    entry.neigh.state = state;
    memcpy(entry.neigh.ip, Ip(ip).bytes, 16);
    entry.neigh.mac[5] = 9;
    entry.neigh.flags = PSTN_NB_MAC;
    daemon::RouteTables::NeighChange(tables).Take(entry);
  }
};

}  // namespace postern::route_test
