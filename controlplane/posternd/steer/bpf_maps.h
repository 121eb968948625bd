// bpf_maps.h - small words for what is done with maps and links.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bpf/bpf.h>
#include <fcntl.h>

#include <cerrno>

#include "../kit/fd.h"

namespace postern::daemon {

inline UniqueFd DupFd(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

inline int UpdateMap(int map, const void* key, const void* value) {
  return bpf_map_update_elem(map, key, value, BPF_ANY) == 0 ? 0 : -errno;
}

// What holds a program that is on one interface only; none, if it is held by no link of that kind.
inline UniqueFd LinkOf(uint32_t program, uint32_t kind) {
  for (uint32_t id = 0; bpf_link_get_next_id(id, &id) == 0;) {
    UniqueFd link(bpf_link_get_fd_by_id(id));
    bpf_link_info info{};
    uint32_t size = sizeof(info);
    if (link.ok() && bpf_obj_get_info_by_fd(link.get(), &info, &size) == 0 && info.type == kind &&
        info.prog_id == program)
      return link;
  }
  return {};
}

}  // namespace postern::daemon
