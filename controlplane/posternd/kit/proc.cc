// proc.cc - /proc and pidfds.
// SPDX-License-Identifier: Apache-2.0
#include "proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "../guard/patience.h"
#include "fd.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace postern::daemon {
namespace {

std::string Path(pid_t pid, const char* leaf) {
  return "/proc/" + std::to_string(pid) + "/" + leaf;
}

struct Stat {
  char state = 0;
  uint64_t start_time = 0;
};

// The name in the second field may hold blanks and parentheses: fields are counted behind the last
// one.
Stat ReadStat(pid_t pid) {
  std::ifstream file(Path(pid, "stat"));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream fields(text.substr(end + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time;
  return stat;
}

uint64_t NsInoAt(const std::string& path) {
  struct stat st {};
  return stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
}

// The device of memfds, as maps shows it: files of other file systems may have any name and number.
const std::string& MemfdDevice() {
  static const std::string device = [] {
    const UniqueFd fd(memfd_create("postern-device", MFD_CLOEXEC));
    struct stat st {};
    char text[32] = "";
    if (fd.ok() && fstat(fd.get(), &st) == 0)
      snprintf(text, sizeof(text), "%02x:%02x", major(st.st_dev), minor(st.st_dev));
    return std::string(text);
  }();
  return device;
}

// Calls `take` with the inode of each until it says that it has seen enough.
template <typename Take>
void EachMemfdMapped(pid_t pid, Take take) {
  std::ifstream file(Path(pid, "maps"));
  std::string line;
  while (std::getline(file, line)) {
    // address perms offset dev inode path; only memfds are of interest.
    if (line.find("/memfd:") == std::string::npos) continue;
    std::istringstream fields(line);
    std::string skipped, device;
    uint64_t found = 0;
    fields >> skipped >> skipped >> skipped >> device >> found;
    if (device == MemfdDevice() && take(found)) return;
  }
}

bool Maps(pid_t pid, uint64_t inode) {
  bool found = false;
  EachMemfdMapped(pid, [&](uint64_t one) { return found = one == inode; });
  return found;
}

}  // namespace

uint64_t StartTime(pid_t pid) { return ReadStat(pid).start_time; }

std::string Comm(pid_t pid) {
  std::ifstream file(Path(pid, "comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

std::string PlainComm(pid_t pid) {
  std::string name = Comm(pid);
  for (char& c : name) {
    if (c < ' ' || c == 0x7f) c = '?';  // what is above 0x7f is negative here, and goes as well
  }
  return name;
}

// By the link's text alone: what the number means may be a file whose file system does not answer.
bool HasSocket(pid_t pid, uint32_t number, int socket) {
  int type = 0;
  socklen_t size = sizeof(type);
  struct stat st {};
  // First the question that takes no time, whatever it is: a file's system may not answer.
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || fstat(socket, &st) != 0)
    return false;
  const std::string want = "socket:[" + std::to_string(st.st_ino) + "]";
  char is[64];
  const std::string path = Path(pid, "fd/") + std::to_string(number);
  const ssize_t n = readlink(path.c_str(), is, sizeof(is));
  return n > 0 && want == std::string(is, static_cast<size_t>(n));
}

uint64_t NetnsIno(pid_t pid) { return NsInoAt(Path(pid, "ns/net")); }
uint64_t OwnNetnsIno() { return NsInoAt("/proc/self/ns/net"); }
uint64_t PidnsIno(pid_t pid) { return NsInoAt(Path(pid, "ns/pid")); }

UniqueFd OpenNetns(pid_t pid, uint64_t expected) {
  UniqueFd fd(open(Path(pid, "ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st {};
  if (!fd.ok() || fstat(fd.get(), &st) != 0) return {};
  return expected == 0 || st.st_ino == expected ? std::move(fd) : UniqueFd();
}

std::string CgroupOf(pid_t pid) {
  std::ifstream file(Path(pid, "cgroup"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 3, "0::") == 0) return line.substr(3);
  }
  return "";
}

UniqueFd OpenPidfd(pid_t pid, uint64_t start_time) {
  if (pid <= 0) return {};
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  // Looked at after the pidfd is open: from here on the number can't change its meaning unnoticed.
  if (fd.ok() && start_time != 0 && StartTime(pid) != start_time) fd.Reset();
  return fd;
}

UniqueFd PeerPidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  UniqueFd peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    peer = UniqueFd(fd);
  } else if (errno == ENOPROTOOPT) {
    // Before Linux 6.5. The process may have ended since it connected, and the number be another
    // one's: only until we accept.
    peer = OpenPidfd(pid, 0);
  }
  if (peer.ok() && (pid <= 0 || PidfdIsDead(peer.get()))) peer.Reset();
  return peer;
}

bool PidfdIsDead(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

// By the link's text, which the kernel has made. What fdinfo would say is each kind of file's own:
// of an epoll set it is a line for each member, under a lock that epoll_wait() holds as well.
bool IsPidfd(int fd) {
  char is[32];
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = readlink(path.c_str(), is, sizeof(is));
  const std::string_view text(is, n > 0 ? static_cast<size_t>(n) : 0);
  return text == "anon_inode:[pidfd]" || text.substr(0, 7) == "pidfd:[";
}

bool IsAlive(pid_t pid, uint64_t start_time) {
  if (pid <= 0) return false;
  const Stat stat = ReadStat(pid);
  if (stat.state == 0 || stat.state == 'Z' || stat.state == 'X') return false;
  return start_time == 0 || stat.start_time == start_time;
}

std::chrono::nanoseconds WaitedForCpu() {
  std::ifstream file("/proc/thread-self/schedstat");
  int64_t ran = 0, waited = 0;
  return std::chrono::nanoseconds(file >> ran >> waited ? waited : 0);
}

bool HasUid(pid_t pid, uid_t uid) {
  std::ifstream file(Path(pid, "status"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 4, "Uid:") != 0) continue;
    std::istringstream ids(line.substr(4));
    unsigned long real = 0, effective = 0, saved = 0;
    return (ids >> real >> effective >> saved) && (real == uid || effective == uid || saved == uid);
  }
  return false;
}

uid_t UserOf(pid_t pid) {
  std::ifstream file(Path(pid, "status"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 4, "Uid:") != 0) continue;
    std::istringstream ids(line.substr(4));
    uid_t real = 0, effective = 0, saved = 0;
    if (!(ids >> real >> effective >> saved)) break;
    const uid_t own = geteuid();
    return real != own ? real : effective != own ? effective : saved;
  }
  return static_cast<uid_t>(-1);
}

namespace {

Mapped LookWhetherMapped(pid_t pid, uint64_t inode) {
  if (Maps(pid, inode)) return Mapped::kYes;
  if (std::ifstream(Path(pid, "maps")).peek() != std::ifstream::traits_type::eof())
    return Mapped::kNo;
  std::ifstream file(Path(pid, "status"));
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 4, "Uid:") != 0) continue;
    return strtoul(line.c_str() + 4, nullptr, 10) == geteuid() ? Mapped::kUnknown : Mapped::kNo;
  }
  return Mapped::kNo;
}

}  // namespace

Mapped HasMapped(pid_t pid, uint64_t inode) {
  return AnswerInTime(UserOf(pid), [pid, inode] { return LookWhetherMapped(pid, inode); })
      .value_or(Mapped::kNoAnswer);
}

bool ThreadIsStopped(uint32_t tid) {
  const char state = ReadStat(static_cast<pid_t>(tid)).state;
  return state == 'T' || state == 't';
}

std::multimap<uint64_t, pid_t> MappersOf(const std::set<uint64_t>& inodes) {
  std::multimap<uint64_t, pid_t> found;
  DIR* dir = opendir("/proc");
  if (dir == nullptr) return found;
  while (dirent* entry = readdir(dir)) {
    const pid_t pid = static_cast<pid_t>(strtol(entry->d_name, nullptr, 10));
    if (pid <= 0 || pid == getpid()) continue;
    const uid_t user = UserOf(pid);
    if (geteuid() != 0 && user != geteuid()) continue;  // it would not be shown
    const auto of_it = AnswerInTime(user, [pid, inodes] {
      std::set<uint64_t> its;
      EachMemfdMapped(pid, [&](uint64_t inode) {
        if (inodes.count(inode) != 0) its.insert(inode);
        return false;
      });
      return its;
    });
    for (const uint64_t inode : of_it.value_or(std::set<uint64_t>())) found.emplace(inode, pid);
  }
  closedir(dir);
  return found;
}

}  // namespace postern::daemon
