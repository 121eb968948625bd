// filter_check.h - what a filter may steer: what the socket that comes with it has in the kernel.
// SPDX-License-Identifier: Apache-2.0
//
// A filter takes packets away from the kernel, so the asker has to show that it would have got
// them: by the kernel's socket, which holds the port. It is kept as long as the filter is there, so
// that it is not closed meanwhile. That does not hold the port: each process that has the socket
// can take it out of its state (shutdown(), connect() to no address). So a listener's state is
// watched (state_watch.h), and what steers looks at the owner of the kernel's socket at the
// moment of the packet (bpf/xdp_filter.bpf.c, softnic/steer.h).
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
  uint32_t uid = 0;  // of the kernel's socket
};

// The keys that the request (kFilter, ctl/proto.h) means. `netns` and `ifindex` are those of the
// VI's interface; to be called in that network namespace. 0 or -errno: ENOTSOCK, EINVAL not such a
// socket; EPERM of another namespace or device, or packets that the asker would not (provably) get;
// EADDRNOTAVAIL the local address is none of this host. `whose`: the asker's user, who may keep the
// socket from answering; the event loop has asked something of it before (guard/patience.h), so
// that no thread is made in that namespace.
int CheckFilter(int fd, uid_t whose, uint64_t netns, uint32_t ifindex, const ctl::Msg& request,
                const std::vector<pstn_addr>& local, FilterKeys& keys);

// Whether the kernel's socket still listens where a filter for these keys has it listen.
bool StillListens(int fd, uid_t whose, const FilterKeys& keys);

}  // namespace postern::daemon
