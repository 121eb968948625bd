// SPDX-License-Identifier: Apache-2.0
// soft.h - a VI whose driver is another process: the program's half.
//
// postern-softnic drives a network card by DPDK, and gives each stack the packets of its filters
// through rings in shared memory (soft_rings.h). posternd hands the rings over; there is nothing
// here that takes privilege, and no system call but to wake a sleeper.
//
// A driver that dies is a card that is reset: packets under way are lost, the connections' timers
// repeat them, and the next driver goes on with the same rings. The VI is lost only if posternd,
// which keeps the driver's end of the bell for it, has died as well.
#pragma once
#include "vi/soft/soft_rings.h"

namespace postern {

class SoftVi final : public RingVi {
 public:
  SoftVi() = default;
  SoftVi(const SoftVi&) = delete;
  SoftVi& operator=(const SoftVi&) = delete;

  // VI number `vi` of the area, over the rings in that memfd, which is this object's from here on
  // and closed by Detach(). `bell` stays the caller's. 0 or -errno, and then both do.
  int Attach(Area& area, uint32_t vi, int rings_fd, int bell);
  void Detach();
  // The same over memory that its caller owns: for tests.
  bool View(Area& area, uint32_t vi, SoftRings& rings, int bell);
  int rings_fd() const { return rings_fd_; }  // to be shown to a new posternd

  ViStatus Kick() override;
  ViStatus Check() override;
  int Fd() override { return bell_; }
  void Arm() override;

 private:
  SoftRings* soft_ = nullptr;
  int rings_fd_ = -1;
  int bell_ = -1;
};

}  // namespace postern
