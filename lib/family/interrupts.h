// SPDX-License-Identifier: Apache-2.0
// interrupts.h - signals (installed by the preload layer).
#pragma once

#include "family/family.h"

namespace postern {

// Handlers without SA_RESTART that ran in this thread: a wait that sees it change returns EINTR.
extern constinit thread_local uint32_t t_interrupts __attribute__((tls_model("initial-exec")));
// All handlers that ran in it: a wait with an end of its own (SO_SNDTIMEO) returns EINTR for each.
extern constinit thread_local uint32_t t_handlers __attribute__((tls_model("initial-exec")));
// A call takes one when it begins, so that a signal that comes before its wait counts as well.
class Interrupts {
 public:
  bool Ends(bool timed) const { return timed ? t_handlers != all_ : t_interrupts != some_; }

 private:
  uint32_t some_ = t_interrupts, all_ = t_handlers;
};
// The futex on which this thread is about to sleep; a handler sets kNudge in it, and forgets it.
extern constinit thread_local uint32_t* t_sleep_word __attribute__((tls_model("initial-exec")));
// Or the waiter; a handler rings its bell.
struct Sleeping {
  Family& fam;
  uint32_t waiter;
};
extern constinit thread_local const Sleeping* t_sleeping __attribute__((tls_model("initial-exec")));
inline constexpr uint32_t kNudge = 0x40000000u;

}  // namespace postern
