// selftest_sim.h - a handshake between two hosts that are both in this process: real machines
// (smcd/clc_fsm.h) and a real TCP connection over loopback, a simulated device on either side.
// SPDX-License-Identifier: Apache-2.0
//
// Time is simulated, too: when both ends wait and nothing is under way, the next deadline has come.
#pragma once
#include <map>
#include <memory>

#include "../selftest.h"
#include "../selftest_io.h"
#include "smcd/clc_fsm.h"

namespace postern::ctl_command::selftest {

// A host's buffers by token. Two hosts can have the same name and still different memory.
struct SimMemory {
  struct Buffer {
    const void* owner = nullptr;  // whose handshake it was made for
    enum class Word : uint8_t { kOpen, kAttached, kWithdrawn } word = Word::kOpen;
  };
  std::map<uint64_t, Buffer> buffers;
};

enum class SimEnd : uint8_t { kLives, kCloses, kResets, kSilent };

// What goes wrong at one end.
struct SimFault {
  uint32_t start_diagnosis = 0;     // doesn't want SMC
  uint32_t register_diagnosis = 0;  // what its device says
  uint32_t attach_diagnosis = 0;
  bool attaches_anything = false;                   // does not ask whether it is there
  bool slow_register = false, slow_attach = false;  // its device never answers
  SimEnd end = SimEnd::kLives;
  unsigned after_events = 0;        // when: so many events of the machine have been seen
  uint32_t decline_instead = 0;     // says this in place of ...
  unsigned instead_of_message = 1;  // ... its message with this number
  uint64_t token = 0;               // instead of one that no other side has
  Bytes garbage;                    // sent in place of that message
};

struct SimSide {
  ClcLocal local;
  std::shared_ptr<SimMemory> memory;
  SimFault fault;
};

struct SimPlan {
  SimSide client, server;
};

// Two healthy stacks of one host.
SimPlan HealthyPlan();
Outcome Simulate(const SimPlan& plan);

}  // namespace postern::ctl_command::selftest
