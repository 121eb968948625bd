// tap.h - the interface that the kernel has in place of the card: a TAP.
// SPDX-License-Identifier: Apache-2.0
//
// It carries the addresses; what no filter takes goes into it, and what the kernel sends comes out.
// The TAP stays when the driver ends, with its addresses and routes, so that the next driver finds
// it: `ip link del` takes it away.
#pragma once
#include <cstdint>
#include <string>

#include "../posternd/kit/fd.h"
#include "kernel_side.h"

namespace postern::softnic {

using daemon::UniqueFd;

class Tap final : public KernelSide {
 public:
  // In the network namespace that we are in. 0 or -errno; EBUSY: another driver has it.
  int Open(const std::string& name, const uint8_t (&mac)[6], uint32_t mtu);

  int fd() const override { return fd_.get(); }
  bool was_there() const override { return was_there_; }
  bool has_copies() const override { return false; }
  void SetCarrier(bool on) const override;
  uint32_t Read(uint8_t* frame, uint32_t max) const override;
  bool Write(const uint8_t* frame, uint32_t bytes, bool may_be_partial) const override;

 private:
  UniqueFd fd_;
  bool was_there_ = false;
};

}  // namespace postern::softnic
