// help.h - texts that are made from the option schema.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <getopt.h>

#include <string>

namespace postern::wrapper {

std::string UsageText();  // one line, for usage errors
// postern --help; `options` as getopt_long() has them, up to an entry without name
std::string HelpText(const option* options);
std::string TuningText();  // docs/tuning.md
// What completion is made from (packaging/completion.py): the options, and the keys of -o.
std::string CommandLineText(const option* options);

}  // namespace postern::wrapper
