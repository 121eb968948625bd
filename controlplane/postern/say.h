// say.h - how the wrapper talks: one line to standard error, and exit codes like those of env(1).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

enum ExitCode : int {
  kExitUsage = 2,            // wrong options or values
  kExitOurselves = 125,      // Postern's own files or directories are not as they must be
  kExitNotExecutable = 126,  // the command was found and cannot be run
  kExitNotFound = 127,       // no such command
};

// Both write "postern: TEXT" as one line.
void Warn(const std::string& text);
[[noreturn]] void Die(ExitCode code, const std::string& text);

// strerror, as a string that owns its text.
std::string ErrorText(int error);

}  // namespace postern::wrapper
