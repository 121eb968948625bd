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

#include "bpf_maps.h"

namespace postern::daemon {
namespace {

struct FreeXdpSkeleton {
  void operator()(xdp_filter_bpf* skeleton) const { xdp_filter_bpf__destroy(skeleton); }
};

// What is on the interface already, 0: nothing.
uint32_t ProgramOn(uint32_t ifindex) {
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  if (bpf_xdp_query(static_cast<int>(ifindex), 0, &query) != 0) return 0;
  return query.prog_id != 0       ? query.prog_id
         : query.drv_prog_id != 0 ? query.drv_prog_id
                                  : query.skb_prog_id;
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
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, skeleton->obj) {
    UniqueFd fd = DupFd(bpf_map__fd(map));
    TakeOne(bpf_map__name(map), fd);
  }
  if (!HasAll()) return -EMFILE;
  program_ = DupFd(program);
  return program_.ok() ? 0 : -EMFILE;
}

void XdpProgram::TakeOne(const std::string& name, UniqueFd& map) {
  if (name == "pstn_vi_xsks")
    xsks_ = std::move(map);
  else
    (void)TakeMap(name, map);
}

bool XdpProgram::HasAll() const { return xsks_.ok() && HasMaps(); }

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
  Empty();
  for (uint32_t key = 0; key < PSTN_XDP_SLOTS * PSTN_XDP_SLOT_QUEUES; ++key)
    (void)bpf_map_delete_elem(xsks_.get(), &key);
  return true;
}

int XdpProgram::TakeOver(uint32_t ifindex, uint32_t program) {
  if (!EachMap(program, PSTN_XDP_PROGRAM,
               [this](const std::string& name, UniqueFd& map) { TakeOne(name, map); }))
    return -EBUSY;
  link_ = LinkOf(program, BPF_LINK_TYPE_XDP);
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  generic_ = bpf_xdp_query(static_cast<int>(ifindex), 0, &query) == 0 &&
             query.attach_mode == XDP_ATTACHED_SKB;
  taken_over_ = true;
  const bool whole = link_.ok() && HasAll();
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
      if (const int error = UpdateMap(xsks_.get(), &key, &fd); error != 0) {
        DropSlot(slot);
        return error;
      }
    }
    uint64_t cookie = 0;
    socklen_t size = sizeof(cookie);
    (void)getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &size);
    SetOwner(slot, cookie);
    return static_cast<int>(slot);
  }
  return -ENOSPC;
}

void XdpProgram::DropSlot(uint32_t slot) {
  PurgeSlot(slot);
  for (uint32_t queue = 0; queue < PSTN_XDP_SLOT_QUEUES; ++queue) {
    const uint32_t key = slot * PSTN_XDP_SLOT_QUEUES + queue;
    (void)bpf_map_delete_elem(xsks_.get(), &key);
  }
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
void XdpProgram::DropSlot(uint32_t) {}

}  // namespace postern::daemon

#endif  // POSTERN_BPF
