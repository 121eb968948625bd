// SPDX-License-Identifier: Apache-2.0
// names.h - what a connection's two addresses are to lib/wire and lib/tcp.
#pragma once
#include <cstring>

#include "base/ip_address.h"
#include "tcp/segment/isn.h"
#include "wire/ip/ip.h"

namespace postern::stack {

inline uint32_t IpBytes(const pstn_addr& a) {
  return AddrIsV4(a) ? wire::kIpv4HeaderBytes : wire::kIpv6HeaderBytes;
}
// As `local`'s side names the connection.
inline tcp::ConnName ConnNameOf(const pstn_addr& local, const pstn_addr& peer) {
  tcp::ConnName name = {};
  memcpy(name.local, local.ip, sizeof name.local);
  memcpy(name.remote, peer.ip, sizeof name.remote);
  name.local_port = local.port;
  name.remote_port = peer.port;
  return name;
}

}  // namespace postern::stack
