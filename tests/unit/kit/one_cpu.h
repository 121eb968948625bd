// one_cpu.h - the process and its children run on one CPU.
// SPDX-License-Identifier: Apache-2.0
//
// A test that steps a child switches between two processes at each instruction: between two CPUs
// each switch wakes an idle one, which takes three times as long as a switch on one.
#pragma once
#include <sched.h>

namespace postern {

class OneCpu {
 public:
  OneCpu() {
    if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    const int here = sched_getcpu();
    if (here < 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(here), &one);
    pinned_ = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  ~OneCpu() {
    if (pinned_) (void)sched_setaffinity(0, sizeof(before_), &before_);
  }
  OneCpu(const OneCpu&) = delete;
  OneCpu& operator=(const OneCpu&) = delete;

 private:
  cpu_set_t before_;
  bool pinned_ = false;
};

}  // namespace postern
