// help.h - texts that are made from the option schema.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

std::string UsageText();   // one line, for usage errors
std::string HelpText();    // postern --help
std::string TuningText();  // docs/tuning.md

}  // namespace postern::wrapper
