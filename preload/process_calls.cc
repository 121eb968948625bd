// SPDX-License-Identifier: Apache-2.0
// process_calls.cc - fork, exec and spawn: what a child and a new image must know goes with them.
//
// pthread_atfork handlers do the work of fork, so that forks inside libc (daemon, forkpty) are
// covered. vfork is fork here: its child shares our memory but not our descriptors, and a close in
// it would be taken for one in the parent.
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/sys.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "leaving.h"
#include "life/process.h"
#include "life/reap.h"
#include "real.h"
#include "sock/own_family.h"
#include "spawning.h"

using namespace postern;

// The child of an embryo slot is known, or (pid < 0) there is none. A child that dies before it
// comes to its first instruction is then found by its pid.
void postern::Adopted(uint32_t slot, pid_t pid) {
  int e = errno;
  uint32_t own = SelfTid();
  if (pid < 0) {
    ReapSlot(g_family, slot);
  } else {
    CompareExchange(Stack(g_family).slots.Own(ProcIndex(slot)).pid, own,
                    static_cast<uint32_t>(pid));
  }
  errno = e;
}

namespace {

constexpr size_t kAttachBytes = 4096;
constexpr size_t kMaxKept = 64;
constexpr size_t kKeptBytes = 8192;

// LD_PRELOAD and the POSTERN_* variables with which this process was started.
char kept_text[kKeptBytes];
char* kept[kMaxKept];
size_t kept_count;

__attribute__((constructor(102))) void KeepEnvironment() {
  size_t at = 0;
  for (char** e = environ; e != nullptr && *e != nullptr && kept_count < kMaxKept; e++) {
    if (strncmp(*e, "POSTERN_", 8) != 0 && strncmp(*e, "LD_PRELOAD=", 11) != 0) continue;
    if (strncmp(*e, "POSTERN_ATTACH=", 15) == 0) continue;
    size_t n = strlen(*e) + 1;
    if (at + n > kKeptBytes) return;
    memcpy(kept_text + at, *e, n);
    kept[kept_count++] = kept_text + at;
    at += n;
  }
}

// A list of strings of any length, in memory of its own: the thread's stack may be small.
class Strings {
 public:
  explicit Strings(size_t room) : bytes_(room * sizeof(char*)) {
    const long r = sys::Call(SYS_mmap, 0L, bytes_, static_cast<long>(PROT_READ | PROT_WRITE),
                             static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
    if (r > 0 || r < -4095) all_ = reinterpret_cast<char**>(r);
  }
  ~Strings() {
    if (all_ != nullptr) sys::Unmap(all_, bytes_);
  }
  Strings(const Strings&) = delete;
  Strings& operator=(const Strings&) = delete;
  char** get() const { return all_; }  // null: no memory

 private:
  const size_t bytes_;
  char** all_ = nullptr;
};

size_t CountOf(char* const* strings) {
  size_t n = 0;
  while (strings != nullptr && strings[n] != nullptr) n++;
  return n;
}
// What WithAttach needs for `envp`.
size_t RoomFor(char* const* envp) { return CountOf(envp) + kMaxKept + 2; }

bool Named(const char* variable, const char* name) {
  size_t n = strlen(name);
  return strncmp(variable, name, n) == 0 && variable[n] == '=';
}

// `envp` with our variable in it, in an array of the caller's. Programs that make a new environment
// for their successor (nginx at a binary upgrade) would leave the library behind, and with it the
// sockets that it inherits: what brought us here goes with it.
char** WithAttach(char* const envp[], char* attach, char** out) {
  size_t n = 0;
  bool preload = false, options = false;
  for (; envp != nullptr && *envp != nullptr; envp++) {
    if (Named(*envp, "POSTERN_ATTACH")) continue;
    preload = preload || Named(*envp, "LD_PRELOAD");
    options = options || Named(*envp, "POSTERN_RUNTIME_DIR");
    out[n++] = *envp;
  }
  for (size_t i = 0; i < kept_count; i++) {
    bool is_preload = Named(kept[i], "LD_PRELOAD");
    if (is_preload ? !preload : !options) out[n++] = kept[i];
  }
  if (attach[0] != 0) out[n++] = attach;
  out[n] = nullptr;
  return out;
}

// Not inlined: what setjmp() comes back to keeps no variable of its caller.
template <typename Call>
__attribute__((noinline)) bool ExecUnlessSignal(Call& exec, char* const* envp, int* r) {
  jmp_buf signal_came;
  if (_setjmp(signal_came) != 0 || !BeginLeaving(signal_came)) return false;
  *r = exec(envp);
  EndLeaving();
  return true;
}

// One try. False: a signal came before the image did. Its handler runs as the locks are left, with
// the program's own mask, and so before the image, which would have had every signal blocked else.
template <typename Call>
bool TryExec(bool loses, char* const envp[], char** env, Call exec, int* r) {
  char attach[kAttachBytes];
  size_t len = 0;
  // No other thread changes descriptors, or ends the preparations, before the image is there.
  TableFreeze(g_family);
  if (loses) {
    ExecWithout(g_family);
  } else {
    len = ExecPrepare(g_family, attach, sizeof attach, g_family.slot, false);
  }
  char* const* with = len != 0 ? WithAttach(envp, attach, env) : envp;
  const bool tried = ExecUnlessSignal(exec, with, r);
  const int e = errno;
  ExecFailed(g_family);
  TableThaw(g_family);
  errno = e;
  return tried;
}

// Runs `exec(envp)`, which returns only if it fails. `path` is what it will run, as far as that can
// be told.
template <typename Call>
int Exec(const char* path, bool search, char* const envp[], Call exec) {
  // Without a stack there is nothing to hand on, and the environment is the kernel's to read.
  const Strings env(RoomFor(g_family.attached ? envp : nullptr));
  if (env.get() == nullptr) return Ret<int>(-ENOMEM);
  int r = -1;
  const bool loses = g_family.attached && LosesLibrary(path, search);
  if (loses) ExportInherited(false);
  while (!TryExec(loses, envp, env.get(), exec, &r)) {
  }
  return r;
}

// execl and its kin: `exec(argv, envp)` with the list as an array. Behind its end execle has the
// environment.
template <typename Call>
int ExecList(const char* arg, va_list ap, bool has_env, Call exec) {
  va_list to_count;
  va_copy(to_count, ap);
  size_t n = 0;
  for (const char* a = arg; a != nullptr; a = va_arg(to_count, const char*)) n++;
  va_end(to_count);
  const Strings argv(n + 1);
  if (argv.get() == nullptr) return Ret<int>(-ENOMEM);
  for (size_t i = 0; i < n; i++, arg = va_arg(ap, const char*))
    argv.get()[i] = const_cast<char*>(arg);
  argv.get()[n] = nullptr;
  return exec(argv.get(), has_env ? va_arg(ap, char**) : environ);
}

}  // namespace

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
PSTN_EXPORT pid_t vfork() noexcept { return fork(); }

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
  if (r == 0 && (flags & CLONE_NEWNET) != 0) LearnNetns(g_family);
  return r;
}
PSTN_EXPORT int setns(int fd, int type) noexcept {
  int r = PSTN_REAL(setns)(fd, type);
  if (r == 0) LearnNetns(g_family);
  return r;
}

PSTN_EXPORT int prctl(int option, ...) noexcept {
  va_list ap;
  va_start(ap, option);
  long a[4];
  for (long& v : a) v = va_arg(ap, long);
  va_end(ap);
  // Without a filter it is a question whether the kernel knows them.
  if (option == PR_SET_SECCOMP && (a[0] == SECCOMP_MODE_STRICT || a[1] != 0)) ExportConfined();
  return Ret<int>(sys::Call(SYS_prctl, option, a[0], a[1], a[2], a[3]));
}

PSTN_EXPORT int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
  return Exec(path, false, envp,
              [&](char* const* env) { return PSTN_REAL(execve)(path, argv, env); });
}
PSTN_EXPORT int execv(const char* path, char* const argv[]) noexcept {
  return execve(path, argv, environ);
}
PSTN_EXPORT int execvpe(const char* file, char* const argv[], char* const envp[]) noexcept {
  return Exec(file, true, envp,
              [&](char* const* env) { return PSTN_REAL(execvpe)(file, argv, env); });
}
PSTN_EXPORT int execvp(const char* file, char* const argv[]) noexcept {
  return execvpe(file, argv, environ);
}
PSTN_EXPORT int fexecve(int fd, char* const argv[], char* const envp[]) noexcept {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return Exec(path, false, envp,
              [&](char* const* env) { return PSTN_REAL(fexecve)(fd, argv, env); });
}
PSTN_EXPORT int execveat(int dir, const char* path, char* const argv[], char* const envp[],
                         int flags) noexcept {
  char full[4200];
  bool relative = dir != AT_FDCWD && path != nullptr && path[0] != '/';
  if (relative)
    snprintf(full, sizeof full, "/proc/self/fd/%d%s%s", dir, path[0] != 0 ? "/" : "", path);
  return Exec(relative ? full : path, false, envp,
              [&](char* const* env) { return PSTN_REAL(execveat)(dir, path, argv, env, flags); });
}
PSTN_EXPORT int execl(const char* path, const char* arg, ...) noexcept {
  va_list ap;
  va_start(ap, arg);
  const int r =
      ExecList(arg, ap, false, [&](char** a, char** env) { return execve(path, a, env); });
  va_end(ap);
  return r;
}
PSTN_EXPORT int execlp(const char* file, const char* arg, ...) noexcept {
  va_list ap;
  va_start(ap, arg);
  const int r =
      ExecList(arg, ap, false, [&](char** a, char** env) { return execvpe(file, a, env); });
  va_end(ap);
  return r;
}
PSTN_EXPORT int execle(const char* path, const char* arg, ...) noexcept {
  va_list ap;
  va_start(ap, arg);
  const int r = ExecList(arg, ap, true, [&](char** a, char** env) { return execve(path, a, env); });
  va_end(ap);
  return r;
}

int postern::SpawnWith(pid_t* pid, const char* path, bool search, char* const envp[],
                       SpawnCall spawn, void* context) {
  pid_t none;
  if (pid == nullptr) pid = &none;
  if (!g_family.attached) return spawn(context, pid, envp);
  if (LosesLibrary(path, search)) {
    ExportInherited(true);
    return spawn(context, pid, envp);
  }
  char attach[kAttachBytes];
  const Strings env(RoomFor(envp));
  if (env.get() == nullptr) return ENOMEM;
  // What the slot's table says and what the child inherits is one state.
  SpawnPrepare(g_family, [](Family&) { ExportInherited(true); });
  uint32_t slot = EmbryoSlot(g_family);
  size_t len = slot != PSTN_NONE ? ExecPrepare(g_family, attach, sizeof attach, slot, true) : 0;
  int r = spawn(context, pid, len != 0 ? WithAttach(envp, attach, env.get()) : envp);
  ExecFailed(g_family);
  SpawnDone(g_family);
  if (slot != PSTN_NONE) Adopted(slot, r == 0 ? *pid : -1);
  return r;
}

PSTN_EXPORT int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attr, char* const argv[], char* const envp[]) {
  return SpawnBy(pid, path, false, envp, [&](pid_t* p, char* const* env) {
    const posix_spawnattr_t with = WithProgramMask(attr);
    return PSTN_REAL(posix_spawn)(p, path, actions, &with, argv, env);
  });
}
PSTN_EXPORT int posix_spawnp(pid_t* pid, const char* file,
                             const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attr, char* const argv[],
                             char* const envp[]) {
  return SpawnBy(pid, file, true, envp, [&](pid_t* p, char* const* env) {
    const posix_spawnattr_t with = WithProgramMask(attr);
    return PSTN_REAL(posix_spawnp)(p, file, actions, &with, argv, env);
  });
}
