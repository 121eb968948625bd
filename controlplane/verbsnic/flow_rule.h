// flow_rule.h - a filter as ibv_create_flow() wants it: an attribute, and the specs behind it.
// SPDX-License-Identifier: Apache-2.0
//
//   ibv_flow_attr | ibv_flow_spec_eth | _ipv4 or _ipv6 | _tcp_udp         no gap between them
//
// A rule may let more through than the filter means (packets with a tag for a filter without one,
// an address that is not this host's): whose a packet is Steer decides, and what is the kernel's
// goes back there. It must never let through less. So the card's own MAC address is in it: what
// goes to others, to groups and to all is the kernel's anyway.
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "../posternd/bpf/xdp_maps.h"

namespace postern::verbsnic {

class FlowRule {
 public:
  using Mac = uint8_t[6];
  // `port`: the device's, from 1 on.
  FlowRule(const pstn_xdp_flow& flow, const Mac& mac, uint8_t port);
  FlowRule(const pstn_xdp_port& filter, const Mac& mac, uint8_t port);

  ibv_flow_attr& attr() { return *reinterpret_cast<ibv_flow_attr*>(bytes_); }
  const uint8_t* bytes() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  void Begin(const Mac& mac, uint8_t port, bool v4, uint16_t vlan);
  // Null: any.
  void AddIp(bool v4, const pstn_xdp_ip* src, const pstn_xdp_ip* dst);
  // As on the wire. Null: any.
  void AddPorts(uint8_t protocol, const uint16_t* src, uint16_t dst);
  template <typename Spec>
  void Append(Spec& spec, int type);

  alignas(8) uint8_t bytes_[sizeof(ibv_flow_attr) + sizeof(ibv_flow_spec_eth) +
                            sizeof(ibv_flow_spec_ipv6) + sizeof(ibv_flow_spec_tcp_udp)] = {};
  size_t size_ = 0;
};

}  // namespace postern::verbsnic
