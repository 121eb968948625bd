// target.h - what the command is: where in PATH, and whether a preloaded library can reach it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

// The file that execvp would run; empty when there is none.
[[nodiscard]] std::string FindProgram(const std::string& command);

// Why the dynamic loader will not preload libpostern.so into this program (through up to a few #!
// lines); empty when it will.
[[nodiscard]] std::string WhyNotPreloadable(const std::string& path);

}  // namespace postern::wrapper
