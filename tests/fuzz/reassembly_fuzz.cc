// SPDX-License-Identifier: Apache-2.0
// reassembly_fuzz.cc - fragments as a hostile network sends them: after each one the table is
// sound, each frame is in one place, and what comes out is without gaps and overlaps.
//
// The first byte of the input is the limit, four more are one arrival each.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include <map>
#include <memory>
#include <span>

#include "replay.h"
#include "stack/reassembly/reassembly.h"

namespace postern {
namespace {

using namespace stack;  // NOLINT(google-build-using-namespace): what this tests
using wire::Family;
using wire::IpHead;

[[maybe_unused]] constexpr size_t kInputMax = 4000;

struct World final : FrameOwner {
  std::unique_ptr<Reassembly> table = std::make_unique<Reassembly>();
  Gathered out;
  uint64_t now_ns = 1;
  uint32_t next_packet = 0;
  std::map<uint32_t, IpHead> held;  // what was given to the table and has not come back

  void DropFrame(uint32_t packet) override { FUZZ_CHECK(held.erase(packet) == 1); }

  void CheckSound() {
    const char* bad = ReassemblyCheck(*table);
    if (bad != nullptr) FuzzDie("table:", bad);
    FUZZ_CHECK(held.size() == table->fragments_used);
    const uint64_t deadline_ns = ReassemblyDeadline(*table);
    FUZZ_CHECK(deadline_ns > now_ns);
    if (!held.empty()) FUZZ_CHECK(deadline_ns <= now_ns + kReassembly6Ns);
  }

  void CheckWhole() {
    FUZZ_CHECK(out.piece_count >= 2 || out.head.l4_off != out.head.data_off);
    uint32_t at = 0, bytes = 0;
    for (uint32_t i = 0; i < out.piece_count; i++) {
      const Piece& piece = out.pieces[i];
      const auto found = held.find(piece.packet);
      FUZZ_CHECK(found != held.end());
      const IpHead& from = found->second;
      FUZZ_CHECK(from.fragment_off == at);
      FUZZ_CHECK((from.has_more == 0) == (i + 1 == out.piece_count));
      FUZZ_CHECK(from.source == out.head.source && from.destination == out.head.destination);
      FUZZ_CHECK(from.fragment_id == out.head.fragment_id && from.family == out.head.family);
      FUZZ_CHECK(piece.off + piece.bytes == from.data_off + from.data_bytes);
      FUZZ_CHECK(piece.off == (i == 0 ? from.l4_off : from.data_off));
      at += from.data_bytes;
      bytes += piece.bytes;
      held.erase(found);
    }
    FUZZ_CHECK(bytes == out.head.l4_bytes);
    FUZZ_CHECK(at <= wire::kIpBytesMax);
    FUZZ_CHECK(out.head.is_fragment == 0);
  }

  void Add(const IpHead& head) {
    const uint32_t packet = next_packet++;
    held[packet] = head;
    const FragmentFate fate = AddFragment(*table, head, packet, now_ns, *this, out);
    if (fate == FragmentFate::kComplete) CheckWhole();
    // Kept: it is in the table, every other way it is not.
    FUZZ_CHECK((held.count(packet) == 1) == (fate == FragmentFate::kKept));
    CheckSound();
  }
};

// An arrival, four bytes: whose it is, where it lies, how long it is, and what is odd about it.
struct Arrival {
  uint8_t who, where, size, how;
};

// Mostly a quarter of a datagram of 32 bytes, so that some get whole; the odd ones lie anywhere.
void Place(const Arrival& in, IpHead& h) {
  if (in.how < 208) {
    h.fragment_off = (in.where & 3u) * 8;
    h.has_more = (in.where & 3) != 3 ? 1 : 0;
    h.data_bytes = h.has_more != 0 ? 8 : 1 + (in.where >> 2) % 8u;
    return;
  }
  const uint32_t size = static_cast<uint32_t>(in.size) >> 3;
  h.has_more = (in.size & 7) != 7 ? 1 : 0;
  h.fragment_off = (in.where & 0x1fu) * ((in.how & 8) != 0 ? 2048u : 8u);
  h.data_bytes = h.has_more != 0 ? 8 + size % 4 * 8 : 1 + size;
  if (h.has_more == 0 && h.fragment_off == 0) h.fragment_off = 8;
}

// As ParseFrame() would tell it.
IpHead Head(const Arrival& in) {
  IpHead h{};
  const bool is6 = (in.who & 1) != 0;
  h.family = is6 ? Family::kIpv6 : Family::kIpv4;
  h.source = IpAddress::V4(0, 0, 0, 0);
  if (is6) h.source.bytes[0] = 0x20;
  h.destination = h.source;
  h.source.bytes[15] = in.who >> 1 & 7;
  h.destination.bytes[15] = 99;
  // Few ids, which meet, or many of one source.
  h.fragment_id = (in.who & 0xc0) == 0xc0 ? 100u + in.size : in.who >> 4 & 3u;
  h.protocol = in.how % 16 == 5 ? 6 : 17;
  h.tos = in.how % 16 == 6 ? in.size & 3 : 2;
  h.is_fragment = 1;
  Place(in, h);
  h.ip_off = 14;
  h.data_off = h.l4_off = (is6 ? 62u : 34u) + (in.how % 16 == 7 ? 24u : 0u);
  if (is6 && h.fragment_off == 0 && in.how % 16 == 8) h.l4_off += 8;
  h.l4_bytes = h.data_off + h.data_bytes - h.l4_off;
  return h;
}

void Arrive(World& w, const Arrival& in) {
  if (in.how % 16 == 9) w.now_ns += 1ull << in.size % 38;  // up to two minutes
  IpHead h = Head(in);
  if (in.how != 250) return w.Add(h);
  h.has_more = 1;
  h.data_bytes = 8;
  for (uint32_t i = 0; i < in.size; i++) {  // as many as there may be, and more
    h.fragment_off = 16 * i;
    h.l4_off = h.data_off;
    h.l4_bytes = h.data_bytes;
    w.Add(h);
  }
}

void One(std::span<const uint8_t> in) {
  World w;
  const uint8_t limits[] = {255, 1, 3, 40};
  ReassemblyInit(*w.table, 42, in[0] < 128 ? kFragmentsMax : limits[in[0] % 4]);
  for (in = in.subspan(1); in.size() >= 4; in = in.subspan(4))
    Arrive(w, {in[0], in[1], in[2], in[3]});
  w.now_ns += kReassembly6Ns;
  ExpireFragments(*w.table, w.now_ns, w);
  FUZZ_CHECK(w.held.empty());
  w.CheckSound();
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) postern::One({data, size});
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::kInputMax); }
#endif
