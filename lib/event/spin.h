// SPDX-License-Identifier: Apache-2.0
// spin.h - looking again and again before a sleep.
#pragma once

#include "base/atomic.h"
#include "base/clock.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/turn.h"

namespace postern {

// Whether this thread's next wait may spin.
bool SpinAllowed(Family& fam);
// What a spin has come to (wait.cc).
void SpinEnded(Family& fam, bool found, uint64_t took_ns);
// One look at a set has found so many events, at least one.
void SpinEarned(uint32_t events);
// Another thread had been waiting for this CPU, and has had it. `took_ns`: until then.
void SpinLost(Family& fam, bool found, uint64_t took_ns);

// Spins while `ready()` is false, as options and the load of this CPU allow. True: it became ready.
template <typename Ready>
bool Spin(Family& fam, Ready ready, const Deadline& until) {
  if (!SpinAllowed(fam)) return ready();
  const uint64_t start = MonotonicNs();
  const uint64_t budget = static_cast<uint64_t>(fam.opt.spin_usec) * 1000u;
  const uint32_t interrupts = t_interrupts;
  uint64_t now = start;
  do {
    for (int i = 0; i < 40; i++) {
      if (ready()) {
        SpinEnded(fam, true, now - start);
        return true;
      }
      CpuRelax();
      if (i % 4 == 0) WireTurn(fam);
    }
    if (t_interrupts != interrupts) return false;
    if (fam.opt.spin_yield != 0 && now - start > 4000) {
      // Another thread that wants this CPU gets it. If one did, spinning only stands in the way.
      uint64_t before = MonotonicNs();
      (void)sys::Call(SYS_sched_yield);
      now = MonotonicNs();
      // The keeper's look, each millisecond, does not count.
      if (now - before > (LoadRelaxed(fam.wire_on) != 0 ? 30'000u : 8'000u)) {
        const bool found = ready();
        SpinLost(fam, found, before - start);
        return found;
      }
    } else {
      now = MonotonicNs();
    }
  } while (now - start < budget && now < until.at_ns);
  const bool found = ready();
  SpinEnded(fam, found, now - start);
  return found;
}

}  // namespace postern
