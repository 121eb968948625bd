// SPDX-License-Identifier: Apache-2.0
// init.cc - start of the library in a process, and hygiene of the fd table.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/refs.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "leaving.h"
#include "life/depart.h"
#include "life/process.h"
#include "life/surroundings.h"
#include "real.h"
#include "sock/own_family.h"
#include "uring/code_scan.h"

namespace postern {

void* RealSymbol(const char* name) { return dlsym(RTLD_NEXT, name); }

void TakeNumber(int fd) {
  if (FdEntry(g_family, fd) == 0) return;
  TableChange change(g_family);
  uint32_t e = FdEntry(g_family, fd);
  uint32_t kind = e & PSTN_FD_KIND;
  if (kind == PSTN_FD_CACHED) {
    CacheRemove(g_family, fd);
  } else if ((kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) &&
             ClaimFd(g_family, fd, e, kFdReplaced)) {
    HandLostToUsers(g_family, e);
    DropNumber(g_family, fd, e);
    MarkPrivate(g_family, fd, 0);
  }
}

int Fresh::Fd(int fd) const {
  if (fd < 0 || FdEntry(g_family, fd) == 0 || InVfork()) return fd;
  if (LoadAcquire(g_family.replaced) != seen_) return fd;  // [T7]
  uint32_t kind = FdEntry(g_family, fd) & PSTN_FD_KIND;
  if (kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) Count(Stack(g_family).hdr, kCounterFdsLost);
  TakeNumber(fd);
  return fd;
}

bool OutOfFds(int result) {
  if (result >= 0 || (errno != EMFILE && errno != ENFILE) || InVfork()) return false;
  if (CacheFlush(g_family)) return true;
  // Ours may be what it lacks: then it is without.
  rlimit limit = {0, 0};
  (void)sys::Call(SYS_prlimit64, 0L, static_cast<long>(RLIMIT_NOFILE), nullptr, &limit);
  if (!g_family.attached || static_cast<uint64_t>(g_family.stack_fd) >= limit.rlim_cur)
    return false;
  LeaveForGood(g_family, kReasonNoDescriptor);
  return true;
}

namespace {

__attribute__((constructor(101))) void Start() {
  ProcessInit(g_family, environ);
  if (g_family.attached && MayBeSandboxed() && !RingsOthers(g_family)) StepAside(kReasonSandbox);
  SignalsInit();
  (void)pthread_atfork([] { ForkPrepare(g_family); }, [] { ForkParent(g_family); },
                       [] { ForkChild(g_family); });
  LearnProgram();
  StdioAttach();
}

}  // namespace
}  // namespace postern
