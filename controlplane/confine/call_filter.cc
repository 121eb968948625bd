// call_filter.cc - see call_filter.h.
// SPDX-License-Identifier: Apache-2.0
#include "call_filter.h"

#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/sanitized.h"

namespace postern::daemon {
namespace {

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
constexpr const char* kNamespaces[] = {"setns", "unshare"};
constexpr const char* kBpf[] = {"bpf"};
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

bool RefuseSockets(scmp_filter_ctx filter, bool packets) {
  for (int family = 0; family < AF_MAX; family++) {
    bool used = packets && (family == AF_XDP || family == AF_PACKET);
    for (const int known : kFamilies) used = used || family == known;
    const scmp_arg_cmp same = {0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(family), 0};
    if (!used && seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1, same) != 0)
      return false;
  }
  return true;
}

bool Fill(scmp_filter_ctx filter, const MoreCalls& more, bool by_prctl) {
  return (by_prctl || seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1) == 0) &&
         Refuse(filter, kNever) && RefuseSockets(filter, more.packets) &&
         (more.namespaces || Refuse(filter, kNamespaces)) && (more.bpf || Refuse(filter, kBpf)) &&
         (more.programs || Refuse(filter, kPrograms));
}

}  // namespace

bool FilterCalls(const MoreCalls& more) {
  if (kSanitized) return true;
  const bool by_prctl = more.by_prctl && prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER;
  if (by_prctl && seccomp_api_set(1) != 0) return false;  // else libseccomp tries the call
  const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  if (filter == nullptr) {
    errno = ENOMEM;
    return false;
  }
  int error = Fill(filter, more, by_prctl) ? 0 : -ENOMEM;
  if (!by_prctl) (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_LOG, 1);  // older kernels: none
  if (error == 0) error = seccomp_load(filter);
  seccomp_release(filter);
  errno = -error;
  return error == 0;
}

}  // namespace postern::daemon
