// SPDX-License-Identifier: Apache-2.0
// vi_trace.h - a VI over another that tells of each packet in one line of text.
//
//   0.000125 < 10.77.0.1.40000 > 10.77.0.2.80 tcp S seq 1000 ack 0 win 64240 len 0
//   0.000130 > fd77::2.80 > fd77::1.40000 tcp SA seq 7 ack 1001 win 65535 len 0 vlan 5
//
// "<" came in, ">" goes out. What it can't read is told by its lengths and types: it is for looking
// at, so it believes nothing and needs nothing of lib/wire.
#pragma once
#include "vi/decorator/vi_forward.h"
#include "vi/packet_area.h"

namespace postern {

inline constexpr uint32_t kTraceLineMax = 256;
// The line of a frame, without its time, ending in zero. Returns its length.
uint32_t DescribeFrame(const uint8_t* frame, uint32_t bytes, char (&line)[kTraceLineMax]);

class TraceVi final : public ForwardVi {
 public:
  using Clock = uint64_t (*)(void* context);
  using Sink = void (*)(void* context, const char* line);  // without a line's end

  TraceVi(Vi& inner, Area& area, Clock clock, Sink sink, void* context)
      : ForwardVi(inner), area_(area), clock_(clock), sink_(sink), context_(context) {}

  uint32_t Receive(ViRx* rx, uint32_t max) override;
  uint32_t Send(const ViTx* tx, uint32_t count) override;

 private:
  void Tell(char direction, uint32_t frame, uint32_t off, uint32_t bytes);

  Area& area_;
  const Clock clock_;
  const Sink sink_;
  void* const context_;
};

}  // namespace postern
