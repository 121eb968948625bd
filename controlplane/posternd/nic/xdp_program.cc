// xdp_program.cc - see xdp_program.h.
// SPDX-License-Identifier: Apache-2.0
#include "xdp_program.h"

#include <fcntl.h>

#include <cerrno>

#include "../kit/log.h"

namespace postern::daemon {

UniqueFd XdpProgram::CopyLink() const { return UniqueFd(fcntl(link_.get(), F_DUPFD_CLOEXEC, 0)); }

}  // namespace postern::daemon

#ifdef POSTERN_BPF

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <sys/socket.h>
#include <xdp_filter.skel.h>  // generated

#include <cstring>
#include <initializer_list>
#include <memory>

namespace postern::daemon {
namespace {

struct FreeXdpSkeleton {
  void operator()(xdp_filter_bpf* skeleton) const { xdp_filter_bpf__destroy(skeleton); }
};

UniqueFd Dup(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// What is on the interface already, 0: nothing.
uint32_t ProgramOn(uint32_t ifindex) {
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  if (bpf_xdp_query(static_cast<int>(ifindex), 0, &query) != 0) return 0;
  return query.prog_id != 0       ? query.prog_id
         : query.drv_prog_id != 0 ? query.drv_prog_id
                                  : query.skb_prog_id;
}

UniqueFd LinkOf(uint32_t program) {
  for (uint32_t id = 0; bpf_link_get_next_id(id, &id) == 0;) {
    UniqueFd link(bpf_link_get_fd_by_id(id));
    bpf_link_info info{};
    uint32_t size = sizeof(info);
    if (link.ok() && bpf_obj_get_info_by_fd(link.get(), &info, &size) == 0 &&
        info.type == BPF_LINK_TYPE_XDP && info.prog_id == program)
      return link;
  }
  return {};
}

// The next key is asked for before one is deleted: from a key that is not there any more the kernel
// begins anew.
template <typename Key>
void SweepMap(int map, const XdpProgram::Keep& keep) {
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

int Update(int map, const void* key, const void* value) {
  return bpf_map_update_elem(map, key, value, BPF_ANY) == 0 ? 0 : -errno;
}

}  // namespace

bool XdpProgram::Built() { return true; }

int XdpProgram::Load(const std::string& name) {
  const std::unique_ptr<xdp_filter_bpf, FreeXdpSkeleton> skeleton(xdp_filter_bpf__open_and_load());
  if (skeleton == nullptr) {
    const int error = errno;
    Warn("VI on %s: the XDP program is not loaded: %s", name.c_str(), strerror(error));
    return -error;
  }
  const int program = bpf_program__fd(skeleton->progs.pstn_xdp3_vi);
  // The program itself has no use for this one, which is to live as long as it does.
  if (bpf_prog_bind_map(program, bpf_map__fd(skeleton->maps.pstn_vi_owners), nullptr) != 0)
    return -errno;
  xsks_ = Dup(bpf_map__fd(skeleton->maps.pstn_vi_xsks));
  flows_ = Dup(bpf_map__fd(skeleton->maps.pstn_vi_flows));
  ports_ = Dup(bpf_map__fd(skeleton->maps.pstn_vi_ports));
  local_ = Dup(bpf_map__fd(skeleton->maps.pstn_vi_local));
  owners_ = Dup(bpf_map__fd(skeleton->maps.pstn_vi_owners));
  counts_ = Dup(bpf_map__fd(skeleton->maps.pstn_vi_counts));
  if (!counts_.ok()) return -EMFILE;
  program_ = Dup(program);
  return program_.ok() ? 0 : -EMFILE;
}

int XdpProgram::AttachNew(uint32_t ifindex, const std::string& name) {
  const int failed = program_.ok() ? 0 : Load(name);
  if (failed != 0) return failed;
  for (const uint32_t mode : {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE}) {
    LIBBPF_OPTS(bpf_link_create_opts, options, .flags = mode);
    link_ = UniqueFd(bpf_link_create(program_.get(), static_cast<int>(ifindex), BPF_XDP, &options));
    generic_ = mode == XDP_FLAGS_SKB_MODE;
    if (link_.ok()) return 0;
  }
  const int error = errno;
  Warn("VI on %s: the XDP program can't be attached: %s", name.c_str(), strerror(error));
  return -error;
}

bool XdpProgram::Detach() {
  const bool again = !taken_over_ && program_.ok();
  // A process that had the VI may have kept a copy of the link: filters of the next interface are
  // not for it.
  if (again) (void)bpf_link_detach(link_.get());
  link_ = UniqueFd();
  if (!again) return false;
  Sweep([](uint32_t, const std::string&) { return false; });
  SetLocal({});
  const uint64_t nobody = 0;
  for (uint32_t slot = 0; slot < PSTN_XDP_SLOTS; ++slot)
    (void)Update(owners_.get(), &slot, &nobody);
  for (uint32_t key = 0; key < PSTN_XDP_SLOTS * PSTN_XDP_SLOT_QUEUES; ++key)
    (void)bpf_map_delete_elem(xsks_.get(), &key);
  const int cpus = libbpf_num_possible_cpus();
  const std::vector<uint64_t> zero(cpus > 0 ? static_cast<size_t>(cpus) : 0);
  for (uint32_t which = 0; cpus > 0 && which < PSTN_XDP_COUNTS; ++which)
    (void)bpf_map_update_elem(counts_.get(), &which, zero.data(), BPF_ANY);
  return true;
}

int XdpProgram::TakeOver(uint32_t ifindex, uint32_t program) {
  const UniqueFd fd(bpf_prog_get_fd_by_id(program));
  uint32_t maps[16] = {};
  bpf_prog_info info{};
  info.nr_map_ids = 16;
  info.map_ids = reinterpret_cast<uintptr_t>(maps);
  uint32_t size = sizeof(info);
  if (!fd.ok() || bpf_obj_get_info_by_fd(fd.get(), &info, &size) != 0) return -EBUSY;
  if (strcmp(info.name, PSTN_XDP_PROGRAM) != 0) return -EBUSY;
  for (uint32_t i = 0; i < info.nr_map_ids && i < 16; ++i) {
    UniqueFd map(bpf_map_get_fd_by_id(maps[i]));
    bpf_map_info about{};
    uint32_t about_size = sizeof(about);
    if (!map.ok() || bpf_obj_get_info_by_fd(map.get(), &about, &about_size) != 0) return -EBUSY;
    const std::string name = about.name;
    if (name == "pstn_vi_xsks")
      xsks_ = std::move(map);
    else if (name == "pstn_vi_flows")
      flows_ = std::move(map);
    else if (name == "pstn_vi_ports")
      ports_ = std::move(map);
    else if (name == "pstn_vi_local")
      local_ = std::move(map);
    else if (name == "pstn_vi_owners")
      owners_ = std::move(map);
    else if (name == "pstn_vi_counts")
      counts_ = std::move(map);
  }
  link_ = LinkOf(program);
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  generic_ = bpf_xdp_query(static_cast<int>(ifindex), 0, &query) == 0 &&
             query.attach_mode == XDP_ATTACHED_SKB;
  taken_over_ = true;
  const bool whole = link_.ok() && xsks_.ok() && flows_.ok() && ports_.ok() && local_.ok() &&
                     owners_.ok() && counts_.ok();
  return whole ? 0 : -EBUSY;
}

int XdpProgram::Attach(uint32_t ifindex, const std::string& name) {
  const uint32_t there = ProgramOn(ifindex);
  if (there == 0) return AttachNew(ifindex, name);
  const int error = TakeOver(ifindex, there);
  if (error != 0) Warn("VI on %s: the interface has another XDP program", name.c_str());
  return error;
}

bool XdpProgram::attached() const {
  bpf_link_info info{};
  uint32_t size = sizeof(info);
  return bpf_obj_get_info_by_fd(link_.get(), &info, &size) == 0 && info.xdp.ifindex != 0;
}

int XdpProgram::AddSockets(const std::vector<UniqueFd>& sockets, const IsTaken& is_taken) {
  for (uint32_t slot = 0; slot < PSTN_XDP_SLOTS; ++slot) {
    if (is_taken(slot)) continue;
    const uint32_t first = slot * PSTN_XDP_SLOT_QUEUES;
    const int socket = sockets.front().get();
    // The kernel takes out what is closed: so a slot is free if nothing is there.
    if (bpf_map_update_elem(xsks_.get(), &first, &socket, BPF_NOEXIST) != 0) {
      if (errno == EEXIST) continue;
      return -errno;
    }
    PurgeSlot(slot);
    for (uint32_t queue = 1; queue < sockets.size(); ++queue) {
      const uint32_t key = first + queue;
      const int fd = sockets[queue].get();
      if (const int error = Update(xsks_.get(), &key, &fd); error != 0) {
        DropSlot(slot);
        return error;
      }
    }
    uint64_t cookie = 0;
    socklen_t size = sizeof(cookie);
    (void)getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &size);
    (void)Update(owners_.get(), &slot, &cookie);
    return static_cast<int>(slot);
  }
  return -ENOSPC;
}

int XdpProgram::FindSlot(uint64_t cookie) const {
  for (uint32_t slot = 0; slot < PSTN_XDP_SLOTS && cookie != 0; ++slot) {
    uint64_t owner = 0;
    if (bpf_map_lookup_elem(owners_.get(), &slot, &owner) == 0 && owner == cookie)
      return static_cast<int>(slot);
  }
  return -ENOENT;
}

void XdpProgram::Sweep(const Keep& keep) {
  SweepMap<pstn_xdp_flow>(flows_.get(), keep);
  SweepMap<pstn_xdp_port>(ports_.get(), keep);
}

void XdpProgram::PurgeSlot(uint32_t slot) {
  Sweep([slot](uint32_t of, const std::string&) { return of != slot; });
  const uint64_t nobody = 0;
  (void)Update(owners_.get(), &slot, &nobody);
}

void XdpProgram::DropSlot(uint32_t slot) {
  PurgeSlot(slot);
  for (uint32_t queue = 0; queue < PSTN_XDP_SLOT_QUEUES; ++queue) {
    const uint32_t key = slot * PSTN_XDP_SLOT_QUEUES + queue;
    (void)bpf_map_delete_elem(xsks_.get(), &key);
  }
}

int XdpProgram::AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target) {
  return Update(flows_.get(), &flow, &target);
}

int XdpProgram::AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target) {
  return Update(ports_.get(), &port, &target);
}

int XdpProgram::SlotOf(const pstn_xdp_flow& flow) const { return SlotIn(flows_.get(), flow); }

int XdpProgram::SlotOf(const pstn_xdp_port& port) const { return SlotIn(ports_.get(), port); }

void XdpProgram::RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) {
  RemoveIfOf(flows_.get(), flow, slot);
}

void XdpProgram::RemovePort(const pstn_xdp_port& port, uint32_t slot) {
  RemoveIfOf(ports_.get(), port, slot);
}

void XdpProgram::SetLocal(const std::vector<pstn_addr>& addresses) {
  // New ones first: an address that stays is there all the time.
  for (const pstn_addr& address : addresses) {
    const uint32_t one = 1;
    (void)Update(local_.get(), address.ip, &one);
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

uint64_t XdpProgram::Count(uint32_t which) const {
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

bool XdpProgram::Built() { return false; }
int XdpProgram::Attach(uint32_t, const std::string&) {
  Warn("VIs: this posternd was built without clang, bpftool or libbpf, and has none");
  return -ENOSYS;
}
bool XdpProgram::Detach() { return false; }
bool XdpProgram::attached() const { return false; }
int XdpProgram::AddSockets(const std::vector<UniqueFd>&, const IsTaken&) { return -ENOSYS; }
int XdpProgram::FindSlot(uint64_t) const { return -ENOSYS; }
void XdpProgram::DropSlot(uint32_t) {}
int XdpProgram::AddFlow(const pstn_xdp_flow&, const pstn_xdp_target&) { return -ENOSYS; }
int XdpProgram::AddPort(const pstn_xdp_port&, const pstn_xdp_target&) { return -ENOSYS; }
int XdpProgram::SlotOf(const pstn_xdp_flow&) const { return -1; }
int XdpProgram::SlotOf(const pstn_xdp_port&) const { return -1; }
void XdpProgram::RemoveFlow(const pstn_xdp_flow&, uint32_t) {}
void XdpProgram::RemovePort(const pstn_xdp_port&, uint32_t) {}
void XdpProgram::Sweep(const Keep&) {}
void XdpProgram::SetLocal(const std::vector<pstn_addr>&) {}
uint64_t XdpProgram::Count(uint32_t) const { return 0; }

}  // namespace postern::daemon

#endif  // POSTERN_BPF
