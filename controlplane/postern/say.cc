// say.cc - messages and exit of the wrapper.
// SPDX-License-Identifier: Apache-2.0
#include "say.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace postern::wrapper {

void Warn(const std::string& text) {
  const std::string line = "postern: " + text + "\n";
  // One write, so that lines of several wrappers do not mix. Nothing is left to do when it fails.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

void Die(ExitCode code, const std::string& text) {
  Warn(text);
  exit(code);
}

std::string ErrorText(int error) { return strerror(error); }

}  // namespace postern::wrapper
