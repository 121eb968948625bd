// host_doctor.h - `posternctl doctor`: what on this host Postern needs, and lacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "../line/ask.h"

namespace postern::ctl_command {

// "findings": a list of {"what", "state": "good", "note" or "bad", "says", "advice"}.
Json ExamineHost(const std::string& runtime_dir);
// Whether one of them is bad.
bool HasBad(const Json& report);

}  // namespace postern::ctl_command
