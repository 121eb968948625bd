// SPDX-License-Identifier: Apache-2.0
// soft_driver.cc - see soft_driver.h.
#include "vi/soft/soft_driver.h"

#include <algorithm>
#include <cstring>

namespace postern {
namespace {

constexpr uint32_t kMask = kSoftSlots - 1;

}  // namespace

void SoftDriver::Attach(SoftRings& rings, uint8_t* frames, uint32_t frame_count) {
  rings_ = &rings;
  frames_ = frames;
  frame_count_ = frame_count;
  rx_pos_ = rx_shown_ = LoadAcquire(rings.rx.producer);  // [I1]
  tx_pos_ = LoadAcquire(rings.completion.producer);      // [I1]
  StoreRelease(rings.fill.consumer, rx_pos_);            // [I1]
  StoreRelease(rings.tx.consumer, tx_pos_);              // [I1]
  SetAsleep(false);
}

uint32_t SoftDriver::Ahead(const uint32_t& producer, uint32_t from) {
  const uint32_t n = LoadAcquire(producer) - from;  // [I1] of the slots
  return n <= kSoftSlots ? n : 0;
}

// Where a frame begins, whatever the offset in it; null: there is no such frame.
uint8_t* SoftDriver::FrameAt(uint64_t addr) const {
  const uint64_t frame = addr >> kFrameShift;
  return frame < frame_count_ ? frames_ + (frame << kFrameShift) : nullptr;
}

bool SoftDriver::Deliver(const uint8_t* data, uint32_t bytes) {
  if (bytes > kSoftBytesMax) {
    counters_.rx_too_long++;
    return false;
  }
  // What the program has not fetched yet; it can't have fetched more than there was.
  const uint32_t unread = rx_pos_ - LoadAcquire(rings_->rx.consumer);  // [I1]: those were read
  uint32_t count = Ahead(rings_->fill.producer, rx_pos_);
  count = unread <= kSoftSlots ? std::min(count, kSoftSlots - unread) : 0;
  for (; count != 0; count--) {
    const uint64_t addr = LoadRelaxed(rings_->fill_slots[rx_pos_ & kMask]);
    xdp_desc& to = rings_->rx_slots[rx_pos_++ & kMask];
    uint8_t* const frame = FrameAt(addr);
    if (frame == nullptr) {  // its place in the rx ring it has nevertheless: soft_rings.h
      to = {addr, 0, 0};
      counters_.bad_descriptors++;
      continue;
    }
    memcpy(frame + kSoftHeadroom, data, bytes);
    to = {(addr & ~uint64_t{kFrameBytes - 1}) + kSoftHeadroom, bytes, 0};
    counters_.rx_packets++;
    return true;
  }
  counters_.rx_no_frame++;
  return false;
}

bool SoftDriver::Publish() {
  if (rx_shown_ == rx_pos_) return false;
  StoreRelease(rings_->rx.producer, rx_pos_);    // [I1]: first what shows the work
  StoreRelease(rings_->fill.consumer, rx_pos_);  // [I1]
  rx_shown_ = rx_pos_;
  FullFence();  // [F2] against SoftVi::Arm(): it sees the packets, or we see that it sleeps
  return LoadRelaxed(rings_->watched) != 0 && Exchange(rings_->watched, 0u) != 0;
}

uint32_t SoftDriver::Peek(SoftPacket* out, uint32_t max) {
  const uint32_t uncollected = tx_pos_ - LoadAcquire(rings_->completion.consumer);  // [I1]
  uint32_t count = std::min(Ahead(rings_->tx.producer, tx_pos_), max);
  count = uncollected <= kSoftSlots ? std::min(count, kSoftSlots - uncollected) : 0;
  for (uint32_t i = 0; i < count; i++) {
    const xdp_desc& slot = rings_->tx_slots[(tx_pos_ + i) & kMask];
    const uint64_t addr = LoadRelaxed(slot.addr);
    const uint32_t bytes = LoadRelaxed(slot.len), options = LoadRelaxed(slot.options);
    const uint32_t off = addr & (kFrameBytes - 1);
    const uint8_t* const frame = FrameAt(addr);
    // Packets of more than one frame are not offered (kCapMultiBuffer).
    const bool good = frame != nullptr && bytes <= kFrameBytes - off && options == 0;
    if (!good) counters_.bad_descriptors++;
    out[i] = {good ? frame + off : nullptr, good ? bytes : 0};
    // Seen only when Complete() says so.
    StoreRelaxed(rings_->completion_slots[(tx_pos_ + i) & kMask], addr);
  }
  return count;
}

void SoftDriver::Complete(uint32_t count) {
  tx_pos_ += count;
  counters_.tx_packets += count;
  StoreRelease(rings_->completion.producer, tx_pos_);  // [I1]
  StoreRelease(rings_->tx.consumer, tx_pos_);          // [I1]
}

bool SoftDriver::HasTx() const { return Ahead(rings_->tx.producer, tx_pos_) != 0; }

void SoftDriver::SetAsleep(bool asleep) {
  StoreRelaxed(rings_->tx.flags, asleep ? uint32_t{XDP_RING_NEED_WAKEUP} : 0u);
}

void SoftDriver::SetLink(bool up) { StoreRelaxed(rings_->state, up ? kViUp : kViDown); }

}  // namespace postern
