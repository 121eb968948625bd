// ss_command.h - `posternctl ss`: sockets, and the path that each one takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace postern::ctl_command {

struct SsRequest {
  uint32_t pid = 0;  // 0: of all processes
  bool all = false;  // of all users' posternds (root)
  std::string user;  // only those of this user's
  bool info = false, memory = false, extended = false, no_header = false, json = false;
  std::vector<std::string> filter;
};

// False: no posternd runs that could be asked.
bool ShowSs(const std::string& runtime_dir, const SsRequest& request);

}  // namespace postern::ctl_command
