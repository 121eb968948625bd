// udp_header.cc - building UDP headers.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/udp_header.h"

namespace postern::wire {

uint32_t BuildUdp(uint8_t* to, Ports ports, uint32_t payload_bytes) {
  auto& h = *reinterpret_cast<UdpHeader*>(to);
  h.source_port.set(ports.source);
  h.destination_port.set(ports.destination);
  h.bytes.set(static_cast<uint16_t>(kUdpHeaderBytes + payload_bytes));
  h.checksum.set(0);
  return kUdpHeaderBytes;
}

void CompleteUdp(uint8_t* header, uint32_t pseudo, uint32_t payload) {
  const uint16_t checksum = ChecksumOf(Sum(header, kUdpHeaderBytes, AddSums(pseudo, payload)));
  //= rfc768
  //# If the computed checksum is zero, it is transmitted as all ones
  reinterpret_cast<UdpHeader*>(header)->checksum.set(checksum == 0 ? 0xffff : checksum);
}

void CompleteUdpOffloaded(uint8_t* header, uint32_t pseudo) {
  reinterpret_cast<UdpHeader*>(header)->checksum.set(SwapToBig(FoldSum(pseudo)));
}

}  // namespace postern::wire
