// confine_command.cc - runs a command where systemd, containers and administrators run theirs.
// SPDX-License-Identifier: Apache-2.0
//
//   confine [OPTION]... -- COMMAND [ARG]...
//     --limit=NAME:SOFT:HARD   as, fsize, memlock, nofile or nproc
//     --plain                  without CAP_SYS_RESOURCE, by which root passes its limits
//     --user=ID[:GROUP]        as that user and group
//     --deny=NUMBER,...        system calls that are EPERM
//     --deny-unix              socket(AF_UNIX) is EAFNOSUPPORT (RestrictAddressFamilies=)
//     --landlock               nothing outside of its own domain is reached by abstract names
//     --hide=PATH              an empty read-only file system there
//     --read-only=PATH --noexec=PATH
//     --private-tmp=DIR,...    a /tmp of its own, in which of all that is there only these are
//     --families=NUMBER,...    sockets of others are EAFNOSUPPORT (RestrictAddressFamilies=)
//     --system-service[=N,...] a call that is not in systemd's set, nor one of these, is the end
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

#include <algorithm>
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

// Those that stay are moved through a place beside /tmp, which is then empty.
void PrivateTmp(const std::string& list) {
  OwnMounts();
  constexpr char kAside[] = "/mnt";
  Need(mount("none", kAside, "tmpfs", 0, nullptr) == 0, "tmpfs at /mnt");
  const auto paths = Split(list, ',');
  for (size_t i = 0; i < paths.size(); i++) {
    const std::string aside = kAside + ("/" + std::to_string(i));
    Need(mkdir(aside.c_str(), 0755) == 0, "mkdir " + aside);
    Need(mount(paths[i].c_str(), aside.c_str(), nullptr, MS_BIND, nullptr) == 0,
         "bind " + paths[i]);
  }
  Need(mount("none", "/tmp", "tmpfs", 0, "mode=1777") == 0, "tmpfs at /tmp");
  for (size_t i = 0; i < paths.size(); i++) {
    for (size_t at = paths[i].find('/', 5); at != std::string::npos;
         at = paths[i].find('/', at + 1))
      (void)mkdir(paths[i].substr(0, at).c_str(), 0755);
    const std::string aside = kAside + ("/" + std::to_string(i));
    Need(mkdir(paths[i].c_str(), 0755) == 0, "mkdir " + paths[i]);
    Need(mount(aside.c_str(), paths[i].c_str(), nullptr, MS_MOVE, nullptr) == 0,
         "move " + paths[i]);
  }
  Need(umount2(kAside, MNT_DETACH) == 0, "umount /mnt");
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

// What systemd 252's set @system-service leaves out of x86-64's calls, but for those that are there
// no more: @clock, @cpu-emulation, @debug, @module, @mount, @obsolete, @raw-io, @reboot, @swap.
constexpr uint32_t kNoService[] = {SYS_seccomp,
                                   SYS_adjtimex,
                                   SYS_clock_adjtime,
                                   SYS_clock_settime,
                                   SYS_settimeofday,
                                   SYS_modify_ldt,
                                   SYS_lookup_dcookie,
                                   SYS_perf_event_open,
                                   SYS_pidfd_getfd,
                                   SYS_ptrace,
                                   SYS_delete_module,
                                   SYS_finit_module,
                                   SYS_init_module,
                                   SYS_chroot,
                                   SYS_fsconfig,
                                   SYS_fsmount,
                                   SYS_fsopen,
                                   SYS_fspick,
                                   SYS_mount,
                                   SYS_mount_setattr,
                                   SYS_move_mount,
                                   SYS_open_tree,
                                   SYS_pivot_root,
                                   SYS_umount2,
                                   SYS__sysctl,
                                   SYS_uselib,
                                   SYS_ustat,
                                   SYS_sysfs,
                                   SYS_ioperm,
                                   SYS_iopl,
                                   SYS_kexec_load,
                                   SYS_kexec_file_load,
                                   SYS_reboot,
                                   SYS_swapoff,
                                   SYS_swapon,
                                   SYS_bpf,
                                   SYS_acct,
                                   SYS_quotactl,
                                   SYS_vhangup,
                                   SYS_nfsservctl,
                                   SYS_fanotify_init,
                                   SYS_open_by_handle_at,
                                   SYS_setdomainname,
                                   SYS_sethostname,
                                   SYS_syslog,
                                   SYS_fanotify_mark,
                                   SYS_landlock_add_rule,
                                   SYS_landlock_create_ruleset,
                                   SYS_landlock_restrict_self,
                                   SYS_memfd_secret,
                                   SYS_mincore,
                                   SYS_pkey_alloc,
                                   SYS_pkey_free,
                                   SYS_pkey_mprotect,
                                   SYS_process_mrelease,
                                   SYS_quotactl_fd};

using Code = std::vector<sock_filter>;

void Install(const Code& code) {
  const sock_fprog program = {static_cast<unsigned short>(code.size()),
                              const_cast<sock_filter*>(code.data())};
  Need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  Need(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0, "seccomp");
}

void SystemService(const std::string& also) {
  Code code = {Statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  const auto allowed = Split(also, ',');
  for (const uint32_t call : kNoService) {
    if (std::find(allowed.begin(), allowed.end(), std::to_string(call)) != allowed.end()) continue;
    code.push_back(Unless(call, 1));
    code.push_back(Statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  code.push_back(Statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  Install(code);
}

void Families(const std::string& list) {
  Code code = {Statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  const auto families = Split(list, ',');
  const auto count = static_cast<uint8_t>(families.size());
  code.push_back(Unless(SYS_socket, static_cast<uint8_t>(2 * count + 2)));
  code.push_back(Statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)));
  for (const std::string& family : families) {
    code.push_back(Unless(static_cast<uint32_t>(atoi(family.c_str())), 1));
    code.push_back(Statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  code.push_back(Statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT));
  code.push_back(Statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  Install(code);
}

void Filter(const std::vector<uint32_t>& denied, bool no_unix) {
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kReturn = BPF_RET | BPF_K;
  Code code = {Statement(kLoad, offsetof(seccomp_data, nr))};
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
  Install(code);
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
  Each(options, "private-tmp", PrivateTmp);
  Each(options, "hide", Hide);
  Each(options, "read-only", [](const std::string& path) { Remount(path, MS_RDONLY); });
  Each(options, "noexec", [](const std::string& path) { Remount(path, MS_NOEXEC); });
  Each(options, "unset", [](const std::string& name) { unsetenv(name.c_str()); });
  Each(options, "limit", Limit);
  if (options.count("plain") != 0) DropResource();
  Each(options, "user", [](const std::string& id) {
    const auto ids = Split(id, ':');
    const auto user = static_cast<uid_t>(atoi(ids.front().c_str()));
    const auto group = static_cast<gid_t>(atoi(ids.back().c_str()));
    Need(setresgid(group, group, group) == 0 && setresuid(user, user, user) == 0, "setresuid");
  });
  if (options.count("landlock") != 0) Landlock();
  std::vector<uint32_t> denied;
  Each(options, "deny", [&](const std::string& text) {
    for (const std::string& n : Split(text, ','))
      denied.push_back(static_cast<uint32_t>(atoi(n.c_str())));
  });
  const bool no_unix = options.count("deny-unix") != 0;
  if (!denied.empty() || no_unix) Filter(denied, no_unix);
  Each(options, "families", Families);
  Each(options, "system-service", SystemService);
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
