// daemon.h - starts posternd on demand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

// What EnsureDaemon says where a limit or a sandbox is in the way.
inline constexpr char kNoProcessLeft[] =
    "posternd can't be started: no process is left (RLIMIT_NPROC)";
inline constexpr char kReadOnly[] = "posternd can't be started: its directory is read-only";

// Makes sure that a posternd accepts connections in `runtime_dir`, starting `posternd` (absolute
// path) when none does, and waits a bounded time for it. Empty when there is one now; else what
// went wrong, which is no reason not to run the command: without posternd its sockets use the
// kernel.
//
// Two wrappers at once may both start one; posternd itself sees to it that only one stays.
[[nodiscard]] std::string EnsureDaemon(const std::string& posternd, const std::string& runtime_dir);

}  // namespace postern::wrapper
