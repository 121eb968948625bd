// SPDX-License-Identifier: Apache-2.0
// transmit_row.cc - a row of segments on its way out: a frame for each, or one large packet.
//
// TCP hands over segments that are alike but for their numbers as one (SegmentOut, a row). Most VIs
// want each in a frame. One that takes large packets (kCapLarge) gets the row as the kernel's TCP
// would hand it to a card: headers once, their lengths those of all together, the checksum left
// out, and the size by which the device, or the peer's kernel, is to cut. The first frame has the
// headers and what payload there is room for, the others are full of payload:
//
//   frame 0    |..| Ethernet, IP, TCP | payload |      ViTx::segment, kTxMore
//   frame 1    | payload                        |      kTxMore
//   frame 2    | payload   |
//
// A row goes as a whole or not at all: its frames are there before the first byte is copied.
#include <algorithm>

#include "stack/engine.h"
#include "stack/names.h"
#include "wire/packet/tcp_header.h"

namespace postern::stack {
namespace {

// Of a large packet's payload: what leaves room in IP's length field for the longest headers.
constexpr uint32_t kPayloadMax =
    wire::kIpBytesMax - wire::kIpv6HeaderBytes - wire::kTcpHeaderBytesMax;

// The segments of a row that one large packet has, `left` being what is left of the row.
uint32_t PacketBytes(uint32_t left, uint32_t size) {
  const uint32_t most = std::max(kPayloadMax / size, 1u) * size;
  return std::min(left, most);
}

uint32_t LinkAndIpBytes(const wire::LinkOut& link, const wire::IpOut& ip) {
  return wire::EthernetBytes(link) + wire::IpHeaderBytes(ip);
}

// How many frames take a packet of so many bytes.
uint32_t FramesFor(uint32_t bytes) {
  constexpr uint32_t kFirst = kFrameBytes - kFrameHead;
  return bytes <= kFirst ? 1 : 1 + (bytes - kFirst + kFrameBytes - 1) / kFrameBytes;
}

}  // namespace

// Room in the VI's batch, and so many frames in our hands. False: not now.
bool Engine::TakeFrames(uint32_t vi, uint32_t count) {
  if (out_count_[vi] + count > kViBatchMax) Flush();
  if (out_count_[vi] + count > kViBatchMax) return false;
  if (took_count_ < count) took_count_ += area_.Take(took_ + took_count_, count - took_count_);
  if (took_count_ >= count) return true;
  w_.counters.no_frame++;
  return false;
}

bool Engine::PutRow(Conn& c, wire::IpOut& ip, const wire::Ports& ports, const tcp::SegmentOut& s) {
  const uint32_t vi = c.path.vi;
  if (vi >= kAreaVis || vi_[vi] == nullptr) return true;  // gone: as if lost
  if (TakesLarge(vi)) return PutLargeRow(c, ip, ports, s);
  if (!TakeFrames(vi, (s.bytes + s.size - 1) / s.size)) return false;
  return tcp::EachOf(s, [&](tcp::SegmentOut& one) {
    AssertHeld();
    if (one.seq != s.seq) ip.id = c.ip_id++;
    const bool put = PutSegment(vi, c.path.link, ip, ports, one, &c);
    one.from = behind_;
    return put;
  });
}

// Most rows are one packet. The frames of all are asked for at once, so that none is left half.
bool Engine::PutLargeRow(Conn& c, wire::IpOut& ip, const wire::Ports& ports,
                         const tcp::SegmentOut& s) {
  const uint32_t head = LinkAndIpBytes(c.path.link, ip) + wire::TcpHeaderBytes(s.options);
  uint32_t frames = 0;
  for (uint32_t done = 0, n; done < s.bytes; done += n) {
    n = PacketBytes(s.bytes - done, s.size);
    frames += FramesFor(head + n);
  }
  if (!TakeFrames(c.path.vi, frames)) return false;
  tcp::SegmentOut one = s;
  for (uint32_t done = 0; done < s.bytes; done += one.bytes) {
    one.seq = s.seq + done;
    one.bytes = PacketBytes(s.bytes - done, s.size);
    one.flags = static_cast<uint8_t>(s.flags & (done + one.bytes != s.bytes ? ~tcp::kPsh : 0xff));
    if (done != 0) ip.id = c.ip_id++;
    PutLarge(c, ip, ports, one);
    one.from = behind_;
    c.ip_id += (one.bytes - 1) / s.size;  // the device counts on from the first one's
  }
  return true;
}

// The frames are there. What the program's end had promised and does not have is as if lost.
void Engine::PutLarge(Conn& c, const wire::IpOut& ip, const wire::Ports& ports,
                      const tcp::SegmentOut& s) {
  const uint32_t vi = c.path.vi, tcp_head = wire::TcpHeaderBytes(s.options);
  const uint32_t first_out = out_count_[vi];
  uint32_t frame = took_[--took_count_], at = kFrameHead;
  uint8_t* const start = area_.At(frame, kFrameHead);
  const uint32_t l4_off =
      wire::BuildEthernet(start, c.path.link, ip.family) +
      wire::BuildIp(start + wire::EthernetBytes(c.path.link), ip, tcp_head + s.bytes);
  (void)wire::BuildTcp(start + l4_off, ports, s);
  wire::CompleteTcpOffloaded(
      start + l4_off, wire::PseudoSum(ip.family, ip.source, ip.destination, wire::kProtocolTcp,
                                      tcp_head + s.bytes));
  wire::Checksummer unused;
  behind_ = s.from;
  uint32_t used = l4_off + tcp_head;
  bool is_lost = false;
  for (uint32_t left = s.bytes;;) {
    const uint32_t n = std::min(left, kFrameBytes - at - used);
    is_lost |= !streams_.Copy(c, behind_, n, area_.At(frame, at) + used, unused);
    left -= n;
    ViTx& out = out_[vi][out_count_[vi]++];
    out = {frame, static_cast<uint16_t>(at), static_cast<uint16_t>(used + n),
           left != 0 ? kTxMore : uint16_t{0}, 0};
    if (left == 0 || is_lost) break;
    frame = took_[--took_count_];
    at = used = 0;
  }
  ViTx& first = out_[vi][first_out];
  first.flags |= kTxChecksum;
  first.l4_off = static_cast<uint16_t>(l4_off);
  if (s.bytes > s.size) first.segment = static_cast<uint16_t>(s.size);
  if (!is_lost) return;
  w_.counters.lost_payload++;
  while (out_count_[vi] != first_out) took_[took_count_++] = out_[vi][--out_count_[vi]].frame;
}

}  // namespace postern::stack
