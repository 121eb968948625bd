// daemons.cc - see daemons.h.
// SPDX-License-Identifier: Apache-2.0
//
// The kernel lists Unix sockets with the path that each was bound to, which may mean another file
// here. So a path is connected to, and believed, only if its directory, its name and the process
// that listens there are of one user: another user's directory could hold anything.
#include "daemons.h"

#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "process_look.h"

namespace postern::ctl_command {
namespace {

constexpr char kSocket[] = "/posternd.sock", kBroker[] = "/run/postern/broker.sock";
constexpr size_t kDaemonsMax = 1024;

// The uid of the process that listens there; false: none does.
bool ListensAt(const std::string& path, uint32_t& uid) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ucred peer{};
  socklen_t bytes = sizeof peer;
  const bool listens =
      fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
  if (fd >= 0) close(fd);
  uid = peer.uid;
  return listens;
}

// posternd gives its socket its name when it listens: the kernel knows it by the one before.
std::set<std::string> DirectoriesOfAll() {
  constexpr std::string_view kNew = ".new";
  std::set<std::string> dirs;
  std::istringstream lines(ReadWhole("/proc/net/unix", size_t{64} << 20));
  for (std::string line; std::getline(lines, line) && dirs.size() < kDaemonsMax;) {
    if (line.ends_with(kNew)) line.resize(line.size() - kNew.size());
    const size_t at = line.find(" /");
    if (at == std::string::npos || !line.ends_with(kSocket)) continue;
    const size_t end = line.size() - (sizeof kSocket - 1);
    if (end > at) dirs.insert(line.substr(at + 1, end - at - 1));
  }
  return dirs;
}

uint32_t UidOf(const std::string& user) {
  uint32_t uid = 0;
  const char* const end = user.data() + user.size();
  const auto [at, error] = std::from_chars(user.data(), end, uid);
  if (error == std::errc() && at == end) return uid;
  const passwd* const entry = getpwnam(user.c_str());
  if (entry == nullptr) throw AskError("there is no user '" + user + "'");
  return entry->pw_uid;
}

}  // namespace

std::vector<Daemon> FindDaemons(const std::string& runtime_dir) {
  std::vector<std::string> dirs = {runtime_dir};
  if (geteuid() == 0) {
    for (const std::string& dir : DirectoriesOfAll()) dirs.push_back(dir);
    SetPatience(kPatienceForMany);
  }
  return DaemonsIn(dirs);
}

std::vector<Daemon> DaemonsOf(const std::string& runtime_dir, bool all, const std::string& user) {
  if (!all && user.empty()) return {{runtime_dir, geteuid()}};
  const bool of_one = !user.empty();
  const uint32_t uid = of_one ? UidOf(user) : 0;
  if (geteuid() != 0 && (!of_one || uid != geteuid()))
    throw AskError("only root may ask the posternds of other users");
  std::vector<Daemon> daemons = FindDaemons(runtime_dir);
  if (of_one) std::erase_if(daemons, [uid](const Daemon& d) { return d.uid != uid; });
  return daemons;
}

std::vector<Daemon> DaemonsIn(const std::vector<std::string>& dirs) {
  std::vector<Daemon> daemons;
  std::set<std::pair<dev_t, ino_t>> seen;  // a directory may have several names
  for (const std::string& dir : dirs) {
    struct stat st {
    }, name{};
    Daemon daemon{dir, 0};
    if (dir.empty() || stat(dir.c_str(), &st) != 0 || lstat((dir + kSocket).c_str(), &name) != 0 ||
        name.st_uid != st.st_uid || !ListensAt(dir + kSocket, daemon.uid))
      continue;
    if (daemon.uid == st.st_uid && seen.insert({st.st_dev, st.st_ino}).second)
      daemons.push_back(daemon);
  }
  return daemons;
}

bool BrokerListens() {
  uint32_t uid = 0;
  return ListensAt(kBroker, uid) && uid == 0;
}

}  // namespace postern::ctl_command
