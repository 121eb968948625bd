// image.cc - see image.h.
// SPDX-License-Identifier: Apache-2.0
#include "image.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "../guard/patience.h"
#include "proc.h"

namespace postern::daemon {
namespace {

constexpr char kLibrary[] = "/libpostern.so";
constexpr char kVariable[] = "POSTERN_ATTACH=";

std::string PathOf(pid_t pid, const std::string& leaf) {
  return "/proc/" + std::to_string(pid) + "/" + leaf;
}

std::string Whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the kernel has told the image of itself.
struct Start {
  bool being_made = false;  // exec() has not come to its end
  bool is_secure = false;
  uint64_t loader = 0;  // an address in it; 0: none
  uint64_t entry = 0;   // of the program
};

Start ReadStart(pid_t pid) {
  const std::string text = Whole(PathOf(pid, "auxv"));
  Start start;
  for (size_t at = 0; at + sizeof(Elf64_auxv_t) <= text.size(); at += sizeof(Elf64_auxv_t)) {
    Elf64_auxv_t entry;
    memcpy(&entry, text.data() + at, sizeof entry);
    if (at == 0 && entry.a_type == AT_NULL) start.being_made = true;
    if (entry.a_type == AT_BASE) start.loader = entry.a_un.a_val;
    if (entry.a_type == AT_ENTRY) start.entry = entry.a_un.a_val;
    if (entry.a_type == AT_SECURE) start.is_secure = entry.a_un.a_val != 0;
  }
  return start;
}

// Without asking the file's system, which may not answer.
bool IsFile(pid_t pid, int fd, uint64_t inode) {
  struct statx st {};
  const std::string path = PathOf(pid, "fd/" + std::to_string(fd));
  return statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_INO, &st) == 0 &&
         st.stx_ino == inode;
}

pid_t ParentOf(pid_t pid) {
  std::ifstream file(PathOf(pid, "status"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 5, "PPid:") == 0) return atoi(line.c_str() + 5);
  }
  return 0;
}

// Whether its environment names this slot, and memory that is the family's: its own descriptor, or
// that of its parent, if a spawned child's file actions have closed its own (AttachAfterExec).
bool IsStartedFor(pid_t pid, uint64_t stack_inode, uint32_t slot) {
  const std::string all = Whole(PathOf(pid, "environ"));
  const std::string variable = std::string(1, '\0') + kVariable;
  size_t at = all.compare(0, sizeof kVariable - 1, kVariable) == 0 ? 0 : all.find(variable);
  if (at == std::string::npos) return false;
  at += at == 0 ? sizeof kVariable - 1 : sizeof kVariable;
  std::istringstream value(all.substr(at, all.find('\0', at) - at));
  int fd = -1;
  uint32_t named = 0;
  char colon = 0;
  char mode = 0;
  if (!(value >> fd >> colon >> named >> colon >> mode) || named != slot) return false;
  return IsFile(pid, fd, stack_inode) || (mode == 's' && IsFile(ParentOf(pid), fd, stack_inode));
}

struct Mapping {
  uint64_t from = 0, to = 0;
  std::string file;  // device and inode
  std::string path;
};

// Of a line of /proc/PID/maps: address perms offset dev inode path.
Mapping ParseMapping(const std::string& line) {
  std::istringstream fields(line);
  std::string range, skipped, device, inode;
  Mapping mapping;
  fields >> range >> skipped >> skipped >> device >> inode >> mapping.path;
  char* end = nullptr;
  mapping.from = strtoull(range.c_str(), &end, 16);
  mapping.to = *end == '-' ? strtoull(end + 1, nullptr, 16) : 0;
  if (inode != "0") mapping.file = device + " " + inode;
  return mapping;
}

bool LoaderMayStillMapIt(pid_t pid, const Start& start) {
  std::ifstream maps(PathOf(pid, "maps"));
  std::set<std::string> known, all;
  std::string line;
  while (std::getline(maps, line)) {
    const Mapping mapping = ParseMapping(line);
    if (mapping.path.find(kLibrary) != std::string::npos) return true;
    if (mapping.file.empty()) continue;
    all.insert(mapping.file);
    const auto has = [&](uint64_t address) {
      return address >= mapping.from && address < mapping.to;
    };
    if (has(start.loader) || has(start.entry)) known.insert(mapping.file);
  }
  return all == known;
}

bool LooksLikeIt(pid_t pid, uint64_t stack_inode, uint32_t slot) {
  const Start start = ReadStart(pid);
  if (start.being_made) return true;
  if (start.loader == 0 || start.is_secure) return false;
  return IsStartedFor(pid, stack_inode, slot) && LoaderMayStillMapIt(pid, start);
}

}  // namespace

bool MayTakeSlotOver(pid_t pid, uint64_t stack_inode, uint32_t slot) {
  if (pid <= 0) return false;
  return AnswerInTime(UserOf(pid), [=] { return LooksLikeIt(pid, stack_inode, slot); })
      .value_or(false);
}

}  // namespace postern::daemon
