// metrics.h - `posternctl metrics`: counters and gauges in Prometheus' text format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace postern::ctl_command {

// Of the user's posternd; of root's question, of all users'. One page; `postern_up` says which
// posternds have answered. False: none has.
bool ShowMetrics(const std::string& runtime_dir);

}  // namespace postern::ctl_command
