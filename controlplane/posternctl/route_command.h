// route_command.h - posternctl route: what the control plane's tables answer.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace postern::ctl_command {

// words: as in `ip route get`: ADDRESS [from ADDRESS] [oif NAME] [mark N] [uid N] [tos N] [proto N]
// [sport N] [dport N]. What the program exits with: 0; 2 if there is no way, or it is undecided.
int RouteGet(const std::string& runtime_dir, const std::vector<std::string>& words, bool json);

}  // namespace postern::ctl_command
