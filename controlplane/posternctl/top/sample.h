// sample.h - what `posternctl top` shows: two looks at the posternds, and what has changed between
// them, as rates.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../line/ask.h"

namespace postern::ctl_command {

struct StackLook {
  std::string user, comm;  // comm: of its first process
  uint32_t processes = 0, sockets = 0, link_groups = 0;
  uint64_t memory_bytes = 0;
  std::map<std::string, uint64_t> counters;                    // bytes of open connections included
  std::map<std::pair<int64_t, uint64_t>, uint64_t> cpu_ticks;  // by pid and when it was started
};
struct SocketLook {
  std::string path, local, peer, process;
  uint64_t received = 0, sent = 0;
};
struct Look {
  double at_sec = 0;                          // of a clock that only goes forward
  std::map<std::string, StackLook> stacks;    // by id
  std::map<std::string, SocketLook> sockets;  // by what names one: process, descriptor, addresses
  uint32_t daemons = 0, silent = 0;           // that answered; that did not
  bool has_sockets = true;                    // false: there were too many to ask for
};

// From posternd's reports, of a user's. `cpu` gives a process's {start, ticks of CPU}; {0, 0}: it
// can't be read.
using CpuOf = std::pair<uint64_t, uint64_t> (*)(int64_t pid);
void AddStatus(Look& look, const Json& status, const std::string& user, CpuOf cpu);
void AddSockets(Look& look, const Json& report);

// A second's worth of what changed. One that was not there at the first look began after it.
struct StackRates {
  std::string id;
  const StackLook* now = nullptr;
  double received = 0, sent = 0, connections = 0, sleeps = 0, wakes = 0, spins = 0, fallbacks = 0;
  double cpu = 0;  // of one CPU, in per cent
};
struct SocketRates {
  const SocketLook* now = nullptr;
  double received = 0, sent = 0;
};
enum class Order : uint8_t { kBytes, kConnections, kCpu, kSleeps, kSockets };
// What has the most comes first. The look `now` outlives what is returned.
std::vector<StackRates> RatesOfStacks(const Look& before, const Look& now, Order order);
// Those with traffic.
std::vector<SocketRates> RatesOfSockets(const Look& before, const Look& now);

}  // namespace postern::ctl_command
