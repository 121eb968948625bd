// kernel_names.h - addresses and state of sockets that the kernel serves, by process and fd.
// SPDX-License-Identifier: Apache-2.0
//
// Made for one report: the kernel's table is read at the first question, and only then, since it
// can be long.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>

namespace postern::daemon {

class KernelNames {
 public:
  struct Entry {
    std::string local, peer, state;
    uint64_t inode = 0;
    uint32_t recv_queue = 0, send_queue = 0;
    // With details, of a connection:
    bool has_info = false;
    uint32_t rtt_us = 0, cwnd = 0;
    uint64_t bytes_acked = 0, bytes_received = 0;
  };
  // `details`: the kernel is asked for each connection's state, too.
  explicit KernelNames(bool details = false) : details_(details) {}
  // Null when `fd` of `pid` is no TCP socket of our network namespace, or is not connected.
  const Entry* Find(pid_t pid, uint32_t fd);

 private:
  void Load(uint8_t family);

  const bool details_;
  bool loaded_ = false;
  std::unordered_map<uint64_t, Entry> by_inode_;
};

}  // namespace postern::daemon
