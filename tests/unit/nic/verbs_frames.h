// verbs_frames.h - addresses and frames of the tests of the driver over RDMA cards.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "../../../controlplane/posternd/bpf/xdp_maps.h"
#include "../wire/wire_frames.h"

namespace postern::verbsnic {

using wire_test::Bytes;
using wire_test::Put;
using wire_test::Put16;
using wire_test::Put32;

constexpr uint8_t kMac[6] = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55};  // the card's

// 10.0.0.N
inline pstn_xdp_ip Ip(uint8_t n) {
  pstn_xdp_ip ip{};
  ip.byte[10] = ip.byte[11] = 0xff;
  ip.byte[12] = 10;
  ip.byte[15] = n;
  return ip;
}

inline Bytes Ipv4(uint8_t protocol, uint8_t src, uint8_t dst, const Bytes& payload) {
  Bytes p = {0x45, 0};
  Put16(p, static_cast<uint32_t>(20 + payload.size()));
  Put32(p, 0);
  Put(p, {64, protocol, 0, 0, 10, 0, 0, src, 10, 0, 0, dst});
  Put(p, payload);
  return p;
}

inline Bytes Ether(const Bytes& packet) {
  Bytes f(kMac, kMac + 6);
  Put(f, {2, 0, 0, 0, 0, 1, 8, 0});
  Put(f, packet);
  return f;
}

inline Bytes Tcp(uint16_t from, uint16_t to, uint8_t flags) {
  Bytes t;
  Put16(t, from);
  Put16(t, to);
  Put32(t, 1);
  Put32(t, 2);
  t.push_back(5 << 4);
  t.push_back(flags);
  t.resize(20);
  return t;
}

}  // namespace postern::verbsnic
