// filter_check.h - what a filter may steer: what the socket that comes with it has in the kernel.
// SPDX-License-Identifier: Apache-2.0
//
// A filter takes packets away from the kernel, so the asker has to show that it would have got
// them: by the kernel's socket, which holds the port. It is kept as long as the filter
// is there, so that no other program gets the port meanwhile.
#pragma once
#include <vector>

#include "../bpf/xdp_maps.h"
#include "../kit/fd.h"
#include "abi/postern_abi.h"
#include "ctl/proto.h"

namespace postern::daemon {

struct FilterKeys {
  std::vector<pstn_xdp_flow> flows;
  std::vector<pstn_xdp_port> ports;
};

// The keys that the request (kFilter, ctl/proto.h) means. `netns` and `ifindex` are those of the
// VI's interface; to be called in that network namespace. 0 or -errno: ENOTSOCK, EINVAL not such a
// socket; EPERM of another namespace or device, or packets that the asker would not (provably) get;
// EADDRNOTAVAIL the local address is none of this host.
int CheckFilter(int fd, uint64_t netns, uint32_t ifindex, const ctl::Msg& request,
                const std::vector<pstn_addr>& local, FilterKeys& keys);

}  // namespace postern::daemon
