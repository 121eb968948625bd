// report.h - what posternctl shows, as JSON (the schema is in docs/man/posternctl.1).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <map>
#include <string>

#include "../directory/directory.h"
#include "../kit/fd.h"
#include "../registry/registry.h"

namespace postern::daemon {

// What posternd knows of itself.
struct DaemonState {
  uint64_t uptime_sec, listeners_refused;               // by the broker
  bool has_broker, gives_paths;                         // the policy lets memory be shared
  const std::map<std::string, std::string>& vi_errors;  // by interface: why it could not be had
};
std::string StatusReport(const Registry& registry, const Directory& directory,
                         const DaemonState& state);
// Every fd of every process that means an accelerated socket, or one that could have been.
// `pid` 0: of all.
// `details`: what else is known of each.
std::string SocketReport(const Registry& registry, pid_t pid, bool details);
std::string ExplainReport(const Registry& registry, pid_t pid);

// Read-only for the process that gets it.
UniqueFd ToMemfd(const std::string& text);

}  // namespace postern::daemon
