// explain.h - `posternctl explain PID`: whether a process is accelerated, why not, and what to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "../line/ask.h"

namespace postern::ctl_command {

// Whatever can be known of the process, from /proc and from all posternds that may be asked:
//   verdict  accelerated; idle: has the library, and no socket yet; not-accelerated; partly: the
//            kernel serves some of its connections; unknown; gone
//   why      one word, for a verdict that needs one
//   says, advice  sentences
//   known, sockets, fallbacks, comm, pid, running  as its posternd says
// Nothing is in it that was not seen.
Json ExplainProcess(const std::string& runtime_dir, uint32_t pid);

}  // namespace postern::ctl_command
