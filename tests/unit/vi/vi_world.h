// vi_world.h - a test wire with an area at each end, in memory that may be shared.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "vi/packet_area.h"
#include "vi/test_vi.h"

namespace postern {

class ViWorld {
 public:
  explicit ViWorld(uint32_t frames = 256, uint32_t queues = 1)
      : frames_(frames), bytes_((sizeof(TestWire) + 63) / 64 * 64 + 2 * AreaRoom()) {
    at_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    wire().Format(queues);
    for (int side = 0; side < 2; side++) area[side].Format(AreaAt(side), frames);
    Open();
  }
  // The same state in other memory: what a process that takes over sees.
  ViWorld(const ViWorld& from) : frames_(from.frames_), bytes_(from.bytes_) {
    at_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    CopyFrom(from);
    for (int side = 0; side < 2; side++) area[side].View(AreaAt(side), frames_);
    Open();
  }
  ViWorld& operator=(const ViWorld&) = delete;
  ~ViWorld() {
    delete vi[0];
    delete vi[1];
    munmap(at_, bytes_);
  }

  void CopyFrom(const ViWorld& from) { memcpy(at_, from.at_, bytes_); }
  TestWire& wire() { return *reinterpret_cast<TestWire*>(at_); }
  uint8_t* memory() { return at_; }
  size_t bytes() const { return bytes_; }

  // Feeds the fill ring of one end with up to so many frames.
  uint32_t Feed(int side, uint32_t count) {
    std::vector<uint32_t> frames(count);
    const uint32_t n = area[side].Take(frames.data(), count);
    const uint32_t took = vi[side]->Refill(frames.data(), n);
    area[side].Give(frames.data() + took, n - took);
    return took;
  }
  // One frame with this content; false: no frame or no room.
  bool Send(int side, const std::string& bytes, uint32_t queue = 0) {
    uint32_t frame = 0;
    if (area[side].Take(&frame, 1) == 0) return false;
    memcpy(area[side].At(frame, 64), bytes.data(), bytes.size());
    const ViTx tx = {frame, 64, static_cast<uint16_t>(bytes.size()), 0,
                     static_cast<uint16_t>(queue)};
    if (vi[side]->Send(&tx, 1) == 1) return true;
    area[side].Give(frame);
    return false;
  }
  void Collect(int side) {
    uint32_t frames[kViBatchMax];
    for (uint32_t n; (n = vi[side]->Completed(frames, kViBatchMax)) != 0;)
      area[side].Give(frames, n);
  }
  std::string Text(int side, const ViRx& rx) {
    return {reinterpret_cast<const char*>(area[side].At(rx.frame, rx.off)), rx.bytes};
  }
  // All that has come, in order; the frames are given back.
  std::vector<std::string> Drain(int side) { return Drain(side, *vi[side]); }
  std::vector<std::string> Drain(int side, Vi& from) {
    std::vector<std::string> all;
    ViRx rx[kViBatchMax];
    for (uint32_t n; (n = from.Receive(rx, kViBatchMax)) != 0;) {
      for (uint32_t i = 0; i < n; i++) {
        all.push_back(Text(side, rx[i]));
        area[side].Give(rx[i].frame);
      }
    }
    return all;
  }
  // Whether every frame is in one place, and where its owner says. Null, or what is wrong.
  const char* Wrong(int side) {
    std::vector<uint8_t> seen(frames_);
    if (!vi[side]->Validate(seen.data())) return "rings";
    if (!area[side].Validate(seen.data())) return "free list";
    for (uint32_t f = 0; f < frames_; f++) {
      const FrameUse use = area[side].UseAt(f);
      if ((use == kFrameFill || use == kFrameSending) && seen[f] != 1) return "the driver's, lost";
      if ((use == kFrameRx || use == kFrameTx || use == kFrameKept) && seen[f] != 0)
        return "the engine's, and in a ring";
    }
    return nullptr;
  }

  Area area[2];
  TestVi* vi[2] = {};

 private:
  size_t AreaRoom() const { return (Area::BytesFor(frames_) + 4095) / 4096 * 4096; }
  uint8_t* AreaAt(int side) {
    return at_ + (sizeof(TestWire) + 63) / 64 * 64 + static_cast<size_t>(side) * AreaRoom();
  }
  void Open() {
    for (uint32_t side = 0; side < 2; side++) vi[side] = new TestVi(wire(), side, area[side], 0);
    vi[0]->Connect(*vi[1]);
    vi[1]->Connect(*vi[0]);
  }

  const uint32_t frames_;
  const size_t bytes_;
  uint8_t* at_;
};

}  // namespace postern
