// SPDX-License-Identifier: Apache-2.0
// names.h - addresses as the engine, lib/wire and lib/tcp have them, each in the others' form.
#pragma once
#include <cstring>

#include "abi/postern_abi.h"
#include "tcp/segment/isn.h"
#include "wire/ip/ip.h"

namespace postern::stack {

inline pstn_addr NameOf(const wire::Address& ip, uint16_t port) {
  pstn_addr a = {};
  memcpy(a.ip, ip.bytes, sizeof a.ip);
  a.port = port;
  return a;
}
inline wire::Address IpOf(const pstn_addr& a) {
  wire::Address ip;
  memcpy(ip.bytes, a.ip, sizeof ip.bytes);
  return ip;
}
inline bool IsIpv4(const pstn_addr& a) {
  return memcmp(a.ip, wire::kMappedPrefix, sizeof wire::kMappedPrefix) == 0;
}
inline uint32_t IpBytes(const pstn_addr& a) {
  return IsIpv4(a) ? wire::kIpv4HeaderBytes : wire::kIpv6HeaderBytes;
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
