// filter_maps.cc - see filter_maps.h.
// SPDX-License-Identifier: Apache-2.0
#include "filter_maps.h"

#include <cerrno>

#ifdef POSTERN_BPF

#include <bpf/libbpf.h>

#include <cstring>

#include "bpf_maps.h"

namespace postern::daemon {
namespace {

// The next key is asked for before one is deleted: from a key that is not there any more the kernel
// begins anew.
template <typename Key>
void SweepMap(int map, const Steering::Keep& keep) {
  Key key{}, next{};
  bool has = bpf_map_get_next_key(map, nullptr, &next) == 0;
  while (has) {
    key = next;
    has = bpf_map_get_next_key(map, &key, &next) == 0;
    pstn_xdp_target target{};
    const std::string bytes(reinterpret_cast<const char*>(&key), sizeof(key));
    if (bpf_map_lookup_elem(map, &key, &target) == 0 && !keep(target.slot, bytes))
      (void)bpf_map_delete_elem(map, &key);
  }
}

template <typename Key>
void RemoveIfOf(int map, const Key& key, uint32_t slot) {
  pstn_xdp_target target{};
  if (bpf_map_lookup_elem(map, &key, &target) == 0 && target.slot == slot)
    (void)bpf_map_delete_elem(map, &key);
}

template <typename Key>
int SlotIn(int map, const Key& key) {
  pstn_xdp_target target{};
  return bpf_map_lookup_elem(map, &key, &target) == 0 ? static_cast<int>(target.slot) : -1;
}

}  // namespace

bool FilterMaps::TakeMap(const std::string& name, UniqueFd& map) {
  UniqueFd* const to = name == "pstn_vi_flows"    ? &flows_
                       : name == "pstn_vi_ports"  ? &ports_
                       : name == "pstn_vi_local"  ? &local_
                       : name == "pstn_vi_owners" ? &owners_
                       : name == "pstn_vi_counts" ? &counts_
                                                  : nullptr;
  if (to != nullptr) *to = std::move(map);
  return to != nullptr;
}

bool FilterMaps::HasMaps() const {
  return flows_.ok() && ports_.ok() && local_.ok() && owners_.ok() && counts_.ok();
}

bool FilterMaps::EachMap(uint32_t program, const std::string& name, const Take& take) {
  const UniqueFd fd(bpf_prog_get_fd_by_id(program));
  uint32_t maps[16] = {};
  bpf_prog_info info{};
  info.nr_map_ids = 16;
  info.map_ids = reinterpret_cast<uintptr_t>(maps);
  uint32_t size = sizeof(info);
  if (!fd.ok() || bpf_obj_get_info_by_fd(fd.get(), &info, &size) != 0) return false;
  if (name != info.name) return false;
  for (uint32_t i = 0; i < info.nr_map_ids && i < 16; ++i) {
    UniqueFd map(bpf_map_get_fd_by_id(maps[i]));
    bpf_map_info about{};
    uint32_t about_size = sizeof(about);
    if (!map.ok() || bpf_obj_get_info_by_fd(map.get(), &about, &about_size) != 0) return false;
    take(about.name, map);
  }
  return true;
}

void FilterMaps::SetOwner(uint32_t slot, uint64_t owner) {
  (void)UpdateMap(owners_.get(), &slot, &owner);
}

void FilterMaps::Empty() {
  Sweep([](uint32_t, const std::string&) { return false; });
  SetLocal({});
  for (uint32_t slot = 0; slot < PSTN_XDP_SLOTS; ++slot) SetOwner(slot, 0);
  const int cpus = libbpf_num_possible_cpus();
  const std::vector<uint64_t> zero(cpus > 0 ? static_cast<size_t>(cpus) : 0);
  for (uint32_t which = 0; cpus > 0 && which < PSTN_XDP_COUNTS; ++which)
    (void)bpf_map_update_elem(counts_.get(), &which, zero.data(), BPF_ANY);
}

int FilterMaps::FindSlot(uint64_t cookie) const {
  for (uint32_t slot = 0; slot < PSTN_XDP_SLOTS && cookie != 0; ++slot) {
    uint64_t owner = 0;
    if (bpf_map_lookup_elem(owners_.get(), &slot, &owner) == 0 && owner == cookie)
      return static_cast<int>(slot);
  }
  return -ENOENT;
}

void FilterMaps::Sweep(const Keep& keep) {
  SweepMap<pstn_xdp_flow>(flows_.get(), keep);
  SweepMap<pstn_xdp_port>(ports_.get(), keep);
}

void FilterMaps::PurgeSlot(uint32_t slot) {
  Sweep([slot](uint32_t of, const std::string&) { return of != slot; });
  SetOwner(slot, 0);
}

int FilterMaps::AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target) {
  return UpdateMap(flows_.get(), &flow, &target);
}

int FilterMaps::AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target) {
  return UpdateMap(ports_.get(), &port, &target);
}

int FilterMaps::SlotOf(const pstn_xdp_flow& flow) const { return SlotIn(flows_.get(), flow); }

int FilterMaps::SlotOf(const pstn_xdp_port& port) const { return SlotIn(ports_.get(), port); }

void FilterMaps::RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) {
  RemoveIfOf(flows_.get(), flow, slot);
}

void FilterMaps::RemovePort(const pstn_xdp_port& port, uint32_t slot) {
  RemoveIfOf(ports_.get(), port, slot);
}

void FilterMaps::SetLocal(const std::vector<pstn_addr>& addresses) {
  // New ones first: an address that stays is there all the time.
  for (const pstn_addr& address : addresses) {
    const uint32_t one = 1;
    (void)UpdateMap(local_.get(), address.ip, &one);
  }
  pstn_xdp_ip key{}, next{};
  bool has = bpf_map_get_next_key(local_.get(), nullptr, &next) == 0;
  while (has) {
    key = next;
    has = bpf_map_get_next_key(local_.get(), &key, &next) == 0;
    bool stays = false;
    for (const pstn_addr& address : addresses) stays |= memcmp(address.ip, key.byte, 16) == 0;
    if (!stays) (void)bpf_map_delete_elem(local_.get(), &key);
  }
}

uint64_t FilterMaps::Count(uint32_t which) const {
  const int cpus = libbpf_num_possible_cpus();
  if (cpus <= 0) return 0;
  std::vector<uint64_t> values(static_cast<size_t>(cpus));
  uint64_t sum = 0;
  if (bpf_map_lookup_elem(counts_.get(), &which, values.data()) != 0) return 0;
  for (const uint64_t value : values) sum += value;
  return sum;
}

}  // namespace postern::daemon

#else  // POSTERN_BPF

namespace postern::daemon {

int FilterMaps::FindSlot(uint64_t) const { return -ENOSYS; }
int FilterMaps::AddFlow(const pstn_xdp_flow&, const pstn_xdp_target&) { return -ENOSYS; }
int FilterMaps::AddPort(const pstn_xdp_port&, const pstn_xdp_target&) { return -ENOSYS; }
int FilterMaps::SlotOf(const pstn_xdp_flow&) const { return -1; }
int FilterMaps::SlotOf(const pstn_xdp_port&) const { return -1; }
void FilterMaps::RemoveFlow(const pstn_xdp_flow&, uint32_t) {}
void FilterMaps::RemovePort(const pstn_xdp_port&, uint32_t) {}
void FilterMaps::Sweep(const Keep&) {}
void FilterMaps::SetLocal(const std::vector<pstn_addr>&) {}
uint64_t FilterMaps::Count(uint32_t) const { return 0; }

}  // namespace postern::daemon

#endif  // POSTERN_BPF
