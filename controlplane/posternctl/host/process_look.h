// process_look.h - what /proc says of a process, as far as its reader may know it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../../program/program_kind.h"

namespace postern::ctl_command {

// What could not be read is empty: another user's process shows little, and each text is what the
// process has made of it.
struct ProcessLook {
  pid_t pid = 0;
  bool exists = false, is_kernels = false;
  std::string comm, exe;
  uint32_t uid = 0;  // effective
  uint32_t real_uid = 0, real_gid = 0;
  uint32_t seccomp = 0;     // 0: none, 1: strict, 2: filter
  std::string inside_pids;  // its numbers in the PID namespaces below ours, as /proc writes them
  uint64_t netns = 0, mount_ns = 0;                               // inodes; 0: not known
  std::optional<bool> has_library;                                // libpostern.so is mapped
  std::optional<std::map<std::string, std::string>> environment;  // POSTERN_* and LD_PRELOAD
  std::optional<ProgramKind> kind;
  std::map<std::string, std::string> limits;  // of /proc/PID/limits: name to soft limit
  uint64_t address_bytes = 0;                 // that are mapped

  // Of its environment as the program was started; empty: not set, or not known.
  std::string Variable(const std::string& name) const;
};

ProcessLook LookAtProcess(pid_t pid);
std::vector<pid_t> AllProcesses();
uint64_t NamespaceOf(pid_t pid, const char* kind);  // "net"; 0: not known
std::string ReadWhole(const std::string& path, size_t bytes_max = size_t{1} << 20);
std::string UserName(uint32_t uid);

}  // namespace postern::ctl_command
