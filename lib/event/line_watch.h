// SPDX-License-Identifier: Apache-2.0
// line_watch.h - for how long a thread sleeps without a look at whether posternd lives.
//
// A peer that dies can tell nobody; posternd does, so it is needed by those that sleep. Where it
// has died, too, the first sleeper that notices starts the next one, and tells it of the link
// groups. A poll() of several, and an event set with listeners, have the line among what they wait
// for; a thread that sleeps on something else looks after 10 s, then less and less often.
#pragma once
#include <algorithm>

#include "base/atomic.h"
#include "base/clock.h"
#include "control/posternd.h"
#include "family/family.h"

namespace postern {

class LineWatch {
 public:
  // kAtLine: the end of the line ends the sleep.
  enum class Sleeps : uint8_t { kElsewhere, kAtLine };
  LineWatch(Family& fam, Sleeps sleeps)
      : fam_(fam), first_ns_(sleeps == Sleeps::kElsewhere ? kLookNs : UINT64_MAX) {
    Begin(LoadRelaxed(fam.ctl_fd) < 0);
  }
  uint64_t left_ns() const { return look_.left_ns(); }
  // After a sleep. `listens`: clients wait for the line.
  void Look(bool listens = false) {
    const bool over = look_.left_ns() == 0;
    if (over || (listens && LoadRelaxed(fam_.ctl_fd) < 0)) CtlReconnect(fam_);
    if (const bool lost = LoadRelaxed(fam_.ctl_fd) < 0; lost != lost_) return Begin(lost);
    if (over) Wait(listens ? kAgainNs : std::min(2 * pause_ns_, kMostNs));
  }

 private:
  static constexpr uint64_t kLookNs = 10'000'000'000, kMostNs = 80'000'000'000;
  static constexpr uint64_t kAgainNs = 300'000'000;  // while there is no line
  void Begin(bool lost) {
    lost_ = lost;
    Wait(lost ? kAgainNs : first_ns_);
  }
  void Wait(uint64_t ns) {
    pause_ns_ = ns;
    look_ = ns == UINT64_MAX ? Deadline::Never() : Deadline::AfterNs(ns);
  }

  Family& fam_;
  uint64_t first_ns_, pause_ns_ = 0;
  bool lost_ = false;
  Deadline look_{};
};

}  // namespace postern
