// top_command.h - `posternctl top`: rates of stacks and sockets, on a screen that is renewed.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

namespace postern::ctl_command {

struct TopRequest {
  uint32_t interval_sec = 2;
  uint32_t count = 0;  // 0: until it is ended
  bool batch = false;  // text that follows text; so it is where standard output is no terminal
  bool json = false;   // a line of JSON each time
  bool all = false;    // of all users' posternds (root)
  std::string user;    // only those of this user's
};

// False: no posternd runs that could be asked.
bool ShowTop(const std::string& runtime_dir, const TopRequest& request);

}  // namespace postern::ctl_command
