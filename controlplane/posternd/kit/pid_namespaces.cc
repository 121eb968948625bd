// pid_namespaces.cc - NSpid of /proc/PID/status: the ids of a process, from ours inwards.
// SPDX-License-Identifier: Apache-2.0
#include "pid_namespaces.h"

#include <dirent.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "proc.h"

namespace postern::daemon {
namespace {

std::vector<pid_t> PidsOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 6, "NSpid:") != 0) continue;
    std::istringstream fields(line.substr(6));
    std::vector<pid_t> pids;
    for (pid_t one = 0; fields >> one;) pids.push_back(one);
    return pids;
  }
  return {};
}

template <typename Fits>
pid_t SearchProcesses(Fits fits) {
  DIR* dir = opendir("/proc");
  if (dir == nullptr) return 0;
  pid_t found = 0;
  while (dirent* entry = readdir(dir)) {
    const pid_t pid = static_cast<pid_t>(strtol(entry->d_name, nullptr, 10));
    if (pid <= 0 || !fits(pid)) continue;
    found = pid;
    break;
  }
  closedir(dir);
  return found;
}

}  // namespace

uint32_t OwnPidnsIno() {
  static const uint32_t own = static_cast<uint32_t>(PidnsIno(getpid()));
  return own;
}

bool IsPidThere(pid_t pid, pid_t there) {
  const std::vector<pid_t> pids = PidsOf(pid);
  return !pids.empty() && pids.back() == there;
}

pid_t FindPid(uint32_t pidns, pid_t there, uint64_t start_time) {
  return SearchProcesses([&](pid_t pid) {
    return static_cast<uint32_t>(PidnsIno(pid)) == pidns && IsPidThere(pid, there) &&
           (start_time == 0 || StartTime(pid) == start_time);
  });
}

pid_t PidsThere::Find(uint32_t pidns, pid_t there, uint64_t start_time) {
  if (!looked_) {
    looked_ = true;
    (void)SearchProcesses([this](pid_t pid) {
      const auto ns = static_cast<uint32_t>(PidnsIno(pid));
      if (ns == 0 || ns == OwnPidnsIno()) return false;
      const std::vector<pid_t> pids = PidsOf(pid);
      if (!pids.empty()) here_.insert({{ns, pids.back()}, pid});
      return false;
    });
  }
  const auto [first, last] = here_.equal_range({pidns, there});
  for (auto it = first; it != last; ++it) {
    if (start_time == 0 || StartTime(it->second) == start_time) return it->second;
  }
  return 0;
}

}  // namespace postern::daemon
