// SPDX-License-Identifier: Apache-2.0
// run.h - a run while it is gathered: segments of one connection that came one behind the other.
#pragma once
#include "tcp/segment/segment.h"
#include "vi/vi.h"
#include "wire/packet/packet.h"

namespace postern::stack {

inline constexpr uint32_t kRunBytesMax = 65535;  // as large as a packet of IP's can be

struct Run {
  uint32_t count = 0;    // 0: none is being gathered
  uint32_t conn = 0;     // its index
  wire::Packet packet;   // the first one's headers
  tcp::SegmentIn first;  // what they say; `flags` and `bytes` of all
  tcp::RunPart parts[kViBatchMax];
  uint32_t frames[kViBatchMax];
};

// A large packet that has been read: what several segments in a row have in common, and where their
// payload lies.
struct LargePacket {
  wire::Packet packet;
  tcp::SegmentIn s;  // as if it were one; `run` is `parts`
  tcp::RunPart parts[kViBatchMax];
};

}  // namespace postern::stack
