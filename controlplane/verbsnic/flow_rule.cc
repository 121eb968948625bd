// flow_rule.cc - see flow_rule.h.
// SPDX-License-Identifier: Apache-2.0
#include "flow_rule.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "base/ip_address.h"

namespace postern::verbsnic {
namespace {

constexpr uint16_t kEtherIpv4 = 0x0800, kEtherIpv6 = 0x86dd;
constexpr uint16_t kVlanId = 0x0fff;

template <typename Field>
void MatchAll(Field& mask) {
  memset(&mask, 0xff, sizeof(mask));
}

}  // namespace

template <typename Spec>
void FlowRule::Append(Spec& spec, int type) {
  static_assert(sizeof(Spec) % alignof(ibv_flow_attr) == 0);
  spec.type = static_cast<ibv_flow_spec_type>(type);
  spec.size = sizeof(spec);
  memcpy(bytes_ + size_, &spec, sizeof(spec));
  size_ += sizeof(spec);
  attr().size = static_cast<uint16_t>(size_);
  attr().num_of_specs++;
}

void FlowRule::Begin(const Mac& mac, uint8_t port, bool v4, uint16_t vlan) {
  size_ = sizeof(ibv_flow_attr);
  attr().type = IBV_FLOW_ATTR_NORMAL;
  attr().port = port;
  ibv_flow_spec_eth eth{};
  memcpy(eth.val.dst_mac, mac, sizeof(Mac));
  MatchAll(eth.mask.dst_mac);
  eth.val.ether_type = htons(v4 ? kEtherIpv4 : kEtherIpv6);
  MatchAll(eth.mask.ether_type);
  if (vlan != 0) {
    eth.val.vlan_tag = htons(vlan & kVlanId);
    eth.mask.vlan_tag = htons(kVlanId);
  }
  Append(eth, IBV_FLOW_SPEC_ETH);
}

void FlowRule::AddIp(bool v4, const pstn_xdp_ip* src, const pstn_xdp_ip* dst) {
  if (v4) {
    ibv_flow_spec_ipv4 ip{};
    if (src != nullptr) {
      memcpy(&ip.val.src_ip, src->byte + 12, 4);
      MatchAll(ip.mask.src_ip);
    }
    if (dst != nullptr) {
      memcpy(&ip.val.dst_ip, dst->byte + 12, 4);
      MatchAll(ip.mask.dst_ip);
    }
    Append(ip, IBV_FLOW_SPEC_IPV4);
    return;
  }
  ibv_flow_spec_ipv6 ip{};
  if (src != nullptr) {
    memcpy(ip.val.src_ip, src->byte, 16);
    MatchAll(ip.mask.src_ip);
  }
  if (dst != nullptr) {
    memcpy(ip.val.dst_ip, dst->byte, 16);
    MatchAll(ip.mask.dst_ip);
  }
  Append(ip, IBV_FLOW_SPEC_IPV6);
}

void FlowRule::AddPorts(uint8_t protocol, const uint16_t* src, uint16_t dst) {
  ibv_flow_spec_tcp_udp l4{};
  l4.val.dst_port = dst;
  MatchAll(l4.mask.dst_port);
  if (src != nullptr) {
    l4.val.src_port = *src;
    MatchAll(l4.mask.src_port);
  }
  Append(l4, protocol == IPPROTO_TCP ? IBV_FLOW_SPEC_TCP : IBV_FLOW_SPEC_UDP);
}

FlowRule::FlowRule(const pstn_xdp_flow& flow, const Mac& mac, uint8_t port) {
  const bool v4 = IpAt(flow.local.byte).IsV4();
  Begin(mac, port, v4, flow.vlan);
  AddIp(v4, &flow.peer, &flow.local);
  AddPorts(flow.protocol, &flow.peer_port, flow.local_port);
}

FlowRule::FlowRule(const pstn_xdp_port& filter, const Mac& mac, uint8_t port) {
  const bool v4 = IpAt(filter.local.byte).IsV4();
  Begin(mac, port, v4, filter.vlan);
  AddIp(v4, nullptr, IpAt(filter.local.byte).IsAny() ? nullptr : &filter.local);
  AddPorts(filter.protocol, nullptr, filter.port);
}

}  // namespace postern::verbsnic
