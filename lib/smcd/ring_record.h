// SPDX-License-Identifier: Apache-2.0
// ring_record.h - where a ring's records lie: for ring.cc and ring_read.cc, which write and read
// them in order, and ring_ahead.cc, which looks further.
#pragma once
#include "base/atomic.h"
#include "smcd/ring.h"

namespace postern {

// Where the payload of a record starts: behind the header word, so that a small message is one
// line; in a line of its own when it is long, because large copies want an aligned destination.
inline constexpr uint32_t kLongRecord = 2048;
inline uint32_t PayloadOff(uint64_t len) {
  return len < kLongRecord ? PSTN_REC_HDR : PSTN_REC_ALIGN;
}
inline uint32_t RecordBytes(uint64_t len) {
  return static_cast<uint32_t>((len + PayloadOff(len) + PSTN_REC_ALIGN - 1) / PSTN_REC_ALIGN *
                               PSTN_REC_ALIGN);
}

inline constexpr uint32_t kLine = PSTN_REC_ALIGN;
inline uint64_t& HeaderAt(uint8_t* ring, uint32_t off) {
  return *reinterpret_cast<uint64_t*>(ring + off);
}

// Where the reader stands; it may have died while it went over to another ring.
struct ReaderPlace {
  uint64_t ring;
  uint32_t off, rec_done;
};
inline ReaderPlace ReaderAt(const pstn_rx& rx) {
  const uint64_t ring = LoadAcquire(rx.ring);  // [R6]
  if ((ring & PSTN_RING_F_FRESH) != 0) return {ring & ~PSTN_RING_F_FRESH, 0, 0};
  const uint64_t at = LoadAcquire(rx.at);  // [R6]
  return {ring, static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)};
}

enum class Look : uint8_t { kRecord, kEmpty, kViolation, kNoMemory };

struct ReadPlace {
  uint64_t ring;
  uint32_t off;
};

// What is at `p` in the peer's ring, following marks and changes of ring. On kRecord `len` is the
// checked length of what lies in `ring`.
Look LookAt(const ConnEnd& e, ReadPlace& p, uint64_t& len, RingPlace& ring);

}  // namespace postern
