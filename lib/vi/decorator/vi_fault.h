// SPDX-License-Identifier: Apache-2.0
// vi_fault.h - a VI over another, behind a bad wire: what comes is lost, doubled, late, or wrong.
//
// It works on what is received; wrap both ends for both directions. Time is the caller's
// (SetNow()), chance is a seed's: the same calls give the same packets. A packet passes, in this
// order: loss, corruption, duplication, the rate's queue, delay. It is due at
//
//     max(now, when the wire is free) + bytes / rate + delay + jitter
//
// and packets come out in the order in which they are due; one that is reordered waits
// `reorder_delay_ns` more, so that later ones overtake it. Frames that wait are kFrameRx, so they
// are of this process: after its death they are found as lost. For tests.
#pragma once
#include "vi/decorator/vi_forward.h"
#include "vi/packet_area.h"

namespace postern {

// Chances in millionths.
struct FaultSettings {
  uint32_t loss = 0, duplicate = 0, reorder = 0, corrupt = 0;
  uint64_t delay_ns = 0, jitter_ns = 0;
  uint64_t reorder_delay_ns = 1'000'000;
  uint64_t bits_per_second = 0;     // 0: any rate
  uint32_t queue_bytes = 1u << 20;  // before the rate; what does not fit is dropped at its end
};

struct FaultCounts {
  uint64_t lost, duplicated, reordered, corrupted, dropped, passed;
};

class FaultVi final : public ForwardVi {
 public:
  FaultVi(Vi& inner, Area& area, uint64_t seed) : ForwardVi(inner), area_(area), seed_(seed) {}
  FaultSettings settings;  // may change at any time

  void SetNow(uint64_t now_ns) { now_ns_ = now_ns; }
  // When the next packet is due; UINT64_MAX: none waits. It may be in the past.
  uint64_t NextDue() const { return waiting_ != 0 ? heap_[0].due_ns : UINT64_MAX; }
  const FaultCounts& counts() const { return counts_; }

  uint32_t Receive(ViRx* rx, uint32_t max) override;
  bool Pending() override { return inner_.Pending() || NextDue() <= now_ns_; }

 private:
  struct Waiting {
    uint64_t due_ns, order;
    ViRx rx;
  };
  static constexpr uint32_t kWaitingMax = 8192;

  uint64_t Random();
  bool Happens(uint32_t millionths) { return Random() % 1'000'000 < millionths; }
  void Suffer(const ViRx& rx);
  void Enter(const ViRx& rx);
  void Double(const ViRx& rx);
  void Corrupt(const ViRx& rx);
  static bool Earlier(const Waiting& a, const Waiting& b);
  void Push(const Waiting& w);
  Waiting Pop();

  Area& area_;
  uint64_t seed_, now_ns_ = 0, free_ns_ = 0, order_ = 0;
  FaultCounts counts_{};
  uint32_t waiting_ = 0;
  Waiting heap_[kWaitingMax];
};

}  // namespace postern
