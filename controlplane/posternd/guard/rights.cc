// rights.cc - see rights.h.
// SPDX-License-Identifier: Apache-2.0
#include "rights.h"

#include <cap-ng.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "base/sanitized.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

namespace postern::daemon {
namespace {

struct Needed {
  unsigned capability;
  bool by_broker;  // which is told if it lacks it
  bool by_children;
  const char* why;
};
constexpr Needed kNeeded[] = {
    {CAP_SYS_PTRACE, true, false, "to see which network namespace another user's process is in"},
    {CAP_NET_ADMIN, true, false, "to see which network namespace a socket belongs to"},
    // A family of root's may have members of other users.
    {CAP_SETUID, false, true, "to start a reaper as its family's user"},
    {CAP_SETGID, false, true, "to start a reaper as its family's user"},
    {CAP_DAC_READ_SEARCH, false, false, "to see which descriptors such a member has"},
    {CAP_KILL, false, false, "to end that reaper"},
};

void DropCapabilities(Role role) {
  capng_get_caps_process();
  bool keeps[std::size(kNeeded)];
  for (size_t i = 0; i < std::size(kNeeded); i++) {
    const Needed& needed = kNeeded[i];
    const bool has = capng_have_capability(CAPNG_PERMITTED, needed.capability) == 1;
    keeps[i] = has && (role == Role::kSystem ? needed.by_broker : geteuid() == 0);
    if (!has && role == Role::kSystem && needed.by_broker)
      fprintf(stderr, "posternd: lacks the capability %s\n", needed.why);
  }
  capng_clear(CAPNG_SELECT_BOTH);
  for (size_t i = 0; i < std::size(kNeeded); i++) {
    if (!keeps[i]) continue;
    // A program that root starts has no more than the bounding set has.
    const int sets = CAPNG_EFFECTIVE | CAPNG_PERMITTED |
                     (kNeeded[i].by_children && geteuid() == 0 ? CAPNG_BOUNDING_SET : 0);
    (void)capng_update(CAPNG_ADD, static_cast<capng_type_t>(sets), kNeeded[i].capability);
  }
  // The bounding set needs CAP_SETPCAP, which an ordinary user has not.
  if (capng_apply(geteuid() == 0 ? CAPNG_SELECT_BOTH : CAPNG_SELECT_CAPS) != 0)
    fprintf(stderr, "posternd: cannot give up capabilities: %s\n", strerror(errno));
}

// By name: not each kernel's headers, nor each architecture, has each of them.
constexpr const char* kNever[] = {
    // other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd",
    // the host
    "acct", "delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load",
    "quotactl", "quotactl_fd", "reboot", "sethostname", "setdomainname", "swapoff", "swapon",
    "syslog", "vhangup", "adjtimex", "clock_adjtime", "clock_settime", "settimeofday", "iopl",
    "ioperm", "modify_ldt",
    // mounts and files by other means than their names
    "chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount",
    "open_tree", "pivot_root", "umount2", "fanotify_init", "name_to_handle_at", "open_by_handle_at",
    // large parts of the kernel that a daemon has no use for
    "add_key", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl", "perf_event_open",
    "personality", "request_key", "userfaultfd", "lookup_dcookie", "migrate_pages", "move_pages"};
// Of a daemon without VIs.
constexpr const char* kNamespaces[] = {"bpf", "setns", "unshare"};
constexpr const char* kPrograms[] = {"execve", "execveat"};
constexpr int kFamilies[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

// False: out of memory. A call that this architecture has not is none to refuse.
template <typename Names>
bool Refuse(scmp_filter_ctx filter, const Names& names) {
  for (const char* name : names) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) continue;
    const int error = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 0);
    if (error != 0 && error != -EDOM) return false;
  }
  return true;
}

bool RefuseSockets(scmp_filter_ctx filter, bool has_nics) {
  for (int family = 0; family < AF_MAX; family++) {
    bool used = has_nics && (family == AF_XDP || family == AF_PACKET);
    for (const int known : kFamilies) used = used || family == known;
    const scmp_arg_cmp same = {0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(family), 0};
    if (!used && seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1, same) != 0)
      return false;
  }
  return true;
}

bool FilterCalls(Role role, bool has_nics) {
  const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  if (filter == nullptr) return false;
  bool good = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1) == 0 && Refuse(filter, kNever) &&
              RefuseSockets(filter, has_nics);
  if (good && !has_nics) good = Refuse(filter, kNamespaces);
  if (good && role == Role::kSystem) good = Refuse(filter, kPrograms);
  (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_LOG, 1);  // an older kernel has none
  if (good) {
    const int error = seccomp_load(filter);
    good = error == 0;
    errno = -error;
  }
  seccomp_release(filter);
  return good;
}

}  // namespace

bool GiveUpRights(Role role, bool has_nics) {
  // The VIs' own thread has what it needs already in the broker, but a posternd has no such thread
  // before the first VI is asked for.
  if (role == Role::kSystem || !has_nics) DropCapabilities(role);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  if (kSanitized) return true;
  // Linux 6.3: memory that was written is never executed.
  if (role == Role::kSystem) (void)prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0);
  if (FilterCalls(role, has_nics)) return true;
  fprintf(stderr, "posternd: no filter of system calls: %s\n", strerror(errno));
  return false;
}

}  // namespace postern::daemon
