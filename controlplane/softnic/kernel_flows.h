// kernel_flows.h - what the kernel has between two ends (sock_diag).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <cstdint>

#include "../posternd/kit/fd.h"
#include "steer.h"

namespace postern::softnic {

class KernelFlows {
 public:
  // In the network namespace that we are in. 0 or -errno.
  int Open();
  // A system call; so of many in a second only some are asked, and the others have none: else
  // segments of no connection, which any host can send, would keep the driver from its work. The
  // beginnings of connections are counted for themselves.
  Steer::Holder Ask(const pstn_xdp_flow& flow, Steer::Why why);

 private:
  using Clock = std::chrono::steady_clock;
  daemon::UniqueFd line_;
  Clock::time_point window_{};
  uint32_t asked_[2] = {};  // in this window, by Why
  uint32_t seq_ = 0;
};

}  // namespace postern::softnic
