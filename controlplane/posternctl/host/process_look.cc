// process_look.cc - see process_look.h.
// SPDX-License-Identifier: Apache-2.0
#include "process_look.h"

#include <dirent.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace postern::ctl_command {
namespace {

std::string Path(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

std::string LinkText(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t n = readlink(path.c_str(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

void TakeStatus(ProcessLook& look) {
  std::istringstream lines(ReadWhole(Path(look.pid, "status")));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    uint32_t first = 0;
    words >> key;
    if (key == "Uid:") words >> look.real_uid >> look.uid;
    if (key == "Gid:") words >> look.real_gid;
    if (key == "Seccomp:") words >> look.seccomp;
    if (key == "NSpid:" && words >> first) std::getline(words >> std::ws, look.inside_pids);
    if (key == "VmSize:" && words >> look.address_bytes) look.address_bytes *= 1024;
  }
}

// "Max open files            1024                 4096                 files"
void TakeLimits(ProcessLook& look) {
  constexpr size_t kNameColumns = 26;
  std::istringstream lines(ReadWhole(Path(look.pid, "limits")));
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= kNameColumns) continue;
    const std::string name = line.substr(0, line.find_last_not_of(' ', kNameColumns - 1) + 1);
    std::istringstream(line.substr(kNameColumns)) >> look.limits[name];
  }
}

void TakeEnvironment(ProcessLook& look) {
  std::ifstream file(Path(look.pid, "environ"), std::ios::binary);
  if (!file) return;
  std::map<std::string, std::string> found;
  for (std::string entry; std::getline(file, entry, '\0');) {
    const size_t equals = entry.find('=');
    const bool is_ours = entry.starts_with("POSTERN_") || entry.starts_with("LD_PRELOAD=");
    if (is_ours && equals != std::string::npos)
      found.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  if (!file.bad()) look.environment = std::move(found);
}

// The kernel asks for a right (ptrace) when the file is read, not when it is opened.
void TakeMaps(ProcessLook& look) {
  std::ifstream file(Path(look.pid, "maps"));
  bool any = false, library = false;
  for (std::string line; std::getline(file, line);) {
    any = true;
    const size_t name = line.rfind('/');
    library =
        library || (name != std::string::npos && line.compare(name, 15, "/libpostern.so") == 0);
  }
  if (any) look.has_library = library;
}

}  // namespace

std::string ProcessLook::Variable(const std::string& name) const {
  if (!environment) return "";
  const auto it = environment->find(name);
  return it == environment->end() ? "" : it->second;
}

std::string ReadWhole(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char part[4096];
  while (text.size() < bytes_max && (file.read(part, sizeof part), file.gcount() > 0))
    text.append(part, static_cast<size_t>(file.gcount()));
  return text;
}

uint64_t NamespaceOf(pid_t pid, const char* kind) {
  struct stat st {};
  const std::string path = Path(pid, "ns/") + kind;
  return stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
}

ProcessLook LookAtProcess(pid_t pid) {
  ProcessLook look;
  look.pid = pid;
  look.comm = ReadWhole(Path(pid, "comm"));
  if (look.comm.empty()) return look;
  look.comm.pop_back();  // the line's end
  look.exists = true;
  TakeStatus(look);
  look.exe = LinkText(Path(pid, "exe"));
  look.is_kernels = ReadWhole(Path(pid, "cmdline")).empty() && look.address_bytes == 0;
  if (look.is_kernels) return look;
  look.netns = NamespaceOf(pid, "net");
  look.mount_ns = NamespaceOf(pid, "mnt");
  TakeLimits(look);
  TakeEnvironment(look);
  TakeMaps(look);
  look.kind = LookAtProgram(Path(pid, "exe"), look.real_uid, look.real_gid);
  return look;
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* entry = proc != nullptr ? readdir(proc.get()) : nullptr) {
    char* end = nullptr;
    const long pid = strtol(entry->d_name, &end, 10);
    if (pid > 0 && *end == '\0') pids.push_back(static_cast<pid_t>(pid));
  }
  return pids;
}

std::string UserName(uint32_t uid) {
  const passwd* const user = getpwuid(uid);
  return user != nullptr ? user->pw_name : std::to_string(uid);
}

}  // namespace postern::ctl_command
