// show.h - reports for people.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ostream>
#include <string>

#include "line/ask.h"

namespace postern::ctl_command {

void ShowStatus(std::ostream& out, const Json& status);
void ShowFindings(std::ostream& out, const Json& report);
void ShowExplanation(std::ostream& out, const Json& report);

}  // namespace postern::ctl_command
