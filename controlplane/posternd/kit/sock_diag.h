// sock_diag.h - the kernel's table of TCP sockets in our network namespace, by sock_diag(7).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <libmnl/libmnl.h>

#include <cstdint>

namespace postern::daemon {

// Calls `each` with an inet_diag_msg for each socket of the family that is in one of the states (a
// bit each, include/net/tcp_states.h), and has that port, if it is not 0. `extensions`: what else
// is to be told of each, a bit for INET_DIAG_* - 1. 0 or -errno.
int DumpSockets(uint8_t family, uint32_t states, uint16_t port, mnl_cb_t each, void* context,
                uint8_t extensions = 0);

// Calls `each` with the listening socket that has this address (4 or 16 bytes), port and cookie; or
// -errno: it may be there all the same, if several sockets share the port. Costs the same however
// many sockets there are.
int AskSocket(uint8_t family, const void* ip, uint16_t port, uint64_t cookie, mnl_cb_t each,
              void* context);

}  // namespace postern::daemon
