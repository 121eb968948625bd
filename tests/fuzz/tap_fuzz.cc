// SPDX-License-Identifier: Apache-2.0
// tap_fuzz.cc - a TAP whose other side says what it likes: virtio-net headers that do not fit
// their packets, large packets of a connection that are nearly right, and noise. Each frame is
// given back, the connection is sound, and what it has delivered is what was sent.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <span>

#include "../unit/stack/plain_host.h"
#include "../unit/vi/tap_world.h"
#include "frame_inputs.h"
#include "replay.h"
#include "tcp/validate.h"

namespace postern {
namespace {

using test::FakeTap;
using test::PlainHost;
using wire_test::Bytes;

[[maybe_unused]] constexpr size_t kInputMax = 400;
constexpr uint32_t kFrames = 1024;
constexpr uint64_t kMs = 1'000'000;

class In {
 public:
  explicit In(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const uint8_t b = bytes_[0];
    bytes_ = bytes_.subspan(1);
    return b;
  }
  uint16_t Word() { return static_cast<uint16_t>(Byte() << 8 | Byte()); }
  std::span<const uint8_t> Some(size_t most) {
    const auto some = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(some.size());
    return some;
  }

 private:
  std::span<const uint8_t> bytes_;
};

uint8_t At(uint32_t off) { return static_cast<uint8_t>(off * 2654435761u >> 13); }

// A host whose listener a peer has connected to, by hand.
struct World {
  PlainHost host{2, kFrames};
  FakeTap tap{host.area};
  uint64_t now = 1000 * kMs;
  stack::Conn* conn = nullptr;
  uint32_t first = 0;  // number of the stream's first byte

  World() {
    FUZZ_CHECK(tap.ok());
    host.engine->SetVi(0, &tap.vi);
    (void)host.engine->Listen(host.At(80), AF_INET, 0, 4, 80, 1);
    Poll();
    Put({}, Frame(tcp::kSyn, 1000, 0, {}));
    conn = &host.engine->ConnAt(0);
    FUZZ_CHECK(conn->use == stack::kConnUsed);
    first = 1001;
    Put({}, Frame(tcp::kAck, first, conn->tcb.snd_nxt.value(), {}));
    FUZZ_CHECK(!host.accepted[80].empty());
  }
  Bytes Frame(uint8_t flags, uint32_t seq, uint32_t ack, const Bytes& payload) {
    wire_test::FrameSpec f;
    f.source = {10, 0, 0, 1};
    f.destination = {10, 0, 0, 2};
    wire_test::Put16(f.l4, 40000);
    wire_test::Put16(f.l4, 80);
    wire_test::Put32(f.l4, seq);
    wire_test::Put32(f.l4, ack);
    f.l4.push_back(5 << 4);
    f.l4.push_back(flags);
    wire_test::Put16(f.l4, 0x4000);
    wire_test::Put32(f.l4, 0);
    wire_test::Put(f.l4, payload);
    wire_test::FixChecksum(f);
    return wire_test::MakeFrame(f);
  }
  void Poll() {
    host.now = now;
    host.engine->Poll(now);
    wire::VnetHeader header;
    Bytes frame;
    while (tap.Take(header, frame)) {
      FUZZ_CHECK(frame.size() >= 14 + 20 + 20);
      FUZZ_CHECK(header.segment_bytes == 0 || header.header_bytes < frame.size());
      FUZZ_CHECK(uint32_t{header.checksum_start} + header.checksum_off + 2 <= frame.size());
    }
  }
  void Put(const wire::VnetHeader& header, const Bytes& frame) {
    tap.Ring();
    FUZZ_CHECK(tap.Put(header, frame));
    Poll();
  }
  void CheckSound() {
    for (uint32_t f = 0; f < kFrames; f++) {
      const FrameUse use = host.area.UseAt(f);
      FUZZ_CHECK(use == kFrameFree || use == kFrameKept);
    }
    if (conn->use != stack::kConnUsed) return;
    const char* bad = tcp::Validate(conn->tcb, *host.engine);
    if (bad != nullptr) FuzzDie("connection:", bad);
    const std::string& got = host.EndOf(host.accepted[80].front()).in;
    for (uint32_t i = 0; i < got.size(); i++) FUZZ_CHECK(static_cast<uint8_t>(got[i]) == At(i));
  }
};

wire::VnetHeader HeaderOf(In& in) {
  wire::VnetHeader h;
  const uint8_t how = in.Byte();
  h.flags = how & 3;
  h.segmentation = (how & 4) != 0 ? wire::kVnetTcp4 : in.Byte();
  h.header_bytes = in.Word();
  h.segment_bytes = (how & 8) != 0 ? static_cast<uint16_t>(1 + in.Byte() * 8) : in.Word();
  h.checksum_start = (how & 16) != 0 ? uint16_t{34} : in.Word();
  h.checksum_off = (how & 32) != 0 ? uint16_t{16} : in.Word();
  return h;
}

// Some of the stream, near to what is expected next; its checksum is right, or left out.
void PutLarge(World& w, In& in) {
  const uint8_t how = in.Byte();
  const uint32_t bytes = in.Word() % 65000u, skip = (how & 1) != 0 ? in.Word() : 0;
  const uint32_t back = (how & 2) != 0 ? in.Word() : 0;
  const uint32_t next = w.conn->tcb.rcv_nxt.value() - w.first;
  const uint32_t from = next + skip > back ? next + skip - back : 0;
  Bytes payload(bytes);
  for (uint32_t i = 0; i < bytes; i++) payload[i] = At(from + i);
  const uint8_t flags = (how & 4) != 0 ? in.Byte() & 0x1a : tcp::kAck;
  const Bytes frame = w.Frame(static_cast<uint8_t>(flags | tcp::kAck), w.first + from,
                              w.conn->tcb.snd_nxt.value(), payload);
  w.Put(HeaderOf(in), frame);
}

void One(std::span<const uint8_t> bytes) {
  World w;
  In in(bytes);
  while (!in.empty()) {
    const uint8_t op = in.Byte();
    if (op < 140) {
      PutLarge(w, in);
    } else if (op < 220) {
      const wire::VnetHeader header = HeaderOf(in);
      const auto some = in.Some(1 + in.Byte());
      if (!some.empty()) w.Put(header, wire_test::FrameOf(some));
    } else {
      w.now += uint64_t{1} << in.Byte() % 36;
      w.tap.vi.Arm();
      w.Poll();
    }
    w.CheckSound();
  }
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
