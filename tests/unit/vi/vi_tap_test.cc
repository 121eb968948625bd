// SPDX-License-Identifier: Apache-2.0
// vi_tap_test.cc - the VI over a TAP: packets of any size both ways, its bell, and what the header
// before each packet may say.
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "../stack/engine_world.h"
#include "tap_world.h"

namespace postern::test {

using wire_test::Bytes;
using wire_test::FrameSpec;

namespace {

struct TapWorld {
  static constexpr uint32_t kFrames = 256;
  std::vector<uint64_t> memory = std::vector<uint64_t>(Area::BytesFor(kFrames) / 8 + 1024);
  Area area;
  std::unique_ptr<FakeTap> tap;

  TapWorld() {
    void* at = memory.data();
    size_t room = memory.size() * 8;
    REQUIRE(std::align(4096, Area::BytesFor(kFrames), at, room) != nullptr);
    area.Format(at, kFrames);
    tap = std::make_unique<FakeTap>(area);
    REQUIRE(tap->ok());
  }
  std::vector<ViRx> Receive() {
    std::vector<ViRx> rx(kViBatchMax);
    rx.resize(tap->vi.Receive(rx.data(), kViBatchMax));
    return rx;
  }
  Bytes Gather(const std::vector<ViRx>& rx) {
    Bytes all;
    for (const ViRx& one : rx) {
      const uint8_t* at = area.At(one.frame, one.off);
      all.insert(all.end(), at, at + one.bytes);
    }
    return all;
  }
  void Give(const std::vector<ViRx>& rx) {
    for (const ViRx& one : rx) area.Give(one.frame);
  }
};

wire::VnetHeader Segmented(uint8_t kind, uint16_t bytes) {
  wire::VnetHeader h{};
  h.segmentation = kind;
  h.segment_bytes = bytes;
  return h;
}

}  // namespace

TEST_CASE("tap: a packet of any size comes in as many frames as it takes, and goes back") {
  TapWorld w;
  for (const size_t bytes : {size_t{60}, size_t{1514}, size_t{1984}, size_t{1985}, size_t{65549}}) {
    CAPTURE(bytes);
    const Bytes sent = wire_test::Counting(bytes);
    w.tap->Ring();
    REQUIRE(w.tap->Put({}, sent));
    CHECK(w.tap->vi.Pending());
    const std::vector<ViRx> rx = w.Receive();
    REQUIRE(rx.size() == (bytes + 1983) / 1984);
    for (size_t i = 0; i < rx.size(); i++) {
      CHECK(((rx[i].flags & kRxMore) != 0) == (i + 1 < rx.size()));
      CHECK(w.area.UseAt(rx[i].frame) == kFrameRx);
    }
    CHECK((w.Gather(rx) == sent));
    CHECK_FALSE(w.tap->vi.Pending());
    w.Give(rx);
    CHECK(w.area.FreeCount() == TapWorld::kFrames);
  }
}

TEST_CASE("tap: without its bell nothing is read, but once before a sleep") {
  TapWorld w;
  REQUIRE(w.tap->Put({}, Bytes(60)));
  CHECK(w.Receive().empty());
  w.tap->vi.Arm();
  const std::vector<ViRx> rx = w.Receive();
  CHECK(rx.size() == 1);
  w.Give(rx);
  // What the bell had not counted is settled after a while.
  int looks = 0;
  for (; looks < 1000 && w.tap->vi.Pending(); looks++) CHECK(w.Receive().empty());
  CHECK(looks < 100);
}

TEST_CASE(
    "tap: a bell that has rung too early, or for what was lost, is looked after for a while") {
  TapWorld w;
  w.tap->Ring(3);
  CHECK(w.Receive().empty());
  CHECK(w.tap->vi.Pending());
  REQUIRE(w.tap->Put({}, Bytes(60)));
  std::vector<ViRx> rx = w.Receive();
  CHECK(rx.size() == 1);
  w.Give(rx);
  int looks = 0;
  for (; looks < 1000 && w.tap->vi.Pending(); looks++) CHECK(w.Receive().empty());
  CHECK(looks < 100);
  w.tap->Ring();
  REQUIRE(w.tap->Put({}, Bytes(60)));
  rx = w.Receive();
  CHECK(rx.size() == 1);
  w.Give(rx);
}

TEST_CASE("tap: many small packets, in order, and no frame is lost") {
  TapWorld w;
  uint8_t next = 0;
  for (uint8_t i = 0; i < 100; i++) {
    w.tap->Ring();
    REQUIRE(w.tap->Put({}, Bytes(60, i)));
  }
  while (next < 100) {
    const std::vector<ViRx> rx = w.Receive();
    REQUIRE_FALSE(rx.empty());
    for (const ViRx& one : rx) CHECK(*w.area.At(one.frame, one.off) == next++);
    w.Give(rx);
  }
  CHECK(w.area.FreeCount() == TapWorld::kFrames);
}

TEST_CASE("tap: what is sent is written whole, its frames are free, and a full TAP takes no more") {
  TapWorld w;
  const FrameSpec spec = wire_test::TcpSpec(false, wire_test::Counting(3000));
  const Bytes frame = wire_test::MakeFrame(spec);
  const auto send = [&] {
    uint32_t frames[2];
    if (w.area.Take(frames, 2) != 2) return 0u;
    memcpy(w.area.At(frames[0], 64), frame.data(), 1900);
    memcpy(w.area.At(frames[1], 0), frame.data() + 1900, frame.size() - 1900);
    const ViTx tx[2] = {{frames[0], 64, 1900, kTxMore | kTxChecksum, 0, 1000, 34},
                        {frames[1], 0, static_cast<uint16_t>(frame.size() - 1900), 0, 0}};
    const uint32_t sent = w.tap->vi.Send(tx, 2);
    w.area.Give(frames + sent, 2 - sent);
    return sent;
  };
  CHECK(send() == 2);
  CHECK(w.area.FreeCount() == TapWorld::kFrames);
  wire::VnetHeader header;
  Bytes got;
  REQUIRE(w.tap->Take(header, got));
  CHECK((got == frame));
  CHECK(header.flags == wire::kVnetNeedsChecksum);
  CHECK(header.segmentation == wire::kVnetTcp4);
  CHECK(header.segment_bytes == 1000);
  CHECK(header.header_bytes == 14 + 20 + spec.l4[12] / 16 * 4);
  CHECK(header.checksum_start == 34);
  CHECK(header.checksum_off == 16);
  int packets = 0;
  while (packets < 10000 && send() == 2) packets++;
  CHECK(packets < 10000);
  CHECK(w.tap->vi.info().counters.tx_full == 1);
  CHECK(w.area.FreeCount() == TapWorld::kFrames);
}

TEST_CASE("tap: what is not the engine's to send is not sent") {
  TapWorld w;
  uint32_t frame;
  REQUIRE(w.area.Take(&frame, 1) == 1);
  const auto refused = [&w](const ViTx& tx) { return w.tap->vi.Send(&tx, 1) == 0; };
  CHECK(refused({frame + 1 < 256 ? frame + 1 : frame - 1, 0, 60, 0, 0}));  // free
  CHECK(refused({100'000, 0, 60, 0, 0}));
  CHECK(refused({frame, 2000, 49, 0, 0}));
  CHECK(refused({frame, 0, 60, kTxMore, 0}));  // half a packet
  CHECK_FALSE(refused({frame, 0, 60, 0, 0}));
  CHECK(refused({frame, 0, 60, 0, 0}));  // sent already
}

TEST_CASE("tap: a checksum is taken for good only where the packet confirms what is said of it") {
  for (const bool is6 : {false, true}) {
    CAPTURE(is6);
    const Bytes frame = wire_test::MakeFrame(wire_test::TcpSpec(is6, wire_test::Counting(100)));
    const uint16_t l4 = is6 ? 54 : 34;
    struct {
      uint8_t flags;
      uint16_t start, off;
      bool good;
    } const cases[] = {
        {0, 0, 0, false},
        {wire::kVnetDataValid, 0, 0, true},
        {wire::kVnetNeedsChecksum, l4, 16, true},
        {wire::kVnetNeedsChecksum, l4, 6, false},                              // UDP's
        {wire::kVnetNeedsChecksum, static_cast<uint16_t>(l4 + 4), 16, false},  // elsewhere
        {wire::kVnetNeedsChecksum | wire::kVnetDataValid, 65535, 65535, false},
    };
    for (const auto& c : cases) {
      wire::VnetHeader h{};
      h.flags = c.flags;
      h.checksum_start = c.start;
      h.checksum_off = c.off;
      wire::VnetIn in;
      CHECK(wire::ReadVnet(h, frame.data(), static_cast<uint32_t>(frame.size()), in));
      CHECK(in.is_checksum_good == c.good);
      for (uint32_t here = 0; here < 60; here++)  // nothing is read behind what is there
        CHECK(wire::ReadVnet(h, Bytes(frame.begin(), frame.begin() + here).data(), here, in));
    }
  }
}

TEST_CASE("tap: kinds that were not asked for, and segments of nothing, are dropped") {
  TapWorld w;
  const Bytes frame = wire_test::MakeFrame(wire_test::TcpSpec(false, wire_test::Counting(100)));
  wire::VnetIn in;
  const auto is_good = [&](uint8_t kind, uint16_t bytes) {
    return wire::ReadVnet(Segmented(kind, bytes), frame.data(), 100, in);
  };
  CHECK(is_good(wire::kVnetOne, 0));
  CHECK(in.segment_bytes == 0);
  CHECK(is_good(wire::kVnetTcp4, 1448));
  CHECK(in.segment_bytes == 1448);
  CHECK(is_good(wire::kVnetTcp6 | wire::kVnetEcn, 1448));
  CHECK_FALSE(is_good(wire::kVnetTcp4, 0));
  CHECK_FALSE(is_good(3, 1000));  // UDP's fragments
  CHECK_FALSE(is_good(5, 1000));  // UDP's segments
  CHECK_FALSE(is_good(255, 1000));
  w.tap->Ring();
  REQUIRE(w.tap->Put(Segmented(5, 1000), frame));
  const std::vector<ViRx> rx = w.Receive();
  REQUIRE(rx.size() == 1);
  CHECK(rx[0].bytes == 0);  // which no frame's parser takes
  CHECK(w.tap->vi.info().queue[0].bad_descriptors == 1);
  w.Give(rx);
}

// Two engines, each with a TAP: what the one writes the other reads, as the kernel hands it on.
TEST_CASE("tap: a stream between two engines, both ways, by large packets") {
  for (const bool is6 : {false, true}) {
    CAPTURE(is6);
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    PlainHost a{1}, b{2};
    const uint8_t prefix[15] = {0x20, 0x01, 0x0d, 0xb8};
    if (is6) {
      memcpy(a.ip.ip, prefix, sizeof prefix);
      memcpy(b.ip.ip, prefix, sizeof prefix);
    }
    FakeTap tap_a(a.area, dup(ends[1]), dup(ends[0])), tap_b(b.area, dup(ends[0]), dup(ends[1]));
    close(ends[0]);
    close(ends[1]);
    a.engine->SetVi(0, &tap_a.vi);
    b.engine->SetVi(0, &tap_b.vi);
    uint64_t now = 1000 * kMs;
    const auto settle = [&] {
      for (int i = 0, idle = 0; i < 100'000 && idle < 3; i++) {
        tap_a.vi.Arm();
        tap_b.vi.Arm();
        a.now = b.now = now;
        idle = a.engine->Poll(now) + b.engine->Poll(now) != 0 ? 0 : idle + 1;
      }
    };
    (void)b.engine->Listen(b.At(80), is6 ? AF_INET6 : AF_INET, 0, 16, 80, 1);
    PlainEnd& client = a.Connect(a.At(40000), b.At(80));
    settle();
    REQUIRE_FALSE(b.accepted[80].empty());
    PlainEnd& server = b.EndOf(b.accepted[80].front());
    const std::string up = Pattern(500'000, 1), down = Pattern(700'000, 2);
    client.out = up;
    server.out = down;
    a.Wake(client);
    b.Wake(server);
    for (int i = 0; i < 100; i++) {
      settle();
      now += 300 * kMs;
    }
    CHECK((server.in == up));
    CHECK((client.in == down));
    CHECK(tap_a.vi.info().counters.kicks < 500);  // packets, not segments
    CHECK(tap_b.vi.info().counters.kicks < 500);
    CHECK(a.state().counters.refused[static_cast<size_t>(wire::Refusal::kL4Checksum)] == 0);
  }
}

}  // namespace postern::test
