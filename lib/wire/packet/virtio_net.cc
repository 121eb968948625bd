// virtio_net.cc - see virtio_net.h.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/virtio_net.h"

#include "wire/packet/tcp_header.h"

namespace postern::wire {
namespace {

struct Upper {
  uint8_t protocol = 0;
  uint32_t off = 0;
};

// Where the upper layer begins if nothing is before it but what packets usually have. What has
// IPv6's extension headers is verified by ParseFrame(), as if nothing had been said.
Upper UpperOf(const uint8_t* frame, uint32_t here) {
  LinkHead link{};
  if (ParseEthernet(frame, here, link) != Refusal::kNone) return {};
  const uint8_t* const ip = frame + link.bytes;
  const uint32_t left = here - link.bytes;
  constexpr uint32_t kIpv4ProtocolOff = 9, kIpv6NextOff = 6;
  if (link.type == kEtherIpv4 && left >= kIpv4HeaderBytes)
    return {ip[kIpv4ProtocolOff], link.bytes + (ip[0] & 15u) * 4};
  if (link.type == kEtherIpv6 && left >= kIpv6HeaderBytes)
    return {ip[kIpv6NextOff], link.bytes + kIpv6HeaderBytes};
  return {};
}

// Whether what was left out is the checksum that the packet's own headers name.
bool IsOfUpper(const VnetHeader& h, const uint8_t* frame, uint32_t here) {
  const Upper upper = UpperOf(frame, here);
  if (upper.off == 0 || h.checksum_start != upper.off) return false;
  return (upper.protocol == kProtocolTcp && h.checksum_off == kTcpChecksumOff) ||
         (upper.protocol == kProtocolUdp && h.checksum_off == kUdpChecksumOff);
}

}  // namespace

bool ReadVnet(const VnetHeader& header, const uint8_t* frame, uint32_t here, VnetIn& out) {
  out = VnetIn{};
  const uint8_t kind = header.segmentation & static_cast<uint8_t>(~kVnetEcn);
  if (kind != kVnetOne && kind != kVnetTcp4 && kind != kVnetTcp6) return false;
  if (kind != kVnetOne) {
    if (header.segment_bytes == 0) return false;
    out.segment_bytes = header.segment_bytes;
  }
  out.is_checksum_good = (header.flags & kVnetNeedsChecksum) != 0
                             ? IsOfUpper(header, frame, here)
                             : (header.flags & kVnetDataValid) != 0;
  return true;
}

VnetHeader VnetFor(const uint8_t* frame, uint32_t l4_off, uint16_t segment_bytes) {
  VnetHeader h{};
  if (l4_off == 0) return h;
  h.flags = kVnetNeedsChecksum;
  h.checksum_start = static_cast<uint16_t>(l4_off);
  h.checksum_off = kTcpChecksumOff;
  if (segment_bytes == 0) return h;
  const auto& tcp = *reinterpret_cast<const TcpHeader*>(frame + l4_off);
  h.header_bytes = static_cast<uint16_t>(l4_off + (tcp.data_off >> 4) * 4u);
  h.segment_bytes = segment_bytes;
  LinkHead link{};
  (void)ParseEthernet(frame, l4_off, link);
  h.segmentation = link.type == kEtherIpv6 ? kVnetTcp6 : kVnetTcp4;
  return h;
}

}  // namespace postern::wire
