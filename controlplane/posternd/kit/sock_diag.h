// sock_diag.h - the kernel's table of TCP sockets in our network namespace, by sock_diag(7).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <libmnl/libmnl.h>

#include <cstdint>

namespace postern::daemon {

// Calls `each` with an inet_diag_msg for each socket of the family that is in one of the states (a
// bit each, include/net/tcp_states.h). 0 or -errno.
int DumpSockets(uint8_t family, uint32_t states, mnl_cb_t each, void* context);

}  // namespace postern::daemon
