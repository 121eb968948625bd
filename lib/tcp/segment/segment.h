// SPDX-License-Identifier: Apache-2.0
// segment.h - a TCP segment as a value: what came in, what goes out. lib/wire makes bytes of it.
#pragma once
#include <cstdint>

#include "tcp/segment/seq.h"

namespace postern::tcp {

inline constexpr uint8_t kFin = 0x01, kSyn = 0x02, kRst = 0x04, kPsh = 0x08, kAck = 0x10,
                         kUrg = 0x20, kEce = 0x40, kCwr = 0x80;

// The two bits of the IP header (RFC 3168).
enum class Ecn : uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

struct SackBlock {
  Seq left, right;  // right: the one behind the last
};
inline constexpr uint32_t kSackBlocksMax = 4;  // 3 beside timestamps

// Options that mean something to us; all others are skipped when read (RFC 9293, 3.1).
struct SegmentOptions {
  uint16_t mss = 0;          // 0: not there
  uint8_t window_scale = 0;  // as sent: may be more than 14 (RFC 7323, 2.3)
  bool has_window_scale = false;
  bool sack_permitted = false;
  bool has_timestamps = false;
  uint32_t ts_value = 0, ts_echo = 0;
  uint32_t sack_count = 0;
  SackBlock sack[kSackBlocksMax];
  bool has_smc = false;  // experimental option of SMC (RFC 7609); abi/syn_option.h
};

// A piece of a run's payload: one segment's, or what one buffer has of a large packet's.
struct RunPart {
  const uint8_t* data;
  uint32_t bytes;
};

// Of a segment, or of a *run*: several that came in a row, one behind the other, and differ in
// nothing but their numbers and the last one's PSH. A run is taken in one step, and acknowledged as
// one (Linux: what GRO hands to TCP). The Host makes one only where MayRun() (tcp.h) allows it.
struct SegmentIn {
  Seq seq, ack;
  uint16_t window = 0;  // as on the wire
  uint16_t urgent = 0;
  uint8_t flags = 0;
  Ecn ecn = Ecn::kNotEct;
  SegmentOptions options;
  const uint8_t* data = nullptr;  // of a run: the first one's
  uint32_t bytes = 0;             // payload; of a run: of all together
  uint32_t packet = 0;            // the Host's name for the buffer that `data` lies in
  uint32_t segments = 1;          // of a run: how many the peer has sent
  uint32_t size = 0;              // of a run: of each of them but the last one, which has the rest
  uint32_t parts = 0;             // of a run: where their payload lies; they need not end where
  const RunPart* run = nullptr;   // segments end. Null: it is none
};

// `take(data, bytes)` for what lies `skip` behind the first byte of a run, `bytes` of it. It says
// how many it took, and is not asked any more when that is less. How many all together.
template <typename Take>
uint32_t EachPart(const SegmentIn& run, uint32_t skip, uint32_t bytes, Take take) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < run.parts && taken < bytes; i++) {
    const RunPart& part = run.run[i];
    const uint32_t cut = skip < part.bytes ? skip : part.bytes;
    const uint32_t there = part.bytes - cut, left = bytes - taken;
    const uint32_t want = there < left ? there : left;
    skip -= cut;
    if (want == 0) continue;
    const uint32_t got = take(part.data + cut, want);
    taken += got;
    if (got < want) break;
  }
  return taken;
}

// The part of `s` that begins `skip` bytes behind its first one, as a segment of its own, but for
// its payload. What only the first one or the last one says, only that one has.
inline SegmentIn PartOf(const SegmentIn& s, uint32_t skip, bool is_last) {
  SegmentIn part = s;
  part.segments = 1;
  part.run = nullptr;
  if (!is_last) part.flags &= static_cast<uint8_t>(~(kFin | kPsh));
  if (skip == 0) return part;
  const uint32_t before = skip + ((s.flags & kSyn) != 0 ? 1 : 0);
  part.flags &= static_cast<uint8_t>(~(kSyn | kCwr));
  part.seq = s.seq + before;
  if ((s.flags & kUrg) == 0) return part;
  if (s.urgent > before)
    part.urgent = static_cast<uint16_t>(s.urgent - before);
  else
    part.flags &= static_cast<uint8_t>(~kUrg);
  return part;
}

// Where the last one of a run begins.
inline Seq LastSeqOf(const SegmentIn& s) {
  return s.run == nullptr ? s.seq : s.seq + (s.segments - 1) * s.size;
}
// What the peer takes for a full segment, as far as this one tells.
inline uint32_t SizeOf(const SegmentIn& s) { return s.run == nullptr ? s.bytes : s.size; }

// Where a byte of the program's stream lies; only the Host knows how.
struct Cursor {
  uint64_t ring = 0;
  uint32_t off = 0, done = 0;
};

// What leaves: a segment, or a *row* of them, one behind the other, which are alike but for their
// numbers and for PSH, which only the last one has. The Host cuts it, or its device does (EachOf).
struct SegmentOut {
  Seq seq, ack;
  uint16_t window = 0;
  uint16_t urgent = 0;
  uint8_t flags = 0;
  Ecn ecn = Ecn::kNotEct;
  SegmentOptions options;
  Cursor from;         // payload in the program's stream
  uint32_t bytes = 0;  // of it; of a row: of all together
  uint32_t size = 0;   // of each of a row; 0: it is none
  bool probe = false;  // a byte of its own choice in place of the stream's (keepalive of old peers)
};

// `put(segment)` for each of a row, until one says false. It moves `from` behind what it took.
template <typename Put>
bool EachOf(const SegmentOut& row, Put put) {
  SegmentOut one = row;
  one.size = 0;
  for (uint32_t left = row.bytes; left != 0; left -= one.bytes) {
    one.bytes = left < row.size ? left : row.size;
    one.flags = static_cast<uint8_t>(row.flags & (one.bytes != left ? ~kPsh : 0xff));
    const bool good = put(one);
    if (!good) return false;
    one.seq += one.bytes;
  }
  return true;
}

}  // namespace postern::tcp
