// report.h - what posternctl shows, as JSON (the schema is in docs/man/posternctl.1).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <string>

#include "../directory/directory.h"
#include "../kit/fd.h"
#include "../registry/registry.h"

namespace postern::daemon {

std::string StatusReport(const Registry& registry, const Directory& directory, uint64_t uptime_sec);
// Every fd of every process that means an accelerated socket, or one that could have been.
// `pid` 0: of all.
std::string SocketReport(const Registry& registry, pid_t pid);
std::string ExplainReport(const Registry& registry, pid_t pid);

// Read-only for the process that gets it.
UniqueFd ToMemfd(const std::string& text);

}  // namespace postern::daemon
