// reassembly_test.cc - fragments in any order, overlapping, lost, too many; what becomes of frames.
// SPDX-License-Identifier: Apache-2.0
#include "stack/reassembly/reassembly.h"

#include <initializer_list>
#include <map>
#include <memory>

#include "../kit/catch.h"
#include "../wire/wire_frames.h"
#include "wire/packet/packet.h"

namespace postern::stack {
namespace {

using wire::Family;
using wire_test::Bytes;

constexpr uint64_t kSecond = 1'000'000'000;

// A table, and the frames that somebody has: each is in `held` until it is dropped or gathered.
struct World final : FrameOwner {
  std::unique_ptr<Reassembly> table = std::make_unique<Reassembly>();
  Gathered out{};
  uint64_t now_ns = 5 * kSecond;
  uint32_t next_packet = 0;
  std::map<uint32_t, bool> held;

  explicit World(uint32_t limit = kFragmentsMax) { ReassemblyInit(*table, 0x1234567, limit); }
  void DropFrame(uint32_t packet) override { REQUIRE(held.erase(packet) == 1); }

  FragmentFate Add(const wire::IpHead& head) {
    const uint32_t packet = next_packet++;
    held[packet] = true;
    const FragmentFate fate = AddFragment(*table, head, packet, now_ns, *this, out);
    if (fate == FragmentFate::kComplete) {
      for (uint32_t i = 0; i < out.piece_count; i++) REQUIRE(held.erase(out.pieces[i].packet) == 1);
    }
    const char* bad = ReassemblyCheck(*table);
    INFO((bad != nullptr ? bad : "sound"));
    REQUIRE(bad == nullptr);
    REQUIRE(held.size() == table->fragments_used);
    return fate;
  }
  void Expire() {
    ExpireFragments(*table, now_ns, *this);
    REQUIRE(ReassemblyCheck(*table) == nullptr);
    REQUIRE(held.size() == table->fragments_used);
  }
};

struct Part {
  bool is6 = false;
  uint32_t off = 0, bytes = 8;
  bool more = true;
  uint32_t id = 1;
  uint8_t source = 1, protocol = 17, tos = 0;
};
wire::IpHead Head(const Part& part) {
  wire::IpHead h{};
  h.family = part.is6 ? Family::kIpv6 : Family::kIpv4;
  if (part.is6) {
    memcpy(h.source.bytes, wire_test::Address6(part.source).data(), 16);
    memcpy(h.destination.bytes, wire_test::Address6(200).data(), 16);
  } else {
    h.source = Ipv4At(wire_test::Address4(part.source).data());
    h.destination = Ipv4At(wire_test::Address4(200).data());
  }
  h.protocol = part.protocol;
  h.tos = part.tos;
  h.is_fragment = 1;
  h.has_more = part.more ? 1 : 0;
  h.ip_off = 14;
  h.data_off = h.l4_off = part.is6 ? 62 : 34;
  h.data_bytes = h.l4_bytes = part.bytes;
  h.ip_bytes = h.data_off - h.ip_off + part.bytes;
  h.fragment_id = part.id;
  h.fragment_off = part.off;
  return h;
}

TEST_CASE("reassembly: three fragments in each order") {
  for (bool is6 : {false, true}) {
    const Part parts[3] = {{is6, 0, 1400}, {is6, 1400, 1400}, {is6, 2800, 77, false}};
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (const auto& order : orders) {
      World w;
      CHECK(w.Add(Head(parts[order[0]])) == FragmentFate::kKept);
      CHECK(w.Add(Head(parts[order[1]])) == FragmentFate::kKept);
      REQUIRE(w.Add(Head(parts[order[2]])) == FragmentFate::kComplete);
      REQUIRE(w.out.piece_count == 3);
      for (uint32_t i = 0; i < 3; i++) {
        CHECK(order[w.out.pieces[i].packet] ==
              static_cast<int>(i));  // frames are numbered as added
        CHECK(w.out.pieces[i].off == (is6 ? 62u : 34u));
        CHECK(w.out.pieces[i].bytes == parts[i].bytes);
      }
      CHECK(w.out.head.l4_bytes == 2877);
      CHECK(w.out.head.is_fragment == 0);
      CHECK(w.held.empty());
      CHECK(ReassemblyDeadline(*w.table) == UINT64_MAX);
    }
  }
}

TEST_CASE("reassembly: datagrams are told apart by what the RFCs say") {
  World w;
  // RFC 791: source, destination, protocol, id. RFC 8200: source, destination, id.
  w.Add(Head({.is6 = false, .id = 7, .protocol = 17}));
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 7, .protocol = 6})) == FragmentFate::kKept);
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 8})) == FragmentFate::kKept);
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 7, .source = 2})) == FragmentFate::kKept);
  CHECK(w.Add(Head({.is6 = true, .off = 8, .more = false, .id = 7})) == FragmentFate::kKept);
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 7})) == FragmentFate::kComplete);
  w.Add(Head({.is6 = true, .id = 9, .protocol = 17}));
  CHECK(w.Add(Head({.is6 = true, .off = 8, .more = false, .id = 9, .protocol = 60})) ==
        FragmentFate::kComplete);
  CHECK(w.out.head.protocol == 17);  // the first one's
}

TEST_CASE("reassembly: what is behind the fragment header of IPv6 and before L4 is left out") {
  World w;
  wire::IpHead first = Head({.is6 = true, .off = 0, .bytes = 64});
  first.l4_off += 16;  // destination options
  first.l4_bytes -= 16;
  w.Add(Head({.is6 = true, .off = 64, .bytes = 10, .more = false, .protocol = 60}));
  REQUIRE(w.Add(first) == FragmentFate::kComplete);
  CHECK(w.out.head.l4_bytes == 58);
  CHECK(w.out.pieces[0].off == 78);
  CHECK(w.out.pieces[0].bytes == 48);
  CHECK(w.out.pieces[1].bytes == 10);
}

TEST_CASE("reassembly: duplicates add nothing") {
  World w;
  w.Add(Head({.off = 0, .bytes = 16}));
  CHECK(w.Add(Head({.off = 0, .bytes = 16})) == FragmentFate::kDropped);
  CHECK(w.Add(Head({.off = 8, .bytes = 8})) == FragmentFate::kDropped);  // covered: as Linux
  w.Add(Head({.off = 16, .bytes = 16}));
  CHECK(w.Add(Head({.off = 8, .bytes = 16})) == FragmentFate::kDropped);  // covered by two
  CHECK(w.table->counters.duplicates == 3);
  CHECK(w.Add(Head({.off = 32, .bytes = 8, .more = false})) == FragmentFate::kComplete);
  w.Add(Head({.is6 = true, .off = 0, .bytes = 16}));
  CHECK(w.Add(Head({.is6 = true, .off = 0, .bytes = 16})) == FragmentFate::kDropped);
  CHECK(w.Add(Head({.is6 = true, .off = 16, .more = false})) == FragmentFate::kComplete);
}

TEST_CASE("reassembly: an overlap drops the datagram") {
  const std::pair<uint32_t, uint32_t> overlaps[] = {{0, 24}, {24, 16}, {8, 24}, {8, 16}, {24, 32}};
  for (const auto& [off, bytes] : overlaps) {
    for (bool is6 : {false, true}) {
      World w;
      w.Add(Head({.is6 = is6, .off = 16, .bytes = 16}));
      CHECK(w.Add(Head({.is6 = is6, .off = off, .bytes = bytes})) == FragmentFate::kDiscarded);
      CHECK(w.held.empty());
      CHECK(w.table->counters.overlaps == 1);
      // IPv4: what comes now is another datagram. IPv6: it is not to be had any more.
      const FragmentFate again = w.Add(Head({.is6 = is6, .off = 0, .bytes = 16}));
      CHECK(again == (is6 ? FragmentFate::kDropped : FragmentFate::kKept));
      w.now_ns += 60 * kSecond;
      CHECK(w.Add(Head({.is6 = is6, .off = 0, .bytes = 16})) == FragmentFate::kKept);
    }
  }
  World w;  // part of one that is there already is no exact duplicate
  w.Add(Head({.is6 = true, .off = 0, .bytes = 16}));
  CHECK(w.Add(Head({.is6 = true, .off = 8, .bytes = 8})) == FragmentFate::kDiscarded);
}

TEST_CASE("reassembly: ends that contradict each other drop the datagram") {
  const auto second = [](const Part& first, const Part& then) {
    World w;
    REQUIRE(w.Add(Head(first)) == FragmentFate::kKept);
    const FragmentFate fate = w.Add(Head(then));
    CHECK(w.held.empty() == (fate == FragmentFate::kDiscarded));
    return fate;
  };
  CHECK(second({.off = 16, .more = false}, {.off = 32, .more = true}) == FragmentFate::kDiscarded);
  CHECK(second({.off = 16, .more = false}, {.off = 32, .more = false}) == FragmentFate::kDiscarded);
  CHECK(second({.off = 32, .more = true}, {.off = 16, .more = false}) == FragmentFate::kDiscarded);
  CHECK(second({.off = 16, .more = false}, {.off = 0, .more = true}) == FragmentFate::kKept);
  // Longer than a packet can be, with the header of the first.
  CHECK(second({.off = 65504, .bytes = 11, .more = false}, {.off = 0}) == FragmentFate::kKept);
}

TEST_CASE("reassembly: no datagram longer than 65,535 bytes with its header") {
  for (uint32_t last : {3u, 4u}) {
    World w;
    wire::IpHead first = Head({.off = 0, .bytes = 65504});
    first.data_off += 8;  // options, which only the first one has
    first.l4_off += 8;
    w.Add(first);
    CHECK(w.Add(Head({.off = 65504, .bytes = last, .more = false})) ==
          (last == 3 ? FragmentFate::kComplete : FragmentFate::kDiscarded));
    CHECK(w.held.empty());
  }
}

TEST_CASE("reassembly: congestion marks come through (RFC 3168, 5.3)") {
  const auto combined = [](uint8_t a, uint8_t b) {
    World w;
    w.Add(Head({.tos = a}));
    const FragmentFate fate = w.Add(Head({.off = 8, .more = false, .tos = b}));
    CHECK(w.held.empty());
    return fate == FragmentFate::kComplete ? w.out.head.tos : 0xff;
  };
  CHECK(combined(0x28, 0x28) == 0x28);
  CHECK(combined(0x2a, 0x2a) == 0x2a);
  CHECK(combined(0x2a, 0x2b) == 0x2b);
  CHECK(combined(0x2b, 0x2a) == 0x2b);
  CHECK(combined(0x28, 0x2b) == 0xff);
  CHECK(combined(0x2a, 0x28) == 0xff);
}

TEST_CASE("reassembly: what stays incomplete is given up in time") {
  World w;
  w.Add(Head({.is6 = true, .id = 1}));
  w.Add(Head({.id = 2}));
  CHECK(ReassemblyDeadline(*w.table) == 35 * kSecond);
  w.now_ns = 34 * kSecond;
  w.Add(Head({.off = 16, .id = 2}));  // does not prolong it
  w.now_ns = 35 * kSecond - 1;
  w.Expire();
  CHECK(w.held.size() == 3);
  w.now_ns++;
  w.Expire();
  CHECK(w.held.size() == 1);
  CHECK(ReassemblyDeadline(*w.table) == 65 * kSecond);
  w.now_ns = 65 * kSecond;
  w.Expire();
  CHECK(w.held.empty());
  CHECK(w.table->counters.timeouts == 2);
  // Late: another one of that id has begun, which lacks what was dropped.
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 2})) == FragmentFate::kKept);
}

TEST_CASE("reassembly: a datagram has so many fragments and no more") {
  World w;
  for (uint32_t i = 0; i < kFragmentsPerDatagram; i++)
    REQUIRE(w.Add(Head({.off = 16 * i})) == FragmentFate::kKept);
  CHECK(w.Add(Head({.off = 16 * kFragmentsPerDatagram})) == FragmentFate::kDiscarded);
  CHECK(w.held.empty());
  CHECK(w.table->counters.too_many == 1);
}

TEST_CASE("reassembly: one source cannot take the place of the others") {
  World w;
  w.Add(Head({.id = 1, .source = 9}));
  w.now_ns++;
  for (uint32_t id = 0; id < 3000; id++) {
    w.now_ns++;
    REQUIRE(w.Add(Head({.is6 = id % 2 != 0, .id = id})) == FragmentFate::kKept);
    REQUIRE(w.held.size() <= kChargePerSource);
  }
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 1, .source = 9})) == FragmentFate::kComplete);
  // Of its own the newest are left.
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 2998})) == FragmentFate::kComplete);
  CHECK(w.Add(Head({.off = 8, .more = false, .id = 2})) == FragmentFate::kKept);
}

TEST_CASE("reassembly: many sources take no more than there is, and the oldest goes first") {
  for (uint32_t limit : {1u, 2u, 60u, kFragmentsMax}) {
    World w(limit);
    for (uint32_t i = 0; i < 3000; i++) {
      w.now_ns++;
      REQUIRE(w.Add(Head({.is6 = i % 3 == 0, .id = i, .source = static_cast<uint8_t>(i)})) ==
              FragmentFate::kKept);
      REQUIRE(w.table->fragments_used <= limit);
    }
    const uint32_t kept = limit < kDatagramsMax ? limit : kDatagramsMax;
    CHECK(w.held.size() == kept);
    CHECK(w.held.begin()->first == 3000 - kept);
  }
  World none(0);
  CHECK(none.Add(Head({})) == FragmentFate::kDropped);
  CHECK(none.held.empty());
}

TEST_CASE("reassembly: a datagram that does not fit beside itself is given up") {
  World w(4);
  for (uint32_t i = 0; i < 4; i++) REQUIRE(w.Add(Head({.off = 16 * i})) == FragmentFate::kKept);
  CHECK(w.Add(Head({.off = 64})) == FragmentFate::kDiscarded);
  CHECK(w.held.empty());
}

// From frames to the checksum over all pieces, with fragments made by what we send.
TEST_CASE("reassembly: a datagram that was sent in fragments is the one that is received") {
  for (bool is6 : {false, true}) {
    const wire_test::FrameSpec whole = wire_test::UdpSpec(is6, wire_test::Counting(5001));
    const auto l4_bytes = static_cast<uint32_t>(whole.l4.size());
    wire::Packet p;
    const Bytes frame = wire_test::MakeFrame(whole);
    REQUIRE(wire::ParseFrame(frame.data(), static_cast<uint32_t>(frame.size()), 0, p) ==
            wire::Refusal::kNone);
    wire::IpOut ip;
    ip.source = p.ip.source;
    ip.destination = p.ip.destination;
    ip.family = p.ip.family;
    ip.protocol = 17;
    ip.dont_fragment = false;
    ip.id = 99;
    World w;
    std::vector<Bytes> frames;
    FragmentFate fate = FragmentFate::kDropped;
    uint32_t off = 0;
    while (uint32_t bytes = wire::NextFragment(ip, l4_bytes, 1280, off)) {
      Bytes f(frame.begin(), frame.begin() + 14);
      f.resize(14 + wire::IpHeaderBytes(ip));
      wire::BuildIp(f.data() + 14, ip, bytes);
      f.insert(f.end(), whole.l4.begin() + off, whole.l4.begin() + off + bytes);
      REQUIRE(wire::ParseFrame(f.data(), static_cast<uint32_t>(f.size()), 0, p) ==
              wire::Refusal::kNone);
      frames.push_back(f);
      fate = w.Add(p.ip);
      off += bytes;
    }
    REQUIRE(fate == FragmentFate::kComplete);
    Bytes got;
    wire::Checksummer sums;
    for (uint32_t i = 0; i < w.out.piece_count; i++) {
      const Piece& piece = w.out.pieces[i];
      const uint8_t* at = frames[piece.packet].data() + piece.off;
      got.insert(got.end(), at, at + piece.bytes);
      sums.Add(at, piece.bytes);
    }
    CHECK(got == whole.l4);
    p.ip = w.out.head;
    const Piece& first = w.out.pieces[0];
    REQUIRE(wire::ParseL4(frames[first.packet].data() + first.off, first.bytes, p) ==
            wire::Refusal::kNone);
    CHECK(p.payload_bytes == 5001);
    CHECK(p.destination_port == 53);
    REQUIRE(wire::CoveredBytes(p) == l4_bytes);
    CHECK(wire::VerifyL4(sums.sum(), p) == wire::Refusal::kNone);
    CHECK(p.l4_state == wire::L4State::kVerified);
    CHECK(wire::VerifyL4(sums.sum() + 1, p) == wire::Refusal::kL4Checksum);
  }
}

}  // namespace
}  // namespace postern::stack
