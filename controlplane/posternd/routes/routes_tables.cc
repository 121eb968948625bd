// routes_tables.cc - from the model to the shared tables.
// SPDX-License-Identifier: Apache-2.0
#include "routes_tables.h"

#include <fcntl.h>
#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "../kit/log.h"
#include "base/atomic.h"
#include "stack/route/route_key.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace postern::daemon {
namespace {

void MaskBytes(uint8_t ip[16], uint32_t plen) {
  for (uint32_t i = 0; i < 16; i++) {
    const uint32_t bits = plen > i * 8 ? std::min(8u, plen - i * 8) : 0;
    ip[i] = static_cast<uint8_t>(ip[i] & (0xff00u >> bits));
  }
}

}  // namespace

// ---- one copy ----------------------------------------------------------------------------------

class RouteTables::Writer {
 public:
  Writer(pstn_rt_copy& copy, RouteModel& model) : c_(copy), model_(model) {}

  void Write() {
    Reset();
    Links();
    Addresses();
    Routes();
    Rules();
    Labels();
    c_.flags = flags_ | Flags();
    c_.hop_limit4 = model_.sysctls.hop_limit4;
  }

 private:
  static uint32_t FullFlag(uint32_t family) {
    return family == 4 ? PSTN_RTF_FULL4 : PSTN_RTF_FULL6;
  }

  void Reset() {
    uint32_t buckets = 64;
    while (buckets < model_.routes.size() * 2 && buckets < PSTN_RT_BUCKETS) buckets *= 2;
    memset(c_.buckets, 0, buckets * sizeof(c_.buckets[0]));
    c_.bucket_mask = buckets - 1;
    c_.table_count = c_.rule_count = c_.link_count = c_.addr_count = c_.label_count = 0;
    c_.metrics_count = c_.route_count = c_.hop_count = 0;
    c_.local4 = c_.main4 = c_.default4 = c_.local6 = c_.main6 = 0;
  }

  uint32_t Flags() const {
    const Sysctls& s = model_.sysctls;
    return (model_.unsynced ? PSTN_RTF_UNSYNCED : 0u) |
           (model_.netfilter ? PSTN_RTF_NETFILTER : 0u) | (model_.xfrm ? PSTN_RTF_XFRM : 0u) |
           (s.forwarding6 ? PSTN_RTF_FORWARDING6 : 0u) |
           (s.router_pref ? 0u : PSTN_RTF_NO_ROUTER_PREF);
  }

  void Links() {
    if (model_.links.size() > PSTN_RT_LINKS) flags_ |= PSTN_RTF_FULL4 | PSTN_RTF_FULL6;
    for (const LinkEntry& entry : model_.links) {
      if (c_.link_count == PSTN_RT_LINKS) break;
      pstn_rt_link& link = c_.links[c_.link_count++];
      link = entry.link;
      if (model_.sysctls.route_localnet) link.conf |= PSTN_LC_ROUTE_LOCALNET;
      link.addr4_first = link.addr4_count = link.addr6_first = link.addr6_count = 0;
    }
  }

  pstn_rt_link* LinkAt(uint32_t ifindex) {
    pstn_rt_link* end = c_.links + c_.link_count;
    pstn_rt_link* at = std::lower_bound(
        c_.links, end, ifindex, [](const pstn_rt_link& l, uint32_t i) { return l.ifindex < i; });
    return at != end && at->ifindex == ifindex ? at : nullptr;
  }

  void Addresses() {
    for (const AddrEntry& entry : model_.addrs) {
      if (c_.addr_count == PSTN_RT_ADDRS) {
        flags_ |= FullFlag(entry.family);
        continue;
      }
      pstn_rt_link* link = LinkAt(entry.addr.ifindex);
      if (link == nullptr) continue;
      uint32_t& first = entry.family == 4 ? link->addr4_first : link->addr6_first;
      uint32_t& count = entry.family == 4 ? link->addr4_count : link->addr6_count;
      if (count++ == 0) first = c_.addr_count;
      c_.addrs[c_.addr_count++] = entry.addr;
    }
  }

  // Index, or PSTN_NONE.
  uint32_t TableOf(uint32_t family, uint32_t id) {
    for (uint32_t i = 0; i < c_.table_count; i++) {
      if (c_.tables[i].id == id && c_.tables[i].family == family) return i;
    }
    return PSTN_NONE;
  }

  uint32_t MakeTable(uint32_t family, uint32_t id) {
    const uint64_t key = static_cast<uint64_t>(family) << 32 | id;
    const auto known = table_of_.find(key);
    if (known != table_of_.end()) return known->second;
    if (c_.table_count == PSTN_RT_TABLES) return PSTN_NONE;
    const uint32_t i = c_.table_count++;
    c_.tables[i] = {};
    c_.tables[i].id = id;
    c_.tables[i].family = family;
    table_of_[key] = i;
    if (family == 4 && id == RT_TABLE_LOCAL) c_.local4 = i + 1;
    if (family == 4 && id == RT_TABLE_MAIN) c_.main4 = i + 1;
    if (family == 4 && id == RT_TABLE_DEFAULT) c_.default4 = i + 1;
    if (family == 6 && id == RT_TABLE_LOCAL) c_.local6 = i + 1;
    if (family == 6 && id == RT_TABLE_MAIN) c_.main6 = i + 1;
    return i;
  }

  // Index + 1; 0 = none, or no room.
  uint32_t MetricsOf(const RouteEntry& entry) {
    if (!entry.has_metrics) return 0;
    const std::string bytes(reinterpret_cast<const char*>(&entry.metrics), sizeof(entry.metrics));
    const auto known = metrics_of_.find(bytes);
    if (known != metrics_of_.end()) return known->second;
    if (c_.metrics_count == PSTN_RT_METRICS) {
      flags_ |= FullFlag(entry.family);
      return 0;
    }
    c_.metrics[c_.metrics_count++] = entry.metrics;
    return metrics_of_[bytes] = c_.metrics_count;
  }

  // An interface that went down takes its next hops along, sooner than the objects tell.
  void AddHop(pstn_rt_hop hop, uint32_t weight, std::vector<pstn_rt_hop>& hops) {
    hop.weight = weight;
    const pstn_rt_link* link = LinkAt(hop.ifindex);
    if (link == nullptr || (link->flags & IFF_UP) == 0) hop.flags |= PSTN_RH_DEAD;
    hops.push_back(hop);
  }

  // The next hops of an object. `r` learns what kind of object it is.
  void ObjectHops(uint32_t id, pstn_rt_route& r, std::vector<pstn_rt_hop>& hops) {
    r.flags |= PSTN_RR_OBJECT;
    const auto object = model_.nexthops.find(id);
    if (object == model_.nexthops.end()) {
      r.flags |= PSTN_RR_UNKNOWN;
      return;
    }
    const NexthopEntry& nh = object->second;
    if (nh.blackhole) r.type = RTN_BLACKHOLE;
    if (!nh.is_group && !nh.blackhole) AddHop(nh.hop, 1, hops);
    if (nh.is_group) r.flags |= PSTN_RR_GROUP;
    for (const NexthopEntry::Member& member : nh.group) {
      const auto part = model_.nexthops.find(member.id);
      if (part == model_.nexthops.end() || part->second.is_group) {
        r.flags |= PSTN_RR_UNKNOWN;
      } else if (part->second.blackhole) {
        r.type = RTN_BLACKHOLE;  // the kernel allows it only alone
      } else {
        AddHop(part->second.hop, member.weight, hops);
      }
    }
  }

  bool AddHops(const RouteEntry& entry, pstn_rt_route& r) {
    std::vector<pstn_rt_hop> hops;
    if (entry.nh_id != 0) ObjectHops(entry.nh_id, r, hops);
    const std::vector<pstn_rt_hop>& all = entry.nh_id != 0 ? hops : entry.hops;
    if (all.size() > kHopsMax || c_.hop_count + all.size() > PSTN_RT_HOPS) return false;
    r.hop_first = c_.hop_count;
    r.hop_count = static_cast<uint32_t>(all.size());
    for (const pstn_rt_hop& hop : all) c_.hops[c_.hop_count++] = hop;
    return true;
  }

  void Link(uint32_t idx, pstn_rt_route& r) {
    const RouteKey key = KeyOf(r.dst);
    uint32_t* bucket = &c_.buckets[RouteHash(r.table, r.plen, key) & c_.bucket_mask];
    for (uint32_t at = *bucket; at != 0; at = c_.routes[at - 1].hash_next) {
      const pstn_rt_route& there = c_.routes[at - 1];
      if (there.table != r.table || there.plen != r.plen || !(KeyOf(there.dst) == key)) continue;
      uint32_t& last = last_[at - 1];
      c_.routes[last].alias_next = idx + 1;
      last = idx;
      return;
    }
    r.hash_next = *bucket;
    *bucket = idx + 1;
    last_[idx] = idx;
    pstn_rt_table& table = c_.tables[r.table];
    table.plens[r.plen / 64] |= 1ull << r.plen % 64;
  }

  void AddRoute(const RouteEntry& entry) {
    const uint32_t table = MakeTable(entry.family, entry.table_id);
    if (table == PSTN_NONE || c_.route_count == PSTN_RT_ROUTES) {
      flags_ |= FullFlag(entry.family);
      return;
    }
    c_.tables[table].routes++;
    if (entry.by_source) {
      c_.tables[table].flags |= PSTN_RTT_SOURCE;
      return;
    }
    const uint32_t idx = c_.route_count;
    pstn_rt_route& r = c_.routes[idx];
    r = entry.route;
    r.table = table;
    r.metrics = MetricsOf(entry);
    r.hash_next = r.alias_next = 0;
    MaskBytes(r.dst, r.plen);
    if (!AddHops(entry, r)) {
      flags_ |= FullFlag(entry.family);
      return;
    }
    c_.route_count++;
    if (r.tos != 0) flags_ |= entry.family == 4 ? PSTN_RTF_TOS4 : PSTN_RTF_TOS6;
    Link(idx, r);
  }

  void Routes() {
    last_.assign(std::min<size_t>(model_.routes.size(), PSTN_RT_ROUTES), 0);
    for (const RouteEntry& entry : model_.routes) AddRoute(entry);
  }

  uint32_t IndexOfName(const std::string& name) const {
    if (name.empty()) return 0;
    for (const LinkEntry& entry : model_.links) {
      if (entry.name == name) return entry.link.ifindex;
    }
    return PSTN_NONE;
  }

  void AddRule(const RuleEntry& entry) {
    if (c_.rule_count == PSTN_RT_RULES) {
      flags_ |= FullFlag(entry.rule.family);
      return;
    }
    pstn_rt_rule& r = c_.rules[c_.rule_count++];
    r = entry.rule;
    r.table = TableOf(r.family, entry.table_id) + 1;  // PSTN_NONE becomes 0
    r.iif = IndexOfName(entry.iif);
    r.oif = IndexOfName(entry.oif);
    if (r.tos != 0) flags_ |= r.family == 4 ? PSTN_RTF_TOS4 : PSTN_RTF_TOS6;
    if (r.family == 6 && r.src_plen > 0) flags_ |= PSTN_RTF_SRC_RULES6;
  }

  // The first rule of the priority that a goto names.
  void ResolveGotos(uint8_t family, uint32_t first) {
    uint32_t i = first;
    for (const RuleEntry& entry : model_.rules) {
      if (entry.rule.family != family || i >= c_.rule_count) continue;
      pstn_rt_rule& r = c_.rules[i++];
      if (r.action != FR_ACT_GOTO) continue;
      for (uint32_t j = c_.rule_count; j-- > first;) {
        if (c_.rules[j].priority == entry.goto_priority) r.target = j;
      }
    }
  }

  static bool IsPlain(const RuleEntry& entry, uint32_t priority, uint32_t table) {
    pstn_rt_rule wanted{};
    wanted.family = 4;
    wanted.priority = priority;
    wanted.action = FR_ACT_TO_TBL;
    wanted.dst_plen = wanted.src_plen = 96;
    wanted.suppress_plen = wanted.suppress_group = wanted.target = PSTN_NONE;
    return SameBytes(entry.rule, wanted) && entry.table_id == table && entry.iif.empty() &&
           entry.oif.empty();
  }

  void Rules() {
    c_.rules4_first = c_.rule_count;
    std::vector<const RuleEntry*> v4;
    for (const RuleEntry& entry : model_.rules) {
      if (entry.rule.family != 4) continue;
      v4.push_back(&entry);
      AddRule(entry);
    }
    c_.rules4_count = c_.rule_count - c_.rules4_first;
    ResolveGotos(4, c_.rules4_first);
    if (v4.size() == 3 && IsPlain(*v4[0], 0, RT_TABLE_LOCAL) &&
        IsPlain(*v4[1], 32766, RT_TABLE_MAIN) && IsPlain(*v4[2], 32767, RT_TABLE_DEFAULT))
      flags_ |= PSTN_RTF_PLAIN_RULES4;
    c_.rules6_first = c_.rule_count;
    for (const RuleEntry& entry : model_.rules) {
      if (entry.rule.family == 6) AddRule(entry);
    }
    c_.rules6_count = c_.rule_count - c_.rules6_first;
    ResolveGotos(6, c_.rules6_first);
  }

  void Labels() {
    for (const pstn_rt_label& label : model_.labels) {
      if (c_.label_count == PSTN_RT_LABELS) {
        flags_ |= PSTN_RTF_FULL6;
        break;
      }
      c_.labels[c_.label_count++] = label;
    }
  }

  pstn_rt_copy& c_;
  RouteModel& model_;
  uint32_t flags_ = 0;
  std::unordered_map<uint64_t, uint32_t> table_of_;
  std::unordered_map<std::string, uint32_t> metrics_of_;
  std::vector<uint32_t> last_;  // by the first of a prefix: its last
};

// ---- the whole ---------------------------------------------------------------------------------

RouteTables::~RouteTables() {
  if (map_ != nullptr) munmap(map_, sizeof(pstn_routes));
}

int RouteTables::Create(uint64_t netns_ino) {
  UniqueFd fd(memfd_create("postern-routes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok() || ftruncate(fd.get(), sizeof(pstn_routes)) != 0) return -errno;
  void* map = mmap(nullptr, sizeof(pstn_routes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return -errno;
  map_ = static_cast<pstn_routes*>(map);
  // Our own mapping stays writable; no process gets another one, not even through this descriptor.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return -errno;
  map_->size_bytes = sizeof(pstn_routes);
  map_->netns_ino = netns_ino;
  map_->pid = static_cast<uint32_t>(getpid());
  map_->version = PSTN_ROUTES_VERSION;
  StoreRelease(map_->magic, PSTN_MAGIC_ROUTES);
  fd_ = Share(std::move(fd));
  return 0;
}

void RouteTables::CountSync(bool after_overrun) {
  StoreRelaxed(map_->syncs, LoadRelaxed(map_->syncs) + 1);
  if (after_overrun) StoreRelaxed(map_->overruns, LoadRelaxed(map_->overruns) + 1);
}

void RouteTables::Publish(RouteModel& model) {
  model.Sort();
  const uint64_t next = LoadRelaxed(map_->seq) + 1;
  pstn_rt_copy& copy = map_->copy[next & 1];
  StoreRelaxed(copy.stamp, 0u);
  // [W2] no reader goes on in what is overwritten: the zero is seen before any changed entry; pairs
  // with the fence before the second look in route.cc.
  std::atomic_thread_fence(std::memory_order_release);
  Writer(copy, model).Write();
  StoreRelease(copy.stamp, next);
  StoreRelease(map_->seq, next);  // [W2]: the copy before its number
  if ((copy.flags & (PSTN_RTF_FULL4 | PSTN_RTF_FULL6)) != 0)
    Warn(
        "routes: %zu routes, %zu rules, %zu links: the tables are full, their sockets stay with "
        "the kernel",
        model.routes.size(), model.rules.size(), model.links.size());
}

}  // namespace postern::daemon
