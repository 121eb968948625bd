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

struct SegmentIn {
  Seq seq, ack;
  uint16_t window = 0;  // as on the wire
  uint16_t urgent = 0;
  uint8_t flags = 0;
  Ecn ecn = Ecn::kNotEct;
  SegmentOptions options;
  const uint8_t* data = nullptr;
  uint32_t bytes = 0;   // payload
  uint32_t packet = 0;  // the Host's name for the buffer that `data` lies in
};

// Where a byte of the program's stream lies; only the Host knows how.
struct Cursor {
  uint64_t ring = 0;
  uint32_t off = 0, done = 0;
};

struct SegmentOut {
  Seq seq, ack;
  uint16_t window = 0;
  uint16_t urgent = 0;
  uint8_t flags = 0;
  Ecn ecn = Ecn::kNotEct;
  SegmentOptions options;
  Cursor from;         // payload in the program's stream
  uint32_t bytes = 0;  // of it
  bool probe = false;  // a byte of its own choice in place of the stream's (keepalive of old peers)
};

}  // namespace postern::tcp
