// host_doctor.cc - see host_doctor.h. Each look is at what Postern itself uses, in the way that it
// uses it.
// SPDX-License-Identifier: Apache-2.0
#include "host_doctor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "../host/daemons.h"
#include "../host/process_look.h"
#include "base/space/room.h"

#ifndef POSTERN_VERSION
#define POSTERN_VERSION "unknown"
#endif

namespace postern::ctl_command {
namespace {

class Findings {
 public:
  void Good(const char* what, const std::string& says) { Add(what, "good", says, ""); }
  void Note(const char* what, const std::string& says, const std::string& advice) {
    Add(what, "note", says, advice);
  }
  void Bad(const char* what, const std::string& says, const std::string& advice) {
    Add(what, "bad", says, advice);
  }
  Json Take() { return std::move(all_); }

 private:
  void Add(const char* what, const char* state, const std::string& says,
           const std::string& advice) {
    all_.push_back({{"what", what}, {"state", state}, {"says", says}, {"advice", advice}});
  }
  Json all_ = Json::array();
};

void Kernel(Findings& f) {
  utsname name{};
  uname(&name);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  const int memfd = memfd_create("posternctl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const bool seals = memfd >= 0 && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  if (pidfd >= 0 && seals && line >= 0)
    f.Good("kernel", std::string("Linux ") + name.release + " has what is needed");
  else
    f.Bad("kernel",
          std::string("Linux ") + name.release + " lacks, or denies here, " +
              (pidfd < 0 ? "pidfd_open"
               : !seals  ? "sealed memfds"
                         : "Unix sockets"),
          "Look at the sandbox that this runs in (seccomp).");
  for (const int fd : {pidfd, memfd, line}) {
    if (fd >= 0) close(fd);
  }
}

void Limits(Findings& f) {
  constexpr rlim_t kDescriptors = 256;
  rlimit numbers{};
  getrlimit(RLIMIT_NOFILE, &numbers);
  const Addresses left = AddressesLeft();
  if (!left.HoldAStack())
    f.Bad("limits",
          "RLIMIT_AS leaves too little address space (" +
              std::to_string(AddressesNeeded(left.limit) >> 20) + " MiB are asked for)",
          "Raise it: ulimit -v unlimited, LimitAS=infinity.");
  else if (numbers.rlim_max < kDescriptors)
    f.Bad("limits", "RLIMIT_NOFILE is " + std::to_string(numbers.rlim_max),
          "Raise it: ulimit -n, LimitNOFILE=.");
  else
    f.Good("limits", "of programs that are started from here are wide enough");
}

void Directory(Findings& f, const std::string& dir) {
  struct stat st {};
  if (dir.empty() || lstat(dir.c_str(), &st) != 0)
    return f.Note("directory", (dir.empty() ? "none" : dir) + " is not there yet",
                  "`postern COMMAND` makes it.");
  if (!S_ISDIR(st.st_mode) || (st.st_uid != geteuid() && geteuid() != 0) || (st.st_mode & 077) != 0)
    return f.Bad("directory", dir + " is not a directory of this user's alone",
                 "Remove it, or set POSTERN_RUNTIME_DIR to another one.");
  f.Good("directory", dir);
}

void OneStatus(Findings& f, const Daemon& daemon, const Json& status) {
  const std::string name = "posternd of user " + UserName(daemon.uid) + " in " + daemon.runtime_dir;
  const std::string version = status.value("version", "?");
  if (version != POSTERN_VERSION)
    f.Bad("version", name + " is " + version + ", and this is " POSTERN_VERSION,
          "End the programs of the older one, then it leaves.");
  else
    f.Good("posternd", name + ", " + std::to_string(status.at("stacks").size()) + " stacks, " +
                           std::to_string(status.at("link_groups").size()) + " link groups");
  if (!status.value("gives_paths", true))
    f.Bad("policy", name + " gives no path through memory: the host's policy",
          "See same_host in posternd(8).");
  if (status.value("reapers_failed", 0) != 0)
    f.Bad("families", name + " has cut families off", "Its log says which, and why.");
  for (const Json& stack : status.at("stacks")) {
    if (!stack.value("checks", Json::array()).empty())
      f.Bad("checks", "a check has failed in stack " + stack.value("id", "?"),
            "It is an error of postern's: please report what posternctl status shows.");
  }
  const Json vi_errors = status.value("vi_errors", Json::object());
  for (const auto& [interface, error] : vi_errors.items())
    f.Note("VI", "none on " + interface + ": " + error.get<std::string>(), "");
}

void Daemons(Findings& f, const std::string& runtime_dir) {
  const auto daemons = FindDaemons(runtime_dir);
  if (daemons.empty())
    f.Note("posternd", "none runs that may be asked", "`postern COMMAND` starts one.");
  for (const Daemon& daemon : daemons) {
    try {
      const Json status = Ask(daemon.runtime_dir, Report::kStatus);
      if (status.is_object()) OneStatus(f, daemon, status);
    } catch (const std::exception& error) {
      f.Bad("posternd", daemon.runtime_dir + ": " + error.what(), "Look into its posternd.log.");
    }
  }
}

void Broker(Findings& f) {
  if (BrokerListens()) return f.Good("broker", "runs: other users and network namespaces are met");
  f.Note("broker", "none runs: programs of other users and network namespaces are not met",
         "posternd --system, as root, if they should be.");
}

void Ports(Findings& f) {
  const std::string range = ReadWhole("/proc/sys/net/ipv4/ip_local_port_range");
  unsigned low = 0, high = 0;
  if (sscanf(range.c_str(), "%u %u", &low, &high) != 2 || high < low) return;
  const unsigned ours = (high - low + 1) / 2;
  const std::string says = std::to_string(ours) + " ephemeral ports for accelerated clients";
  if (ours < 1000)
    f.Note("ports", says, "Widen net.ipv4.ip_local_port_range.");
  else
    f.Good("ports", says);
}

}  // namespace

Json ExamineHost(const std::string& runtime_dir) {
  Findings f;
  Kernel(f);
  Limits(f);
  Ports(f);
  Directory(f, runtime_dir);
  Daemons(f, runtime_dir);
  Broker(f);
  return {{"version", POSTERN_VERSION}, {"findings", f.Take()}};
}

bool HasBad(const Json& report) {
  for (const Json& finding : report.at("findings")) {
    if (finding.at("state") == "bad") return true;
  }
  return false;
}

}  // namespace postern::ctl_command
