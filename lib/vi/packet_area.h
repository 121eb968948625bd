// SPDX-License-Identifier: Apache-2.0
// packet_area.h - the packet area of a stack: created, mapped, its frames given out and found
// again.
//
// An Area is this process's view of it: an address, and the sizes that were checked when it was
// mapped, so that no number in shared memory can lead outside. Everything but mapping happens under
// the engine's lock.
//
// A frame's owner is written in owner[] before the frame changes hands towards the engine, and in
// an intent before it does towards a ring, so that a death leaves a frame in doubt only where one
// of the two tells. After a death:
//
//   for each VI: vi.Recover()    what is in the rings is the VI's, all else is not
//   area.ReclaimBegin()          kept frames have to be claimed anew
//   area.Claim(frame) ...        for each frame that a connection's queue names
//   area.ReclaimEnd()            what was in the dead one's hands, or has no keeper, is free
//
// A death in the middle of that costs nothing: the next holder does it all again.
#pragma once
#include <cstddef>

#include "base/atomic.h"
#include "vi/layout.h"

namespace postern {

// A new memfd (close-on-exec, sealed), its tables initialised, all frames free; or -errno.
// `frame_count` is a multiple of 2 (whole pages). Memory is taken when it is touched.
int CreateArea(const pstn_uuid& stack, uint32_t frame_count);

// What a checker that trusts no process needs of a memfd: read once, checked against its size.
struct AreaShape {
  uint64_t size_bytes;
  uint32_t frame_count;
  uint32_t owner_off, free_off, frames_off;
};
// 0 or -errno: EBADF no sealed memfd, EINVAL not an area, EPROTO of another version.
int ReadAreaShape(int fd, AreaShape& shape);

class Area {
 public:
  Area() = default;
  // Takes over nothing: the caller keeps the descriptor, and unmaps. 0 or -errno.
  int Map(int fd);
  void Unmap();
  // For tests and the test VI: the same in memory that is not shared, of AreaBytes(frame_count).
  static size_t BytesFor(uint32_t frame_count);
  void Format(void* memory, uint32_t frame_count);
  void View(void* memory, uint32_t frame_count);  // formatted by another process

  bool ok() const { return header_ != nullptr; }
  pstn_area& header() { return *header_; }
  pstn_vi* ViAt(uint32_t idx) { return idx < kAreaVis ? &header_->vi[idx] : nullptr; }
  uint32_t frame_count() const { return frame_count_; }
  uint8_t* frames() { return frames_; }

  // Null if there is no such byte.
  uint8_t* At(uint32_t frame, uint32_t off) {
    if (frame >= frame_count_ || off >= kFrameBytes) return nullptr;
    return frames_ + (static_cast<size_t>(frame) << kFrameShift) + off;
  }
  FrameUse UseAt(uint32_t frame) const { return UseOf(owner_[frame]); }

  uint32_t FreeCount() const;
  // Up to `count` free frames, which become kFrameTx. The last ones given come first: warm.
  uint32_t Take(uint32_t* frames, uint32_t count);
  // Frames that are the engine's become free; others are left as they are.
  void Give(const uint32_t* frames, uint32_t count);
  void Give(uint32_t frame) { Give(&frame, 1); }
  // A received frame outlives the call. False: it is none.
  bool Keep(uint32_t frame);

  // For VIs: the owner byte, unchecked but for the range.
  void SetOwner(uint32_t frame, FrameUse use, uint32_t vi) {
    if (frame < frame_count_) StoreRelaxed(owner_[frame], FrameOwner(use, vi));
  }
  uint8_t OwnerOf(uint32_t frame) const {
    return frame < frame_count_ ? LoadRelaxed(owner_[frame]) : uint8_t{0xff};
  }

  void ReclaimBegin();
  // Back to kept. False: not to be had, it is in a ring or claimed already: the queue that names it
  // has to forget it.
  bool Claim(uint32_t frame);
  // Returns how many frames were lost in an owner's hands and are free now.
  uint32_t ReclaimEnd();
  // A VI is gone, its sockets closed: the frames that it had are free.
  uint32_t Abandon(uint32_t vi);

  // Whether free[] names each free frame once and no other. `seen`: a byte for each frame, zero
  // before the first Vi::Validate() of this area, and then handed from one to the next.
  bool Validate(uint8_t* seen);

 private:
  void Rebuild();

  pstn_area* header_ = nullptr;
  uint8_t* owner_ = nullptr;
  uint32_t* free_ = nullptr;
  uint8_t* frames_ = nullptr;
  uint32_t frame_count_ = 0;
  size_t size_bytes_ = 0;
};

}  // namespace postern
