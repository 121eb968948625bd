// source_port.h - a port of this host that is kept for a stack, which makes its connections from
// it.
// SPDX-License-Identifier: Apache-2.0
//
// The socket that holds it is posternd's own: so no program can share the port by options that it
// sets later, nor claim a port that it does not have. It neither listens nor connects.
#pragma once
#include "../bpf/xdp_maps.h"
#include "../kit/fd.h"
#include "abi/postern_abi.h"

namespace postern::daemon {

// Of the present network namespace, at `wanted`'s address. Its port 0: one that bind() gives out
// first, of which there are as many again for the kernel's connect() (see lib/peer/port.cc); else
// an ephemeral port. 0 or -errno: EADDRINUSE, EPERM it is no such port, EADDRNOTAVAIL bind() has no
// more of its own, or it is no address of this host, EINVAL it is any address.
int KeepSourcePort(const pstn_addr& wanted, UniqueFd& socket, pstn_xdp_port& key);

}  // namespace postern::daemon
