// SPDX-License-Identifier: Apache-2.0
// soft_fuzz.cc - what a hostile network and a hostile program can bring to the driver of soft VIs.
//
// Frames: whose they are is decided without a read outside; without a filter they are the kernel's,
// and what the engine's parser takes for a packet of a connection goes where that one's filter
// says. Rings: whatever the program writes there between the driver's steps, what the driver is
// shown lies in the area, and the positions that tell the next driver where to begin move together.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include <memory>

#include "../../controlplane/softnic/steer.h"
#include "frame_inputs.h"
#include "replay.h"
#include "vi/soft/soft_driver.h"
#include "wire/packet/packet.h"

namespace postern {
namespace {

using softnic::Steer;

[[maybe_unused]] constexpr size_t kInputMax = 160;
constexpr uint32_t kFrames = 4, kSlot = 7;

// ---------------------------------------------------------------- frames

void CheckFrame(const wire_test::Bytes& frame) {
  static Steer& steer =
      *new Steer(5, [](const pstn_xdp_flow&, Steer::Why) { return Steer::Holder{}; });
  const auto bytes = static_cast<uint32_t>(frame.size());
  FUZZ_CHECK(steer.Route(frame.data(), bytes) == Steer::kKernel);
  wire::Packet p;
  if (wire::ParseFrame(frame.data(), bytes, wire::kRxIpVerified | wire::kRxL4Verified, p) !=
          wire::Refusal::kNone ||
      p.ip.is_fragment != 0)
    return;
  const bool tcp = p.ip.protocol == wire::kProtocolTcp;
  if (!tcp && p.ip.protocol != wire::kProtocolUdp) return;
  pstn_xdp_flow flow{};
  memcpy(flow.local.byte, p.ip.destination.bytes, 16);
  memcpy(flow.peer.byte, p.ip.source.bytes, 16);
  flow.local_port = __builtin_bswap16(p.destination_port);
  flow.peer_port = __builtin_bswap16(p.source_port);
  flow.vlan = p.link.vlan == wire::kNoVlan ? uint16_t{0} : p.link.vlan & 0xfff;
  flow.protocol = p.ip.protocol;
  FUZZ_CHECK(steer.AddFlow(flow, {kSlot, 0, 0}, 1) == 0);
  const uint32_t to = steer.Route(frame.data(), bytes);
  // Of tags and of extension headers it reads less than the engine does.
  const bool is_plain =
      p.link.bytes == 14 && (p.ip.family == wire::Family::kIpv4 || p.ip.l4_off - p.ip.ip_off == 40);
  FUZZ_CHECK(to == kSlot || (!is_plain && to == Steer::kKernel));
  steer.RemoveFlow(flow, kSlot);
  FUZZ_CHECK(steer.Route(frame.data(), bytes) == Steer::kKernel);
}

// ---------------------------------------------------------------- rings

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint32_t Byte() {
    if (bytes_.empty()) return 0;
    const uint8_t byte = bytes_[0];
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  // Near what would be good, most often.
  uint64_t Word(uint64_t near) {
    const uint32_t how = Byte(), byte = Byte();
    switch (how % 6) {
      case 0:
        return near + byte % 9 - 4;
      case 1:
        return byte;
      case 2:
        return ~uint64_t{0} - byte;
      case 3:
        return uint64_t{1} << byte % 64;
      case 4:
        return uint64_t{byte} * 997 % ((kFrames + 1) * kFrameBytes);
      default:
        return near + uint64_t{byte} * kSoftSlots / 64;
    }
  }

 private:
  std::span<const uint8_t> bytes_;
};

void Lie(SoftRings& r, Input& in) {
  SoftRing* const rings[] = {&r.fill, &r.rx, &r.tx, &r.completion};
  SoftRing& ring = *rings[in.Byte() % 4];
  const uint32_t at = static_cast<uint32_t>(in.Word(r.rx.producer)) % kSoftSlots;
  switch (in.Byte() % 6) {
    case 0:
      StoreRelaxed(ring.producer, static_cast<uint32_t>(in.Word(ring.producer)));
      break;
    case 1:
      StoreRelaxed(ring.consumer, static_cast<uint32_t>(in.Word(ring.consumer)));
      break;
    case 2:
      r.fill_slots[at] = in.Word(kFrameBytes);
      break;
    case 3:
      r.tx_slots[at] = {in.Word(kFrameBytes), static_cast<uint32_t>(in.Word(60)),
                        static_cast<uint32_t>(in.Byte() % 3)};
      break;
    case 4:
      r.completion_slots[at] = in.Word(0);
      break;
    default:
      StoreRelaxed(r.watched, static_cast<uint32_t>(in.Byte()));
  }
}

void Drive(SoftDriver& driver, const wire_test::Bytes& frames, uint32_t what) {
  const uint8_t packet[kSoftBytesMax + 1] = {1};
  SoftPacket packets[8];
  uint32_t count = 0;
  switch (what % 4) {
    case 0:
      (void)driver.Deliver(packet, what * 25 % (kSoftBytesMax + 2));
      break;
    case 1:
      (void)driver.Publish();
      break;
    case 2:
      count = driver.Peek(packets, 8);
      FUZZ_CHECK(count <= 8);
      for (uint32_t i = 0; i < count; i++) {
        if (packets[i].bytes == 0) continue;
        FUZZ_CHECK(packets[i].data >= frames.data());
        FUZZ_CHECK(packets[i].data + packets[i].bytes <= frames.data() + frames.size());
      }
      driver.Complete(count - (count != 0 ? what / 4 % count : 0));
      break;
    default:
      (void)driver.HasTx();
  }
}

void CheckRings(Input in) {
  static SoftRings& rings = *new SoftRings;
  FormatSoftRings(rings);
  wire_test::Bytes frames(size_t{kFrames} * kFrameBytes);  // of exactly that size
  SoftDriver driver;
  driver.Attach(rings, frames.data(), kFrames);
  while (!in.empty()) {
    const uint32_t what = in.Byte();
    if (what % 3 != 0) {
      Lie(rings, in);
    } else if (what % 64 == 63) {
      driver = SoftDriver();
      driver.Attach(rings, frames.data(), kFrames);
      FUZZ_CHECK(rings.fill.consumer == rings.rx.producer);
      FUZZ_CHECK(rings.tx.consumer == rings.completion.producer);
    } else {
      Drive(driver, frames, what / 3);
    }
  }
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace postern;  // NOLINT(google-build-using-namespace): the entry of this file
  if (size < 2) return 0;
  if (data[0] % 2 == 0)
    CheckFrame(wire_test::FrameOf({data + 1, size - 1}));
  else
    CheckRings(Input({data + 1, size - 1}));
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::kInputMax); }
#endif
