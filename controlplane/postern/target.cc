// target.cc - looks the command up and reads its ELF header.
// SPDX-License-Identifier: Apache-2.0
#include "target.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace postern::wrapper {
namespace {

constexpr int kScriptDepthMax = 4;  // the kernel's own limit for scripts run by scripts

bool IsRunnable(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

// The loader ignores LD_PRELOAD with a path when the program gains privileges.
std::string WhyPrivileged(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return "";
  const bool is_setuid = (status.st_mode & S_ISUID) != 0 && status.st_uid != getuid();
  const bool is_setgid = (status.st_mode & S_ISGID) != 0 && status.st_gid != getgid();
  if (is_setuid || is_setgid) return path + " is set-user-ID or set-group-ID";
  const bool has_capabilities = getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
  if (has_capabilities && getuid() != 0) return path + " has file capabilities";
  return "";
}

// The file is whatever the user named: short, cut off or hostile ones only make a read fail.
std::string WhyElfNotPreloadable(const std::string& path, std::ifstream& file) {
  Elf64_Ehdr header{};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!file || header.e_ident[EI_CLASS] != ELFCLASS64) return path + " is not a 64-bit program";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    const uint64_t offset = header.e_phoff + uint64_t{i} * header.e_phentsize;
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(reinterpret_cast<char*>(&segment), sizeof(segment));
    if (!file) break;
    if (segment.p_type == PT_INTERP) return "";
  }
  return path + " is statically linked";
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
    if (std::string reason = WhyPrivileged(path); !reason.empty()) return reason;
    std::ifstream file(path, std::ios::binary);
    char magic[SELFMAG] = {};
    file.read(magic, sizeof(magic));
    // Unreadable, or a script without #! (run by the shell): nothing is known against it.
    if (!file) return "";
    if (memcmp(magic, ELFMAG, SELFMAG) == 0) return WhyElfNotPreloadable(path, file);
    file.seekg(0);
    path = ScriptInterpreter(file);
    if (path.empty()) return "";
  }
  return "";
}

}  // namespace postern::wrapper
