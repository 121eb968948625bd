// SPDX-License-Identifier: Apache-2.0
// virtio_net.h - the header that a TAP puts before each packet, and wants there: virtio-net's.
//
// virtio 1.2, 5.1.6, without the fields that come after these: struct virtio_net_hdr of Linux. In
// this machine's byte order, as a TAP has it unless asked otherwise.
//
// It says two things of a packet. *Segmentation*: a packet of TCP stands for several segments,
// which who sends it to a wire is to make. *Checksum*: the sender has left out that of TCP or UDP
// (NEEDS_CSUM; its field has the pseudo header's sum, and nothing has been on a wire), or a device
// has found it to be right (DATA_VALID). What a TAP says came from the kernel; but the kernel takes
// such headers from others, too (packet sockets, other TAPs, guests), and hands on what fits
// together. So here nothing is believed that the packet itself does not confirm.
#pragma once
#include <cstdint>

#include "wire/packet/packet.h"

namespace postern::wire {

struct VnetHeader {
  uint8_t flags;           // kVnet*
  uint8_t segmentation;    // kVnetTcp4...
  uint16_t header_bytes;   // of all headers: a hint
  uint16_t segment_bytes;  // of payload, in each segment but the last
  uint16_t checksum_start;
  uint16_t checksum_off;  // from there on
};
static_assert(sizeof(VnetHeader) == 10);

inline constexpr uint8_t kVnetNeedsChecksum = 1, kVnetDataValid = 2;  // VIRTIO_NET_HDR_F_*
inline constexpr uint8_t kVnetOne = 0, kVnetTcp4 = 1, kVnetTcp6 = 4,  // VIRTIO_NET_HDR_GSO_*
    kVnetEcn = 0x80;
inline constexpr uint16_t kTcpChecksumOff = 16, kUdpChecksumOff = 6;

// What a received one comes to.
struct VnetIn {
  uint16_t segment_bytes = 0;     // 0: the packet is one segment, or not TCP's
  bool is_checksum_good = false;  // of TCP or UDP. False: not known, it has to be verified
};

// `frame` are the packet's first `here` bytes. False: of a kind that was not asked for, to be
// dropped.
bool ReadVnet(const VnetHeader& header, const uint8_t* frame, uint32_t here, VnetIn& out);

// Of a frame of ours: its L4 header begins `l4_off` behind its first byte; 0: its checksum is
// whole. `segment_bytes` as above, of TCP, whose header is there then.
VnetHeader VnetFor(const uint8_t* frame, uint32_t l4_off, uint16_t segment_bytes);

}  // namespace postern::wire
