// SPDX-License-Identifier: Apache-2.0
// fragments.cc - segments that come in fragments: kept until they are whole, then taken piece by
// piece.
//
// A whole one may be 64 KiB, its pieces lie in frames of 2 KiB, and TCP wants payload in a row. But
// a segment may be cut anywhere: each piece is handed to TCP as a segment of its own, in order, so
// nothing is copied together, and a piece that is early for TCP stays in its frame like any other.
//
// Frames are taken away from the drivers while they wait here, so Keep()'s bound holds as for early
// segments, besides those of reassembly.h. What has waited too long goes with the next fragment.
#include <cstring>

#include "stack/engine.h"
#include "wire/packet/tcp_header.h"

namespace postern::stack {
namespace {

class Frames final : public FrameOwner {
 public:
  explicit Frames(Area& area) : area_(area) {}
  void DropFrame(uint32_t packet) override { area_.Give(packet); }

 private:
  Area& area_;
};

}  // namespace

void Engine::Fragment(const wire::Packet& p, const ViRx& rx, uint32_t vi) {
  w_.counters.fragments_in++;
  if (p.ip.protocol != wire::kProtocolTcp || !Keep(rx.frame)) {
    w_.counters.fragments_dropped++;
    return;
  }
  NoteData(rx.frame, rx.off);
  Frames frames(area_);
  Gathered whole;
  if (AddFragment(w_.reassembly, p.ip, rx.frame, now_ns, frames, whole) == FragmentFate::kComplete)
    Whole(whole, vi);
}

// Its frames are ours: received ones from here on, that TCP may keep.
void Engine::Whole(const Gathered& whole, uint32_t vi) {
  wire::Checksummer sum;
  for (uint32_t i = 0; i < whole.piece_count; i++) {
    const Piece& piece = whole.pieces[i];
    area_.SetOwner(piece.packet, kFrameRx, 0);
    sum.Add(PacketAt(piece.packet, piece.off), piece.bytes);
  }
  wire::Packet p = {};
  p.ip = whole.head;
  // Headers are in one piece: what comes first and is shorter was refused (RFC 1858).
  const Piece& first = whole.pieces[0];
  const uint8_t* l4 = PacketAt(first.packet, first.off);
  wire::Refusal why = wire::ParseL4(l4, first.bytes, p);
  if (why == wire::Refusal::kNone) why = wire::VerifyL4(sum.sum(), p);
  tcp::SegmentIn s;
  if (why != wire::Refusal::kNone)
    w_.counters.refused[static_cast<uint32_t>(why) % 64]++;
  else if (wire::ParseTcp(l4, first.bytes, s))
    Piecewise(whole, p, s, vi);
  for (uint32_t i = 0; i < whole.piece_count; i++) {
    const uint32_t packet = whole.pieces[i].packet;
    if (area_.UseAt(packet) == kFrameRx) area_.Give(packet);
  }
}

void Engine::Piecewise(const Gathered& whole, const wire::Packet& p, const tcp::SegmentIn& s,
                       uint32_t vi) {
  const uint32_t header = p.payload_off - p.ip.l4_off;
  uint32_t skip = 0;
  for (uint32_t i = 0; i < whole.piece_count; i++) {
    const Piece& piece = whole.pieces[i];
    const uint32_t cut = i == 0 ? header : 0;
    if (piece.bytes == cut && i + 1 < whole.piece_count) continue;
    tcp::SegmentIn part = tcp::PartOf(s, skip, i + 1 == whole.piece_count);
    part.ecn = static_cast<tcp::Ecn>(wire::EcnOf(p.ip.tos));
    part.packet = piece.packet;
    part.data = PacketAt(piece.packet, piece.off + cut);
    part.bytes = piece.bytes - cut;
    skip += part.bytes;
    KeptHead kept;
    memcpy(&kept, area_.At(piece.packet, kHeadOff), sizeof kept);
    NoteData(piece.packet, kept.data_off + piece.off + cut);
    const uint64_t strangers = w_.counters.not_ours;
    Segment(p, part, vi, Behind::kNothing);
    // One answer is enough; and a RST ends what the rest would be for.
    if (w_.counters.not_ours != strangers || (s.flags & tcp::kRst) != 0) return;
  }
}

}  // namespace postern::stack
