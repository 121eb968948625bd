// SPDX-License-Identifier: Apache-2.0
// test_vi.h - two VIs wired back to back in one process: no system call, no time, no chance.
//
// The same rings as an AF_XDP socket's, with the driver's half done here: Kick() of one end takes
// what is in its tx ring, copies each frame into one of the other end's fill ring, as veth does,
// and completes it. Where the other end has no frame, or no room in its rx ring, the frame is lost
// and counted, as by a NIC.
//
//   TestWire wire;                        // plain memory; may be shared, for tests of death
//   wire.Format();
//   TestVi a(wire, 0, area_a, 0), b(wire, 1, area_b, 0);   // the areas may be one, the VIs not
//
// Each packet goes to the queue of the other end that `queue` of its ViTx names. With kLarge the
// ends take and hand over large packets, as a TAP with the kernel's segmentation does, and leave
// out the checksums; where the other end has no frames for all of one, it loses the whole.
#pragma once
#include "vi/rings.h"

namespace postern {

inline constexpr uint32_t kTestSlots = 1024;
inline constexpr uint32_t kTestQueues = 4;

struct TestRing {
  alignas(64) uint32_t producer;
  alignas(64) uint32_t consumer;
  alignas(64) uint32_t flags;
};

struct TestQueue {
  TestRing fill, rx, tx, completion;
  uint64_t fill_slots[kTestSlots];
  uint64_t completion_slots[kTestSlots];
  xdp_desc rx_slots[kTestSlots];
  xdp_desc tx_slots[kTestSlots];
};

struct TestEnd {
  TestQueue queue[kTestQueues];
  uint64_t lost;  // for want of a frame or of room, on the way to this end
};

struct TestWire {
  TestEnd end[2];
  uint32_t queue_count;
  uint32_t cut;  // 1: both ends are down
  uint32_t large;
  enum class Packets : uint8_t { kFrames, kLarge };
  void Format(uint32_t queues = 1, Packets packets = Packets::kFrames);
};

class TestVi final : public RingVi {
 public:
  // Enters itself into the area as VI number `vi`.
  TestVi(TestWire& wire, uint32_t side, Area& area, uint32_t vi);
  // The driver writes where the other end's frames are. Has to be called on each of the two before
  // the first Kick().
  void Connect(TestVi& peer) { peer_ = &peer; }

  ViStatus Kick() override;
  ViStatus Check() override { return wire_.cut != 0 ? ViStatus::kDown : ViStatus::kOk; }
  int Fd() override { return -1; }
  uint64_t lost() const { return wire_.end[side_].lost; }
  // The kernel's view, for tests: what it has is neither in our hands nor in a ring.
  TestQueue& queue(uint32_t q) { return wire_.end[side_].queue[q]; }

 private:
  bool HasRoom(uint32_t queue, uint32_t frames) const;
  void Deliver(uint32_t queue, const uint8_t* data, const xdp_desc& d);
  void Drive(uint32_t queue);

  TestWire& wire_;
  const uint32_t side_;
  TestVi* peer_ = nullptr;
};

}  // namespace postern
