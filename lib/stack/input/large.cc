// SPDX-License-Identifier: Apache-2.0
// large.cc - a large packet of TCP: several segments in a row that a device, or the sender's
// kernel, hands over as one, in several frames.
//
//   frame 0    | headers | payload ...  |      segment k of `size` bytes begins k * size bytes
//   frame 1    | payload ...            |      behind the first one, in whichever frame that is
//   frame 2    | payload, its end |
//
// It is a run already (runs.cc): the sender, or GRO, has gathered what differs in nothing but its
// numbers, so where TCP may take a run it gets the packet as one, in place. Everywhere else (a
// hole, a copy, FIN, marks of ECN) it gets the segments one by one, as they were on the wire, each
// copied into a frame of its own: what the peer is told of losses is the same, and what TCP keeps
// is a segment in a frame like any other. A copy for each byte costs less than what such a segment
// does anyway.
//
// Nothing that the VI says of the packet is believed: the parts lie in frames of the area, their
// lengths are checked against the packet's own, and `size` only says where TCP is to cut.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "stack/engine.h"
#include "stack/names.h"
#include "wire/packet/tcp_header.h"

namespace postern::stack {
namespace {

// Where the payload of a segment lies in a frame that it is copied into.
constexpr uint32_t kCopyOff = 64;
// A packet that names a size of a byte must not cost a step of TCP for each: as small as this the
// segments of no peer are.
constexpr uint32_t kPiecesMax = 128;

// How many frames the packet has that `rx` begins with.
uint32_t FramesOf(const ViRx* rx, uint32_t count) {
  uint32_t frames = 1;
  while (frames < count && (rx[frames - 1].flags & kRxMore) != 0) frames++;
  return frames;
}

// Makes the parts of the whole packet those of `bytes` that begin `skip` behind its first one.
void Trim(LargePacket& large, uint32_t skip, uint32_t bytes) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < large.s.parts && bytes != 0; i++) {
    tcp::RunPart part = large.parts[i];
    const uint32_t cut = std::min(skip, part.bytes);
    skip -= cut;
    part.data += cut;
    part.bytes = std::min(part.bytes - cut, bytes);
    bytes -= part.bytes;
    if (part.bytes != 0) large.parts[kept++] = part;
  }
  large.s.parts = kept;
}

wire::Refusal Verify(const LargePacket& large, const uint8_t* frame, uint32_t known,
                     wire::Packet& p) {
  wire::Checksummer sum;
  (void)tcp::EachPart(large.s, p.ip.l4_off, wire::CoveredBytes(p),
                      [&sum](const uint8_t* data, uint32_t n) {
                        sum.Add(data, n);
                        return n;
                      });
  const wire::Refusal why = wire::VerifyL4(sum.sum(), p);
  const bool is_partial = (known & wire::kRxMayBePartial) != 0 && wire::IsPartial(frame, p);
  return is_partial ? wire::Refusal::kNone : why;
}

}  // namespace

// All of it into `large`. False: it is refused, and counted.
bool Engine::ReadLarge(const ViRx* rx, uint32_t frames, uint32_t vi, LargePacket& large) {
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < frames; i++) {
    const uint8_t* at = area_.At(rx[i].frame, rx[i].off);
    if (at == nullptr || rx[i].bytes > kFrameBytes - rx[i].off) return false;
    large.parts[i] = {at, rx[i].bytes};
    bytes += rx[i].bytes;
  }
  large.s.run = large.parts;
  large.s.parts = frames;
  const uint8_t* const frame = large.parts[0].data;
  const uint32_t known = KnownOf(rx[0], vi);
  wire::Packet& p = large.packet;
  wire::Refusal why = wire::ParseLargeFrame(frame, large.parts[0].bytes, bytes, known, p);
  if (why == wire::Refusal::kNone && p.l4_state != wire::L4State::kVerified)
    why = Verify(large, frame, known, p);
  if (why == wire::Refusal::kNone && !wire::ParseTcp(frame, p, large.s))
    why = wire::Refusal::kL4Length;
  // No device gathers a SYN, and taken apart it would be one only in part.
  if (why == wire::Refusal::kNone && (large.s.flags & tcp::kSyn) != 0) why = wire::Refusal::kLarge;
  if (why != wire::Refusal::kNone) {
    w_.counters.refused[static_cast<uint32_t>(why) % 64]++;
    return false;
  }
  Trim(large, p.payload_off, p.payload_bytes);
  const uint32_t size = rx[0].segment;
  large.s.size = size == 0 || size > large.s.bytes ? large.s.bytes : size;
  large.s.segments = large.s.bytes == 0 ? 1 : (large.s.bytes - 1) / large.s.size + 1;
  return true;
}

// The last segment's PSH ends a run, and this one ends here.
bool Engine::TakeAsRun(const LargePacket& large) {
  const wire::Packet& p = large.packet;
  const uint32_t idx =
      FindConn(NameOf(p.ip.destination, p.destination_port), NameOf(p.ip.source, p.source_port));
  if (idx == PSTN_NONE || (w_.conns[idx].flags & kEmbryo) != 0) return false;
  tcp::SegmentIn first = large.s;
  first.flags &= static_cast<uint8_t>(~tcp::kPsh);
  if (!tcp::MayRun(w_.conns[idx].tcb, first)) return false;
  Hold(idx);
  tcp::Input(w_.conns[idx].tcb, large.s, *this);
  Touch(idx);
  LetGo();
  return true;
}

void Engine::TakeApart(const LargePacket& large, uint32_t vi) {
  const tcp::SegmentIn& s = large.s;
  const uint32_t size = std::max(s.size, s.bytes / kPiecesMax + 1);
  uint32_t skip = 0;
  do {
    uint32_t frame;
    if (area_.Take(&frame, 1) == 0) {
      w_.counters.no_frame++;
      return;  // as if lost on the way
    }
    area_.SetOwner(frame, kFrameRx, 0);
    const uint32_t bytes = std::min({s.bytes - skip, size, kFrameBytes - kCopyOff});
    tcp::SegmentIn part = tcp::PartOf(s, skip, skip + bytes == s.bytes);
    uint8_t* to = area_.At(frame, kCopyOff);
    part.packet = frame;
    part.data = to;
    part.bytes = bytes;
    NoteData(frame, kCopyOff);
    (void)tcp::EachPart(s, skip, bytes, [&to](const uint8_t* data, uint32_t n) {
      memcpy(to, data, n);
      to += n;
      return n;
    });
    skip += bytes;
    const uint64_t strangers = w_.counters.not_ours;
    Segment(large.packet, part, vi, Behind::kNothing);
    if (area_.UseAt(frame) == kFrameRx) area_.Give(frame);  // else it is kept
    // One answer is enough; and a RST ends what the rest would be for.
    if (w_.counters.not_ours != strangers || (s.flags & tcp::kRst) != 0) return;
  } while (skip < s.bytes);
}

uint32_t Engine::Large(const ViRx* rx, uint32_t count, uint32_t vi) {
  if (run_.count != 0) EndRun();
  const uint32_t frames = FramesOf(rx, count);
  if ((rx[frames - 1].flags & kRxMore) != 0) {
    w_.counters.no_headroom++;  // its end did not come with it
  } else {
    LargePacket large;
    if (ReadLarge(rx, frames, vi, large) && !TakeAsRun(large)) TakeApart(large, vi);
  }
  for (uint32_t i = 0; i < frames; i++)
    if (area_.UseAt(rx[i].frame) == kFrameRx) area_.Give(rx[i].frame);
  return frames;
}

}  // namespace postern::stack
