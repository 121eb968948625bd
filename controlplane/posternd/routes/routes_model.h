// routes_model.h - what the kernel has told of its routes, before it becomes tables.
// SPDX-License-Identifier: Apache-2.0
//
// Entries are those of abi/routes_abi.h where they can be; the rest, names and numbers that only
// mean something together with other messages, is beside them and resolved by routes_tables.cc.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "abi/routes_abi.h"

namespace postern::daemon {

inline constexpr uint32_t kHopsMax = 256;  // of one route, as lib/stack/route/route_read.h has it

// Of a shared structure: it has no padding.
template <typename T>
bool SameBytes(const T& a, const T& b) {
  return memcmp(&a, &b, sizeof(T)) == 0;
}

struct LinkEntry {
  pstn_rt_link link{};
  std::string name;
  bool operator==(const LinkEntry& o) const { return SameBytes(link, o.link) && name == o.name; }
};

struct AddrEntry {
  pstn_rt_addr addr{};
  uint8_t family = 4;
  bool operator==(const AddrEntry& o) const {
    return SameBytes(addr, o.addr) && family == o.family;
  }
};

struct RouteEntry {
  pstn_rt_route route{};  // without indices
  uint32_t table_id = 0;
  uint8_t family = 4;
  bool by_source = false;  // RTA_SRC
  uint32_t nh_id = 0;      // nexthop object; 0 = `hops`
  std::vector<pstn_rt_hop> hops;
  bool has_metrics = false;
  pstn_rt_metrics metrics{};
  uint32_t expires_ms = 0;  // 0 = never. Not compared: it is another one each time
  bool operator==(const RouteEntry& o) const;
};

struct RuleEntry {
  pstn_rt_rule rule{};  // without indices
  uint32_t table_id = 0;
  uint32_t goto_priority = 0;
  std::string iif, oif;
  bool operator==(const RuleEntry& o) const {
    return SameBytes(rule, o.rule) && table_id == o.table_id && goto_priority == o.goto_priority &&
           iif == o.iif && oif == o.oif;
  }
};

struct NexthopEntry {
  uint32_t id = 0;
  bool blackhole = false, is_group = false;
  pstn_rt_hop hop{};
  struct Member {
    uint32_t id = 0, weight = 1;
    bool operator==(const Member&) const = default;
  };
  std::vector<Member> group;
  bool operator==(const NexthopEntry& o) const {
    return id == o.id && blackhole == o.blackhole && is_group == o.is_group &&
           SameBytes(hop, o.hop) && group == o.group;
  }
};

struct NeighEntry {
  pstn_rt_neigh neigh{};
  bool gone = false;
};

struct Sysctls {
  uint32_t hop_limit4 = 64;
  bool forwarding6 = false, router_pref = true;
  bool route_localnet = false;  // all/route_localnet
  bool operator==(const Sysctls&) const = default;
};

struct RouteModel {
  std::vector<LinkEntry> links;
  std::vector<AddrEntry> addrs;
  std::vector<RouteEntry> routes;
  std::vector<RuleEntry> rules;
  std::vector<pstn_rt_label> labels;
  std::map<uint32_t, NexthopEntry> nexthops;
  Sysctls sysctls;
  bool netfilter = false, xfrm = false, unsynced = false;

  bool operator==(const RouteModel& o) const;
  // Links by index; addresses by family and interface, and there in the order in which the kernel
  // has told them.
  void Sort();
};

inline bool RouteEntry::operator==(const RouteEntry& o) const {
  if (!SameBytes(route, o.route) || table_id != o.table_id || family != o.family ||
      by_source != o.by_source || nh_id != o.nh_id || hops.size() != o.hops.size() ||
      has_metrics != o.has_metrics || !SameBytes(metrics, o.metrics))
    return false;
  return hops.empty() || memcmp(hops.data(), o.hops.data(), hops.size() * sizeof(hops[0])) == 0;
}

inline void RouteModel::Sort() {
  std::sort(links.begin(), links.end(),
            [](const LinkEntry& a, const LinkEntry& b) { return a.link.ifindex < b.link.ifindex; });
  std::stable_sort(addrs.begin(), addrs.end(), [](const AddrEntry& a, const AddrEntry& b) {
    return a.family != b.family ? a.family < b.family : a.addr.ifindex < b.addr.ifindex;
  });
}

inline bool RouteModel::operator==(const RouteModel& o) const {
  return links == o.links && addrs == o.addrs && routes == o.routes && rules == o.rules &&
         labels.size() == o.labels.size() &&
         (labels.empty() ||
          memcmp(labels.data(), o.labels.data(), labels.size() * sizeof(labels[0])) == 0) &&
         nexthops == o.nexthops && sysctls == o.sysctls && netfilter == o.netfilter &&
         xfrm == o.xfrm && unsynced == o.unsynced;
}

}  // namespace postern::daemon
