// SPDX-License-Identifier: Apache-2.0
// soft_driver.h - the driver's half of a soft VI: packets into a program's frames and out of them.
//
// The driver serves programs of many users, and believes none of them. Everything that it reads
// here the program may change at any time, from any of its processes: each word is loaded once,
// checked, and the copy is used. What a frame number may be is bounded by the area, an offset and a
// length by the frame, a position by the ring: so a hostile program can have its own packets
// spoiled, or send any bytes (as with AF_XDP), and nothing else. The owner table of the area is the
// program's own book-keeping, which it could forge: it is not looked at.
//
//   Peek() .. Complete()      packets to be sent: seen, then done with
//   Deliver() .. Publish()    packets that have come: copied, then shown
//
// Where the driver stands it knows itself; in the rings it only says so (soft_rings.h tells how
// the next driver goes on). One thread.
#pragma once
#include "vi/soft/soft_rings.h"

namespace postern {

// Of the program's memory: it may change under the reader's eyes.
struct SoftPacket {
  const uint8_t* data;
  uint32_t bytes;  // 0: the descriptor was none of the area's; there is nothing to send
};

class SoftDriver {
 public:
  struct Counters {
    uint64_t rx_packets, tx_packets;
    uint64_t rx_no_frame;  // lost: the program has not given any, or does not fetch
    uint64_t rx_too_long;
    uint64_t bad_descriptors;
  };

  SoftDriver() = default;
  // `frames`: those of the area, mapped as long as this is used. Goes on where another driver has
  // left off, or died.
  void Attach(SoftRings& rings, uint8_t* frames, uint32_t frame_count);

  // False: lost, and counted.
  bool Deliver(const uint8_t* data, uint32_t bytes);
  // Whether the program is to be rung.
  [[nodiscard]] bool Publish();

  // The next packets to be sent, at most `max`, from the first one that is not completed.
  uint32_t Peek(SoftPacket* out, uint32_t max);
  // The first `count` of those: they may have been dropped.
  void Complete(uint32_t count);
  bool HasTx() const;

  // Before it sleeps, with a look at HasTx() afterwards; and when it is up.
  void SetAsleep(bool asleep);
  void SetLink(bool up);
  const Counters& counters() const { return counters_; }

 private:
  // So many slots from `from` on that the program says it has published; 0 if it lies.
  static uint32_t Ahead(const uint32_t& producer, uint32_t from);
  uint8_t* FrameAt(uint64_t addr) const;

  SoftRings* rings_ = nullptr;
  uint8_t* frames_ = nullptr;
  uint32_t frame_count_ = 0;
  uint32_t rx_pos_ = 0;    // of the fill ring and of the rx ring
  uint32_t rx_shown_ = 0;  // as far as it is published
  uint32_t tx_pos_ = 0;    // of the tx ring and of the completion ring
  Counters counters_ = {};
};

}  // namespace postern
