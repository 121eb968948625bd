// target.cc - looks the command up, and the interpreters of scripts.
// SPDX-License-Identifier: Apache-2.0
#include "target.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include "../program/program_kind.h"

namespace postern::wrapper {
namespace {

constexpr int kScriptDepthMax = 4;  // the kernel's own limit for scripts run by scripts

bool IsRunnable(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

// The interpreter of "#!/path argument"; empty when the file is no script.
std::string ScriptInterpreter(std::ifstream& file) {
  std::string line;
  if (!std::getline(file, line) || line.compare(0, 2, "#!") != 0) return "";
  std::istringstream words(line.substr(2));
  std::string interpreter;
  words >> interpreter;
  return interpreter;
}

}  // namespace

std::string FindProgram(const std::string& command) {
  if (command.empty()) return "";
  if (command.find('/') != std::string::npos) return IsRunnable(command) ? command : "";
  const char* path = getenv("PATH");
  std::istringstream dirs(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string dir; std::getline(dirs, dir, ':');) {
    std::string candidate = (dir.empty() ? "." : dir) + "/" + command;
    if (IsRunnable(candidate)) return candidate;
  }
  return "";
}

std::string WhyNotPreloadable(const std::string& program) {
  std::string path = program;
  for (int depth = 0; depth < kScriptDepthMax; ++depth) {
    if (std::string how = PrivilegeOf(path, getuid(), getgid()); !how.empty())
      return path + " " + how;
    if (const auto kind = LookAtProgram(path, getuid(), getgid())) {
      const std::string why = WhyOutOfReach(*kind);
      return why.empty() ? "" : path + " " + why;
    }
    // Unreadable, or a script without #! (run by the shell): nothing is known against it.
    std::ifstream file(path, std::ios::binary);
    path = ScriptInterpreter(file);
    if (path.empty()) return "";
  }
  return "";
}

}  // namespace postern::wrapper
