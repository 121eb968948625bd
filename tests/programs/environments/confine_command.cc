// confine_command.cc - runs a command where systemd, containers and administrators run theirs.
// SPDX-License-Identifier: Apache-2.0
//
//   confine [OPTION]... -- COMMAND [ARG]...
//     --limit=NAME:SOFT:HARD   as, fsize, memlock, nofile or nproc
//     --plain                  without CAP_SYS_RESOURCE, by which root passes its limits
//     --user=ID                as that user and group
//     --deny=NUMBER,...        system calls that are EPERM
//     --deny-unix              socket(AF_UNIX) is EAFNOSUPPORT (RestrictAddressFamilies=)
//     --landlock               nothing outside of its own domain is reached by abstract names
//     --hide=PATH              an empty read-only file system there
//     --read-only=PATH --noexec=PATH
//     --cgroup=DIR             in that control group
//     --unset=VARIABLE
// Exit code: the command's; 77: this machine has no such confinement, as is said.

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kNoSuchConfinement = 77;

void Need(bool ok, const std::string& what) {
  if (ok) return;
  printf("confine: %s: %s\n", what.c_str(), strerror(errno));
  exit(kNoSuchConfinement);
}

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

void Limit(const std::string& text) {
  static const std::map<std::string, __rlimit_resource> kNames = {{"as", RLIMIT_AS},
                                                                  {"fsize", RLIMIT_FSIZE},
                                                                  {"memlock", RLIMIT_MEMLOCK},
                                                                  {"nofile", RLIMIT_NOFILE},
                                                                  {"nproc", RLIMIT_NPROC}};
  const auto parts = Split(text, ':');
  const auto value = [](const std::string& n) {
    return n == "inf" ? RLIM_INFINITY : strtoull(n.c_str(), nullptr, 10);
  };
  const rlimit limit = {value(parts.at(1)), value(parts.at(2))};
  Need(setrlimit(kNames.at(parts[0]), &limit) == 0, "setrlimit " + text);
}

void DropResource() {
  __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2];
  Need(syscall(SYS_capget, &head, sets) == 0, "capget");
  sets[0].effective &= ~(1u << CAP_SYS_RESOURCE);
  sets[0].permitted &= ~(1u << CAP_SYS_RESOURCE);
  sets[0].inheritable &= ~(1u << CAP_SYS_RESOURCE);
  if (geteuid() == 0)
    Need(prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0) == 0, "PR_CAPBSET_DROP");
  Need(syscall(SYS_capset, &head, sets) == 0, "capset");
}

// Mounts are this command's alone.
void OwnMounts() {
  static bool own = false;
  if (own) return;
  Need(unshare(CLONE_NEWNS) == 0, "unshare");
  Need(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
  own = true;
}

void Hide(const std::string& path) {
  OwnMounts();
  Need(mount("none", path.c_str(), "tmpfs", MS_RDONLY, "size=4k") == 0, "tmpfs at " + path);
}

void Remount(const std::string& path, unsigned long flags) {
  OwnMounts();
  Need(mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0, "bind " + path);
  Need(mount("none", path.c_str(), nullptr, MS_BIND | MS_REMOUNT | flags, nullptr) == 0,
       "remount " + path);
}

void JoinGroup(const std::string& dir) {
  const int fd = open((dir + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
  Need(fd >= 0 && write(fd, "0", 1) == 1, "cgroup " + dir);
  close(fd);
}

void Landlock() {
  struct {
    uint64_t fs, net, scoped;
  } rules = {0, 0, 1};  // LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
  const long fd = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
  Need(fd >= 0, "landlock_create_ruleset");
  Need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  Need(syscall(SYS_landlock_restrict_self, fd, 0) == 0, "landlock_restrict_self");
  close(static_cast<int>(fd));
}

sock_filter Statement(uint16_t code, uint32_t k) { return {code, 0, 0, k}; }
sock_filter Unless(uint32_t k, uint8_t skip) { return {BPF_JMP | BPF_JEQ | BPF_K, 0, skip, k}; }

void Filter(const std::vector<uint32_t>& denied, bool no_unix) {
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kReturn = BPF_RET | BPF_K;
  std::vector<sock_filter> code = {Statement(kLoad, offsetof(seccomp_data, nr))};
  for (const uint32_t call : denied) {
    code.push_back(Unless(call, 1));
    code.push_back(Statement(kReturn, SECCOMP_RET_ERRNO | EPERM));
  }
  if (no_unix) {
    code.push_back(Unless(SYS_socket, 3));
    code.push_back(Statement(kLoad, offsetof(seccomp_data, args)));
    code.push_back(Unless(AF_UNIX, 1));
    code.push_back(Statement(kReturn, SECCOMP_RET_ERRNO | EAFNOSUPPORT));
  }
  code.push_back(Statement(kReturn, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};
  Need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  Need(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0, "seccomp");
}

using Options = std::multimap<std::string, std::string>;

template <typename Fn>
void Each(const Options& options, const char* name, Fn fn) {
  const auto [from, to] = options.equal_range(name);
  for (auto at = from; at != to; ++at) fn(at->second);
}

// What takes rights first, what takes rights away last.
void Enter(const Options& options) {
  Each(options, "cgroup", JoinGroup);
  Each(options, "hide", Hide);
  Each(options, "read-only", [](const std::string& path) { Remount(path, MS_RDONLY); });
  Each(options, "noexec", [](const std::string& path) { Remount(path, MS_NOEXEC); });
  Each(options, "unset", [](const std::string& name) { unsetenv(name.c_str()); });
  Each(options, "limit", Limit);
  if (options.count("plain") != 0) DropResource();
  Each(options, "user", [](const std::string& id) {
    const auto n = static_cast<uid_t>(atoi(id.c_str()));
    Need(setresgid(n, n, n) == 0 && setresuid(n, n, n) == 0, "setresuid");
  });
  if (options.count("landlock") != 0) Landlock();
  std::vector<uint32_t> denied;
  Each(options, "deny", [&](const std::string& text) {
    for (const std::string& n : Split(text, ','))
      denied.push_back(static_cast<uint32_t>(atoi(n.c_str())));
  });
  const bool no_unix = options.count("deny-unix") != 0;
  if (!denied.empty() || no_unix) Filter(denied, no_unix);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  int at = 1;
  for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
    const std::string text = argv[at];
    const size_t equals = text.find('=');
    options.emplace(text.substr(2, equals - 2),
                    equals != std::string::npos ? text.substr(equals + 1) : "");
  }
  if (++at >= argc) return 2;
  Enter(options);
  execvp(argv[at], argv + at);
  printf("confine: %s: %s\n", argv[at], strerror(errno));
  return 127;
}
