// confine.cc - see confine.h.
// SPDX-License-Identifier: Apache-2.0
//
// The memory that a reaper works on may make it do anything. It could do nothing with that which
// the family can't do itself: it runs as the family's user. What is taken from it beyond that keeps
// a family that has lost its rights since (a sandbox) from getting them back here.
#include "confine.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "abi/kmod_abi.h"
#include "base/sanitized.h"

namespace postern::reaper {
namespace {

constexpr unsigned kFirstNotOurs = 4;     // 3 is the line
constexpr rlim_t kDataBytes = 256 << 20;  // private memory; the family's is shared
constexpr rlim_t kCpuSec = 30;            // it is replaced before (main.cc)
constexpr rlim_t kFiles = 64;

bool Limit(__rlimit_resource what, rlim_t value) {
  rlimit now{};
  if (getrlimit(what, &now) != 0) return false;
  if (now.rlim_max < value) value = now.rlim_max;
  now = {value, value};
  return setrlimit(what, &now) == 0;
}

bool DropCapabilities() {
  (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0;
}

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#endif

constexpr uint32_t kNumberOff = offsetof(seccomp_data, nr), kArchOff = offsetof(seccomp_data, arch);
constexpr uint32_t ArgOff(uint32_t i) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args)) + 8 * i;  // its lower half
}

// Each needs nothing of its arguments.
constexpr long kFree[] = {
    SYS_read,           SYS_write,           SYS_writev,      SYS_sendto,     SYS_sendmsg,
    SYS_recvmsg,        SYS_recvfrom,        SYS_futex,       SYS_munmap,     SYS_madvise,
    SYS_mremap,         SYS_lseek,           SYS_fstat,       SYS_fcntl,      SYS_fstatfs,
    SYS_close,          SYS_pidfd_open,      SYS_ppoll,       SYS_nanosleep,  SYS_clock_nanosleep,
    SYS_clock_gettime,  SYS_gettid,          SYS_getpid,      SYS_geteuid,    SYS_getrandom,
    SYS_getrusage,      SYS_setitimer,       SYS_exit,        SYS_exit_group, SYS_rt_sigreturn,
    SYS_rt_sigprocmask, SYS_restart_syscall, SYS_sched_yield, SYS_brk,        SYS_prlimit64,
#if defined(__x86_64__)
    SYS_poll,
#endif
};
// Each with one argument that has to be 0 in these bits, or equal to this.
struct Checked {
  long number;
  uint32_t arg, mask, value;
};
constexpr Checked kChecked[] = {
    {SYS_kill, 1, ~0u, 0},  // only whether a process is there
    {SYS_tgkill, 2, ~0u, 0},
    {SYS_mmap, 2, PROT_EXEC, 0},
    {SYS_mprotect, 2, PROT_EXEC, 0},
    {SYS_socket, 0, ~0u, AF_UNIX},
    {SYS_ioctl, 1, ~0u, PSTN_IOC_WAKE},
};
constexpr size_t kFreeCount = sizeof(kFree) / sizeof(kFree[0]);
constexpr size_t kCheckedCount = sizeof(kChecked) / sizeof(kChecked[0]);
constexpr size_t kProgram = 4 + 2 * kFreeCount + 5 * kCheckedCount + 1;

}  // namespace

bool Confine() {
  (void)syscall(SYS_close_range, kFirstNotOurs, ~0U, 0U);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || !DropCapabilities()) return false;
  if (!kSanitized && !Limit(RLIMIT_DATA, kDataBytes)) return false;
  return Limit(RLIMIT_CPU, kCpuSec) && Limit(RLIMIT_NOFILE, kFiles) && Limit(RLIMIT_CORE, 0) &&
         Limit(RLIMIT_NPROC, 0);
}

bool FilterCalls() {
  if (kSanitized) return true;
  sock_filter program[kProgram];
  size_t n = 0;
  const auto add = [&](uint16_t code, uint32_t k, uint8_t yes, uint8_t no) {
    program[n++] = {code, yes, no, k};
  };
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS, kIs = BPF_JMP | BPF_JEQ | BPF_K,
                     kReturn = BPF_RET | BPF_K, kAnd = BPF_ALU | BPF_AND | BPF_K;
  add(kLoad, kArchOff, 0, 0);
  add(kIs, kArch, 1, 0);
  add(kReturn, SECCOMP_RET_KILL_PROCESS, 0, 0);
  add(kLoad, kNumberOff, 0, 0);
  for (const long number : kFree) {
    add(kIs, static_cast<uint32_t>(number), 0, 1);
    add(kReturn, SECCOMP_RET_ALLOW, 0, 0);
  }
  for (const Checked& c : kChecked) {
    add(kIs, static_cast<uint32_t>(c.number), 0, 4);
    add(kLoad, ArgOff(c.arg), 0, 0);
    add(kAnd, c.mask, 0, 0);
    add(kIs, c.value, 0, static_cast<uint8_t>(kProgram - 1 - (n + 1)));
    add(kReturn, SECCOMP_RET_ALLOW, 0, 0);
  }
  add(kReturn, SECCOMP_RET_KILL_PROCESS, 0, 0);
  const sock_fprog filter{static_cast<unsigned short>(n), program};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

}  // namespace postern::reaper
