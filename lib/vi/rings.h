// SPDX-License-Identifier: Apache-2.0
// rings.h - a VI over four rings for each queue, as AF_XDP lays them out; whose, is the back end's.
//
// Each ring has two positions, free-running 32-bit counts, and a power of two of slots. We produce
// into fill and tx and consume from rx and completion; the driver does the opposite.
//
//      consumer             producer          slot of position p: p & mask
//   ...| unread slots ...... | free slots ...
//
// A position that we write is released after the slots (what is in them comes first), one that the
// driver writes is acquired before them: [I1]. Nothing is cached: our own position is read back
// from the ring, since another process may have moved it when it had the lock.
//
// Publishing into a ring, in steps between which the process may die:
//
//   1. the slots behind the producer are written          no reader looks there
//   2. intent = {producer, count}                         from here on Recover() knows the frames
//   3. owner[] of each says that it is the VI's
//   4. producer += count                                  from here on it is
//   5. intent.count = 0
//
// Recover() compares the producer with the intent: before step 4 they are the engine's again. In
// the other direction owner[] changes first, then the consumer: a frame that is still in the ring
// is the VI's whatever owner[] says.
#pragma once
#include <linux/if_xdp.h>

#include "vi/packet_area.h"
#include "vi/vi.h"

namespace postern {

// The multi-buffer bit of xdp_desc::options (Linux 6.6). Where driver and VI are both ours
// (kCapLarge), the upper half has ViTx::segment.
inline constexpr uint32_t kDescMore = 1;
inline constexpr uint32_t kDescSegmentShift = 16;

// One ring as this process has it mapped.
template <typename Slot>
struct Ring {
  uint32_t* producer = nullptr;
  uint32_t* consumer = nullptr;
  uint32_t* flags = nullptr;
  Slot* slots = nullptr;
  uint32_t mask = 0;

  uint32_t size() const { return mask + 1; }
  Slot& At(uint32_t pos) const { return slots[pos & mask]; }
  // For the consumer. A count beyond the ring would be the driver's mistake: nothing is believed.
  uint32_t Filled() const {
    const uint32_t n = LoadAcquire(*producer) - LoadRelaxed(*consumer);  // [I1] of the slots
    return n <= size() ? n : 0;
  }
  // For the producer.
  uint32_t Room() const {
    const uint32_t n = LoadRelaxed(*producer) - LoadAcquire(*consumer);  // [I1]: they were read
    return n <= size() ? size() - n : 0;
  }
};

struct QueueRings {
  Ring<uint64_t> fill, completion;
  Ring<xdp_desc> rx, tx;
};

class RingVi : public Vi {
 public:
  pstn_vi& shared() override { return *shared_; }
  uint32_t Receive(ViRx* rx, uint32_t max) override;
  uint32_t RefillRoom() override;
  uint32_t Refill(const uint32_t* frames, uint32_t count) override;
  uint32_t SendRoom(uint32_t queue) override;
  uint32_t Send(const ViTx* tx, uint32_t count) override;
  uint32_t Completed(uint32_t* frames, uint32_t max) override;
  bool Pending() override;
  void Recover() override;
  bool Validate(uint8_t* seen) override;

 protected:
  ~RingVi() = default;
  // `vi`: which of the area's. False: there is no such VI, or its queues are none.
  bool Bind(Area& area, uint32_t vi);

  Area* area_ = nullptr;
  pstn_vi* shared_ = nullptr;
  uint32_t vi_ = 0;
  uint32_t queue_count_ = 0;
  QueueRings rings_[kViQueues];

 private:
  static uint32_t Whole(const Ring<xdp_desc>& ring, uint32_t at, uint32_t count);
  uint32_t ReceiveFrom(uint32_t queue, ViRx* rx, uint32_t max);
  uint32_t RefillOne(uint32_t queue, const uint32_t* frames, uint32_t count);
  uint32_t SendOn(uint32_t queue, const ViTx* tx, uint32_t count);
  uint32_t CompletedOn(uint32_t queue, uint32_t* frames, uint32_t max);
  bool Sendable(const ViTx& tx) const;
  bool ValidateOne(const QueueRings& r, uint8_t* seen) const;
};

}  // namespace postern
