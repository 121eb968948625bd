// tap_program.cc - see tap_program.h.
// SPDX-License-Identifier: Apache-2.0
#include "tap_program.h"

#include <fcntl.h>

#include <cerrno>

#include "../kit/log.h"

namespace postern::daemon {

UniqueFd TapProgram::CopyLink() const { return UniqueFd(fcntl(link_.get(), F_DUPFD_CLOEXEC, 0)); }

}  // namespace postern::daemon

#ifdef POSTERN_BPF

#include <bpf/libbpf.h>
#include <net/if.h>
#include <tap_filter.skel.h>  // generated

#include <cstring>
#include <initializer_list>
#include <memory>

#include "bpf_maps.h"
#include "tap_open.h"

namespace postern::daemon {
namespace {

// Linux 6.6; our headers may be older.
constexpr auto kTcxIngress = static_cast<bpf_attach_type>(46);
constexpr uint32_t kLinkTcx = 11;

struct FreeTapSkeleton {
  void operator()(tap_filter_bpf* skeleton) const { tap_filter_bpf__destroy(skeleton); }
};

// bpf_link_info of a tcx link: what our headers may not have begins where all kinds' does.
uint32_t IfindexOf(const bpf_link_info& info) { return info.xdp.ifindex; }

bool ReadLink(int link, bpf_link_info& info) {
  uint32_t size = sizeof(info);
  info = {};
  return bpf_obj_get_info_by_fd(link, &info, &size) == 0 && info.type == kLinkTcx;
}

std::string NameOf(int program) {
  bpf_prog_info about{};
  uint32_t size = sizeof(about);
  return bpf_obj_get_info_by_fd(program, &about, &size) == 0 ? about.name : "";
}

// What is at the ingress of an interface of this network namespace. The kernel's numbers of
// interfaces are each namespace's own, so they say nothing in a list of all links.
UniqueFd ProgramAt(uint32_t ifindex, const std::string& name, uint32_t* id) {
  uint32_t programs[64] = {}, count = 64;
  if (bpf_prog_query(static_cast<int>(ifindex), kTcxIngress, 0, nullptr, programs, &count) != 0)
    return {};
  for (uint32_t i = 0; i < count; ++i) {
    UniqueFd program(bpf_prog_get_fd_by_id(programs[i]));
    if (!program.ok() || NameOf(program.get()) != name) continue;
    if (id != nullptr) *id = programs[i];
    return program;
  }
  return {};
}

}  // namespace

void TapProgram::TakeOne(const std::string& name, UniqueFd& map) {
  UniqueFd* const to = name == "pstn_vi_taps"    ? &taps_
                       : name == "pstn_vi_slots" ? &slots_
                       : name == "pstn_vi_bells" ? &bells_
                                                 : nullptr;
  if (to != nullptr)
    *to = std::move(map);
  else
    (void)TakeMap(name, map);
}

bool TapProgram::HasAll() const { return taps_.ok() && slots_.ok() && bells_.ok() && HasMaps(); }

int TapProgram::Load(const std::string& name) {
  const std::unique_ptr<tap_filter_bpf, FreeTapSkeleton> skeleton(tap_filter_bpf__open_and_load());
  if (skeleton == nullptr) {
    const int error = errno;
    Warn("VI on %s: the tcx programs are not loaded: %s", name.c_str(), strerror(error));
    return -error;
  }
  const int program = bpf_program__fd(skeleton->progs.pstn_tap1_vi);
  // A posternd that takes over finds the maps by this program: those that it does not use, too.
  for (const bpf_map* map : {skeleton->maps.pstn_vi_owners, skeleton->maps.pstn_vi_slots})
    if (bpf_prog_bind_map(program, bpf_map__fd(map), nullptr) != 0) return -errno;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, skeleton->obj) {
    UniqueFd fd = DupFd(bpf_map__fd(map));
    TakeOne(bpf_map__name(map), fd);
  }
  program_ = DupFd(program);
  out_ = DupFd(bpf_program__fd(skeleton->progs.pstn_tap1_out));
  return HasAll() && program_.ok() && out_.ok() ? 0 : -EMFILE;
}

int TapProgram::TakeOver(uint32_t ifindex) {
  uint32_t program = 0;
  if (!ProgramAt(ifindex, PSTN_TAP_PROGRAM, &program).ok()) return -ENOENT;
  link_ = LinkOf(program, kLinkTcx);
  if (!EachMap(program, PSTN_TAP_PROGRAM,
               [this](const std::string& name, UniqueFd& map) { TakeOne(name, map); }) ||
      !HasAll() || !link_.ok())
    return -EBUSY;
  for (uint32_t slot = 0; slot < PSTN_XDP_SLOTS && !out_.ok(); ++slot) {
    uint32_t tap = 0;
    if (bpf_map_lookup_elem(taps_.get(), &slot, &tap) == 0 && tap != 0)
      out_ = ProgramAt(tap, PSTN_TAP_OUT, nullptr);
  }
  taken_over_ = true;
  return 0;
}

int TapProgram::Attach(uint32_t ifindex, const std::string& name) {
  ifindex_ = ifindex;
  int error = TakeOver(ifindex);
  // Held by a process that has let go of its TAP: it steers nothing.
  if (error == 0 && !out_.ok()) {
    Detach();
    taken_over_ = false;
    error = -ENOENT;
  }
  if (error == -EBUSY) Warn("VI on %s: it has another tcx program of our name", name.c_str());
  if (error != -ENOENT) return error;
  error = Load(name);
  if (error != 0) return error;
  link_ =
      UniqueFd(bpf_link_create(program_.get(), static_cast<int>(ifindex), kTcxIngress, nullptr));
  if (link_.ok()) return 0;
  error = errno;
  Warn("VI on %s: the tcx program can't be attached: %s", name.c_str(),
       error == EINVAL ? "the kernel is older than 6.6, and has no tcx" : strerror(error));
  return error == EINVAL ? -EOPNOTSUPP : -error;
}

void TapProgram::Detach() {
  if (link_.ok()) (void)bpf_link_detach(link_.get());
  link_ = UniqueFd();
}

bool TapProgram::attached() const {
  bpf_link_info info;
  return ReadLink(link_.get(), info) && IfindexOf(info) != 0;
}

// Frozen: from here on only the program writes to it. Its owner may read it, and map it to be read.
int TapProgram::NewBell(uint32_t slot, UniqueFd& bell) {
  LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = BPF_F_MMAPABLE);
  bell = UniqueFd(bpf_map_create(BPF_MAP_TYPE_ARRAY, "pstn_vi_bell", sizeof(uint32_t),
                                 sizeof(uint64_t), 1, &options));
  const int map = bell.get();
  bpf_map_info about{};
  uint32_t size = sizeof(about);
  if (!bell.ok() || bpf_map_freeze(map) != 0 || bpf_obj_get_info_by_fd(map, &about, &size) != 0)
    return -errno;
  const int error = UpdateMap(bells_.get(), &slot, &map);
  if (error == 0) SetOwner(slot, about.id);
  return error;
}

int TapProgram::AddTap(uint32_t tap, const IsTaken& is_taken, UniqueFd& bell) {
  // One whose TAP is there is the VI of a stack that has not come to this posternd yet.
  const auto is_alive = [this](uint32_t slot) {
    uint32_t there = 0;
    char name[IF_NAMESIZE];
    return bpf_map_lookup_elem(taps_.get(), &slot, &there) == 0 && there != 0 &&
           if_indextoname(there, name) != nullptr;
  };
  uint32_t slot = 0;
  while (slot < PSTN_XDP_SLOTS && (is_taken(slot) || is_alive(slot))) ++slot;
  if (slot == PSTN_XDP_SLOTS) return -ENOSPC;
  DropSlot(slot);  // what an owner has left that ended while there was no posternd
  const int target = static_cast<int>(tap);
  if (bpf_prog_attach(out_.get(), target, kTcxIngress, 0) != 0) return -errno;
  int error = NewBell(slot, bell);
  const pstn_xdp_tap about = {slot, ifindex_};
  if (error == 0) error = UpdateMap(slots_.get(), &tap, &about);
  if (error == 0) error = UpdateMap(taps_.get(), &slot, &tap);
  if (error == 0) return static_cast<int>(slot);
  DropSlot(slot);
  return error;
}

// Only a map has elements: of another of BPF's things the kernel's number says nothing.
int TapProgram::FindBell(const UniqueFd& bell) const {
  const uint32_t zero = 0;
  uint64_t counted = 0;
  bpf_map_info about{};
  uint32_t size = sizeof(about);
  if (!bell.ok() || bpf_map_lookup_elem(bell.get(), &zero, &counted) != 0) return -EINVAL;
  if (bpf_obj_get_info_by_fd(bell.get(), &about, &size) != 0) return -EINVAL;
  return FindSlot(about.id);
}

void TapProgram::DropSlot(uint32_t slot) {
  PurgeSlot(slot);
  uint32_t tap = 0;
  const uint32_t none = 0;
  if (bpf_map_lookup_elem(taps_.get(), &slot, &tap) == 0 && tap != 0) {
    (void)UpdateMap(taps_.get(), &slot, &none);
    (void)bpf_map_delete_elem(slots_.get(), &tap);
    RemoveTap(tap);
  }
  (void)bpf_map_delete_elem(bells_.get(), &slot);
}

}  // namespace postern::daemon

#else  // POSTERN_BPF

namespace postern::daemon {

int TapProgram::Attach(uint32_t, const std::string&) {
  Warn("VIs: this posternd was built without clang, bpftool or libbpf, and has none");
  return -ENOSYS;
}
void TapProgram::Detach() {}
bool TapProgram::attached() const { return false; }
int TapProgram::AddTap(uint32_t, const IsTaken&, UniqueFd&) { return -ENOSYS; }
int TapProgram::FindBell(const UniqueFd&) const { return -ENOSYS; }
void TapProgram::DropSlot(uint32_t) {}

}  // namespace postern::daemon

#endif  // POSTERN_BPF
