// SPDX-License-Identifier: Apache-2.0
// vfork_calls.cc - vfork: the parent waits, and its memory is the child's, as on Linux.
//
//   parent   postern_vfork_begin    every signal blocked; a slot for the child's image, with a
//      |                            reference on all that its descriptors mean; the table frozen
//      |-- vfork ---> child         has a copy of the descriptors
//      |              postern_vfork_after(0)    the table thawed, the mask as it was
//      |              close, dup2, ...          the kernel's alone (InVfork)
//      |              exec or _exit             an image without the library: ExportByChild
//   postern_vfork_after(pid)        what was made for the child is given back
//
// The system call itself is in vfork_entry.S: the child returns from vfork() first, so nothing of
// the parent's may stand on the stack meanwhile.
#include "vforking.h"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "../leaving.h"
#include "../real.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"
#include "life/process.h"
#include "life/slot.h"
#include "sock/own_family.h"

namespace postern {

constinit thread_local VforkChild t_vfork_child __attribute__((tls_model("initial-exec"))) = {};

namespace {

constexpr uint64_t kAllSignals = ~uint64_t{0};

void SetVforkMask(const uint64_t* mask, uint64_t* old) {
  (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), mask, old, 8L);
}

void InheritAsKernels(Family&) { ExportInherited(true); }

// A handler that runs here would wait for the child, or run in it.
void PrepareVfork(VforkChild& child) {
  SetVforkMask(&kAllSignals, &child.mask);
  child.attach = static_cast<char*>(sys::MapPrivate(kAttachBytes));
  if (child.attach == nullptr) ExportInherited(true);
  SpawnPrepare(g_family, InheritAsKernels);
  child.prepared = true;
  child.slot = EmbryoSlot(g_family);
  if (child.slot != PSTN_NONE && child.attach != nullptr)
    (void)ExecPrepare(g_family, child.attach, kAttachBytes, child.slot, true);
}

void EndVfork(VforkChild& child, long pid) {
  SpawnDone(g_family);    // the child has, unless it was killed before it could
  TableFreeze(g_family);  // another thread's exec needs what its ExecPrepare has done
  ExecFailed(g_family);
  TableThaw(g_family);
  if (child.slot != PSTN_NONE) Adopted(child.slot, pid > 0 ? static_cast<pid_t>(pid) : -1);
  if (child.env != nullptr) sys::Unmap(child.env, child.env_bytes);
  if (child.attach != nullptr) sys::Unmap(child.attach, kAttachBytes);
  child.env = nullptr;
  child.attach = nullptr;
  child.prepared = false;
  SetVforkMask(&child.mask, nullptr);
}

template <typename Fn>
void EachInherited(uint32_t slot, Fn fn) {
  EachFd(g_family, Stack(g_family).slots.Own(ProcIndex(slot)), [&](int fd, uint32_t entry) {
    // What the child has opened there since is another file.
    if (IsSocketOf(g_family, fd, entry)) fn(fd, entry);
  });
}

// The child of a child of vfork(): its memory is a copy, and its numbers mean what they did when
// its parent was made. Event sets are left to the first parent, which waits by them.
[[noreturn]] void ExportAndExit(uint32_t slot) {
  t_vforked = 0;
  for (uint32_t fd = 0; fd < g_family.fd_hw; fd++) {
    const uint32_t kind = FdEntry(g_family, static_cast<int>(fd)) & PSTN_FD_KIND;
    if (kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) MarkPrivate(g_family, static_cast<int>(fd), 0);
  }
  EachInherited(slot, [](int fd, uint32_t entry) { MarkPrivate(g_family, fd, entry); });
  ForkChild(g_family);  // in `slot`
  ExportInherited(true);
  for (;;) (void)sys::Call(SYS_exit_group, 0L);
}

}  // namespace

// The tables, the line to posternd and what is parked have numbers of the parent, whose threads go
// on meanwhile: so the work is done in a process with memory of its own.
bool ExportByChild(VforkChild& child) {
  if (child.slot == PSTN_NONE || child.attach == nullptr || child.attach[0] == 0) return true;
  bool any = false;
  EachInherited(child.slot, [&](int fd, uint32_t) { any = any || OutlivesExec(fd, true); });
  if (!any) return true;
  uint64_t mask = 0;
  SetVforkMask(&kAllSignals, &mask);
  TableFreeze(g_family);
  LocalLocksTake(g_family);
  const long pid = sys::Call(SYS_clone, 0L, 0L, 0L, 0L, 0L);  // exit signal 0: no SIGCHLD
  if (pid == 0) ExportAndExit(child.slot);
  LocalLocksGive(g_family);
  TableThaw(g_family);
  int status = 0;
  while (pid > 0 && sys::Call(SYS_wait4, pid, &status, long{__WCLONE}, nullptr) == -EINTR) {
  }
  SetVforkMask(&mask, nullptr);
  if (pid < 0) return false;
  child.attach[0] = 0;  // the slot has been that process's
  return true;
}

}  // namespace postern

using namespace postern;

extern "C" __attribute__((used, visibility("hidden"))) void postern_vfork_begin() {
  if (InVfork()) return;  // a child's child has the same memory, and the slot is the child's
  t_vfork_child.parent = sys::Pid();
  if (g_family.attached) PrepareVfork(t_vfork_child);
}

extern "C" __attribute__((used, visibility("hidden"))) long postern_vfork_after(long r) {
  VforkChild& child = t_vfork_child;
  if (r == 0) {
    const bool first = !InVfork();
    t_vforked = 1;
    if (!first || !child.prepared) return 0;
    SpawnDone(g_family);
    SetVforkMask(&child.mask, nullptr);
    return 0;
  }
  if (sys::Pid() == child.parent) {
    t_vforked = 0;
    if (child.prepared) EndVfork(child, r);
  }
  return Ret<long>(r);
}

#if !defined(PSTN_VFORK)
// Where the entry is not written, or a sanitizer has to see two processes: a child with memory of
// its own.
extern "C" pid_t fork() noexcept;
PSTN_EXPORT pid_t vfork() noexcept { return fork(); }
#endif
