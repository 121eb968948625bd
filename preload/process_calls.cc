// SPDX-License-Identifier: Apache-2.0
// process_calls.cc - fork, and what else makes a process or changes its namespaces. exec and spawn
// are in exec_calls.cc, vfork in vfork_calls.cc.
//
// pthread_atfork handlers do the work of fork, so that forks inside libc (daemon, forkpty) are
// covered.
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdarg>

#include "base/sys.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "leaving.h"
#include "life/process.h"
#include "life/reap.h"
#include "real.h"
#include "sock/own_family.h"

using namespace postern;

// The child of an embryo slot is known, or (pid < 0) there is none. A child that dies before it
// comes to its first instruction is then found by its pid.
void postern::Adopted(uint32_t slot, pid_t pid) {
  int e = errno;
  uint32_t own = SelfTid();
  if (pid < 0) {
    EndEmbryo(g_family, slot);
  } else if (pid != 0) {  // 0: it could not be found out
    CompareExchange(Stack(g_family).slots.Own(ProcIndex(slot)).pid, own,
                    static_cast<uint32_t>(pid));
  }
  errno = e;
}

namespace {

// In the parent, which has made a slot for the child; negative: it is not to be.
void Forked(pid_t child) {
  if (child != 0 && g_family.attached && EmbryoSlot(g_family) != PSTN_NONE)
    Adopted(EmbryoSlot(g_family), child);
}

}  // namespace

PSTN_EXPORT pid_t fork() noexcept {
  const pid_t child = PSTN_REAL(fork)();
  Forked(child);
  return child;
}
// The same without the handlers of pthread_atfork.
PSTN_EXPORT pid_t _Fork() noexcept {
  ForkPrepare(g_family);
  const pid_t child = PSTN_REAL(_Fork)();
  if (child == 0) {
    ForkChild(g_family);
    return 0;
  }
  ForkParent(g_family);
  Forked(child);
  return child;
}

namespace {

struct Cloned {
  int (*fn)(void*);
  void* arg;
};
int RunCloned(void* p) {
  Cloned c = *static_cast<Cloned*>(p);  // in the child's copy of the parent's memory
  ForkChild(g_family);
  return c.fn(c.arg);
}

}  // namespace

// A child with memory of its own is one of fork; others are threads, or the program's own affair.
PSTN_EXPORT int clone(int (*fn)(void*), void* stack, int flags, void* arg, ...) noexcept {
  va_list ap;
  va_start(ap, arg);
  auto* ptid = va_arg(ap, pid_t*);
  auto* tls = va_arg(ap, void*);
  auto* ctid = va_arg(ap, pid_t*);
  va_end(ap);
  if ((flags & (CLONE_VM | CLONE_THREAD)) != 0 || !g_family.attached) {
    return PSTN_REAL(clone)(fn, stack, flags, arg, ptid, tls, ctid);
  }
  Cloned c = {fn, arg};
  ForkPrepare(g_family);
  int r = PSTN_REAL(clone)(RunCloned, stack, flags, &c, ptid, tls, ctid);
  ForkParent(g_family);
  Forked(r);
  return r;
}
PSTN_EXPORT int unshare(int flags) noexcept {
  int r = PSTN_REAL(unshare)(flags);
  if (r == 0 && (flags & CLONE_NEWNET) != 0 && !InVfork()) LearnNetns(g_family);
  return r;
}
PSTN_EXPORT int setns(int fd, int type) noexcept {
  int r = PSTN_REAL(setns)(fd, type);
  if (r == 0 && !InVfork()) LearnNetns(g_family);
  return r;
}

PSTN_EXPORT int prctl(int option, ...) noexcept {
  va_list ap;
  va_start(ap, option);
  long a[4];
  for (long& v : a) v = va_arg(ap, long);
  va_end(ap);
  // Without a filter it is a question whether the kernel knows them.
  const bool confines = option == PR_SET_SECCOMP && (a[0] == SECCOMP_MODE_STRICT || a[1] != 0);
  if (confines && !InVfork()) ExportConfined();
  return Ret<int>(sys::Call(SYS_prctl, option, a[0], a[1], a[2], a[3]));
}
