// SPDX-License-Identifier: Apache-2.0
// init.cc - start of the library in a process, and hygiene of the fd table.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>

#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/refs.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "life/process.h"
#include "real.h"
#include "sock/own_family.h"

namespace postern {

namespace {

// Those that the library calls, looked up when it is loaded: dlsym() takes a lock of the loader's,
// which another thread may have had when this process was forked.
constexpr const char* kNames[] = {"_Fork",
                                  "__fxstat",
                                  "__fxstat64",
                                  "__sysv_signal",
                                  "__vdprintf_chk",
                                  "accept4",
                                  "bind",
                                  "clone",
                                  "close",
                                  "connect",
                                  "dup",
                                  "dup2",
                                  "dup3",
                                  "epoll_create1",
                                  "epoll_ctl",
                                  "epoll_pwait",
                                  "epoll_pwait2",
                                  "epoll_wait",
                                  "eventfd",
                                  "execve",
                                  "execveat",
                                  "execvpe",
                                  "fclose",
                                  "fcntl",
                                  "fdopen",
                                  "fexecve",
                                  "fileno_unlocked",
                                  "fork",
                                  "fstat",
                                  "fstat64",
                                  "getpeername",
                                  "getsockname",
                                  "getsockopt",
                                  "ioctl",
                                  "listen",
                                  "lseek",
                                  "lseek64",
                                  "openat",
                                  "pclose",
                                  "pipe2",
                                  "poll",
                                  "popen",
                                  "posix_spawn",
                                  "posix_spawn_file_actions_adddup2",
                                  "posix_spawnp",
                                  "ppoll",
                                  "preadv2",
                                  "pselect",
                                  "pwritev2",
                                  "read",
                                  "readv",
                                  "recv",
                                  "recvfrom",
                                  "recvmmsg",
                                  "recvmsg",
                                  "select",
                                  "send",
                                  "sendfile",
                                  "sendmmsg",
                                  "sendmsg",
                                  "sendto",
                                  "seteuid",
                                  "setns",
                                  "setresuid",
                                  "setreuid",
                                  "setsockopt",
                                  "setuid",
                                  "shutdown",
                                  "sigaction",
                                  "siginterrupt",
                                  "signal",
                                  "socket",
                                  "socketpair",
                                  "splice",
                                  "stat",
                                  "system",
                                  "timerfd_create",
                                  "unshare",
                                  "vdprintf",
                                  "wait4",
                                  "waitid",
                                  "write",
                                  "writev"};
constexpr size_t kNameCount = sizeof kNames / sizeof kNames[0];
void* real_ones[kNameCount];

void LookUpAll() {
  for (size_t i = 0; i < kNameCount; i++) real_ones[i] = dlsym(RTLD_NEXT, kNames[i]);
}

}  // namespace

void* RealSymbol(const char* name) {
  for (size_t i = 0; i < kNameCount; i++) {
    if (real_ones[i] != nullptr && strcmp(kNames[i], name) == 0) return real_ones[i];
  }
  return dlsym(RTLD_NEXT, name);
}

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
  if (fd < 0 || FdEntry(g_family, fd) == 0) return fd;
  if (LoadAcquire(g_family.replaced) != seen_) return fd;  // [T7]
  uint32_t kind = FdEntry(g_family, fd) & PSTN_FD_KIND;
  if (kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) Count(Stack(g_family).hdr, kCounterFdsLost);
  TakeNumber(fd);
  return fd;
}

bool OutOfFds(int result) {
  if (result >= 0 || (errno != EMFILE && errno != ENFILE)) return false;
  CacheFlush(g_family);
  return true;
}

namespace {

__attribute__((constructor(101))) void Start() {
  LookUpAll();
  ProcessInit(g_family, environ);
  SignalsInit();
  (void)pthread_atfork([] { ForkPrepare(g_family); }, [] { ForkParent(g_family); },
                       [] { ForkChild(g_family); });
  StdioAttach();
}

}  // namespace
}  // namespace postern
