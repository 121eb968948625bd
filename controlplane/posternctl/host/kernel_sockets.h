// kernel_sockets.h - the kernel's TCP sockets as a process's network namespace has them, and which
// process holds one.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace postern::ctl_command {

struct KernelSocket {
  std::string local, peer;  // "10.0.0.1:80", as posternd writes them
  uint16_t local_port = 0, peer_port = 0;
  bool listens = false;
  uint64_t inode = 0;  // 0: no descriptor refers to it any more
};

// Those of the network namespace of `pid`, by /proc/PID/net.
std::vector<KernelSocket> SocketsSeenBy(pid_t pid);

// By inode: what /proc/PID/fd says, of each number that is a socket. Empty: none, or not to be
// seen.
std::map<uint64_t, int> SocketNumbersOf(pid_t pid);

}  // namespace postern::ctl_command
