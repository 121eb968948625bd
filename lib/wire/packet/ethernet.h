// SPDX-License-Identifier: Apache-2.0
// ethernet.h - Ethernet II frames, with up to two VLAN tags (802.1Q, 802.1ad).
#pragma once
#include <cstdint>
#include <cstring>

#include "wire/be.h"
#include "wire/ip/ip.h"

namespace postern::wire {

struct EthernetHeader {
  uint8_t destination[6];
  uint8_t source[6];
  Be16 type;
};
static_assert(sizeof(EthernetHeader) == 14);

// In place of the type, which follows.
struct VlanTag {
  Be16 tci;  // 15-13 priority, 12 drop eligible, 11-0 VLAN
  Be16 type;
};
static_assert(sizeof(VlanTag) == 4);

inline constexpr uint16_t kEtherIpv4 = 0x0800, kEtherArp = 0x0806, kEtherIpv6 = 0x86dd;
// Tags: 802.1Q, 802.1ad, and what was used for the outer one before that.
inline constexpr uint16_t kEtherVlan = 0x8100, kEtherServiceVlan = 0x88a8, kEtherOldVlan = 0x9100;
inline constexpr uint16_t kNoVlan = 0xffff;  // in place of a TCI; VLAN 0xfff is reserved
inline constexpr uint32_t kVlanTagsMax = 2;
inline constexpr uint32_t kEthernetBytesMax = sizeof(EthernetHeader) + 2 * sizeof(VlanTag);

struct LinkHead {
  uint32_t bytes;        // of the header, tags included
  uint16_t type;         // of what follows
  uint16_t vlan;         // TCI of the tag next to the payload, kNoVlan: none
  uint16_t outer_vlan;   // TCI of the other one
  uint8_t is_multicast;  // 1: to a group or to all (802.3, 3.2.3: first bit of the address)
};

inline bool IsVlanTag(uint16_t type) {
  return type == kEtherVlan || type == kEtherServiceVlan || type == kEtherOldVlan;
}

inline Refusal ParseEthernet(const uint8_t* frame, uint32_t bytes, LinkHead& out) {
  if (bytes < sizeof(EthernetHeader)) return Refusal::kLinkShort;
  const auto& head = *reinterpret_cast<const EthernetHeader*>(frame);
  out.bytes = sizeof(EthernetHeader);
  out.type = head.type.get();
  out.vlan = out.outer_vlan = kNoVlan;
  out.is_multicast = head.destination[0] & 1;
  if (!IsVlanTag(out.type)) [[likely]]
    return Refusal::kNone;
  for (uint32_t i = 0; i < kVlanTagsMax && IsVlanTag(out.type); i++) {
    if (bytes - out.bytes < sizeof(VlanTag)) return Refusal::kLinkShort;
    const auto& tag = *reinterpret_cast<const VlanTag*>(frame + out.bytes);
    out.outer_vlan = out.vlan;
    out.vlan = tag.tci.get();
    out.type = tag.type.get();
    out.bytes += static_cast<uint32_t>(sizeof(VlanTag));
  }
  return IsVlanTag(out.type) ? Refusal::kVlanDepth : Refusal::kNone;
}

struct LinkOut {
  uint8_t destination[6];
  uint8_t source[6];
  uint16_t vlan = kNoVlan;
  uint16_t outer_vlan = kNoVlan;  // only beside `vlan`
};

inline uint32_t EthernetBytes(const LinkOut& link) {
  const uint32_t tags = link.vlan == kNoVlan ? 0 : link.outer_vlan == kNoVlan ? 1 : 2;
  return static_cast<uint32_t>(sizeof(EthernetHeader) + tags * sizeof(VlanTag));
}

// Writes the header at `to`; its size.
inline uint32_t BuildEthernet(uint8_t* to, const LinkOut& link, Family family) {
  auto& head = *reinterpret_cast<EthernetHeader*>(to);
  memcpy(head.destination, link.destination, sizeof head.destination);
  memcpy(head.source, link.source, sizeof head.source);
  Be16* type = &head.type;
  uint32_t off = sizeof head;
  const auto add_tag = [&](uint16_t tpid, uint16_t tci) {
    type->set(tpid);
    auto& tag = *reinterpret_cast<VlanTag*>(to + off);
    tag.tci.set(tci);
    type = &tag.type;
    off += static_cast<uint32_t>(sizeof tag);
  };
  if (link.vlan != kNoVlan) {
    if (link.outer_vlan != kNoVlan) add_tag(kEtherServiceVlan, link.outer_vlan);
    add_tag(kEtherVlan, link.vlan);
  }
  type->set(family == Family::kIpv4 ? kEtherIpv4 : kEtherIpv6);
  return off;
}

}  // namespace postern::wire
