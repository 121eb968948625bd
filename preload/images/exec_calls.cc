// SPDX-License-Identifier: Apache-2.0
// exec_calls.cc - exec and spawn: what a new image must know goes with it.
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../leaving.h"
#include "../real.h"
#include "base/space/pages.h"
#include "base/space/room.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "life/process.h"
#include "sock/own_family.h"
#include "spawning.h"
#include "vforking.h"

using namespace postern;

namespace {

constexpr size_t kPathBytes = 4200;  // of PATH_MAX, below a descriptor
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

size_t CountOf(char* const* strings) {
  size_t n = 0;
  while (strings != nullptr && strings[n] != nullptr) n++;
  return n;
}
// Whether the kernel, too, will find them: else the call is its to answer, before we map anything
// where there was nothing.
bool AreReadable(const char* path, char* const* strings) {
  if (!UserReadable(path, 1)) return false;
  for (char* one = nullptr; strings != nullptr; strings++) {
    if (!GetUser(one, strings)) return false;
    if (one == nullptr) break;
    if (!UserReadable(one, 1)) return false;
  }
  return true;
}

// What WithAttach needs for `envp`.
size_t EnvBytes(char* const* envp) { return (CountOf(envp) + kMaxKept + 2) * sizeof(char*); }

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

// What a next image gets, in memory of its own: the thread's stack may be small.
class Outfit {
 public:
  explicit Outfit(char* const envp[]) : room_(kAttachBytes + EnvBytes(envp)) {}
  bool ok() const { return room_.As<char>() != nullptr; }
  char* attach() const { return room_.As<char>(); }
  char** env() const { return reinterpret_cast<char**>(room_.As<char>() + kAttachBytes); }

 private:
  const OwnPages room_;
};

// Whether the next image has nothing of the stack: it has no library, or no room for it.
bool TakesNothing(const char* path, bool search) {
  return LosesLibrary(path, search) || !AddressesLeft().HoldAStack();
}

// One try. False: a signal came before the image did. Its handler runs as the locks are left, with
// the program's own mask, and so before the image, which would have had every signal blocked else.
template <typename Call>
bool TryExec(bool loses, char* const envp[], const Outfit& outfit, Call exec, int* r) {
  size_t len = 0;
  // No other thread changes descriptors, or ends the preparations, before the image is there.
  TableFreeze(g_family);
  if (loses) {
    ExecWithout(g_family);
  } else {
    len = ExecPrepare(g_family, outfit.attach(), kAttachBytes, g_family.slot, false);
  }
  char* const* with = len != 0 ? WithAttach(envp, outfit.attach(), outfit.env()) : envp;
  const bool tried = ExecUnlessSignal(exec, with, r);
  const int e = errno;
  ExecFailed(g_family);
  TableThaw(g_family);
  errno = e;
  return tried;
}

// In a child of vfork(), whose parent gives back what is left of this in its memory.
template <typename Call>
int ExecInVfork(const char* path, bool search, char* const envp[], Call exec) {
  VforkChild& child = t_vfork_child;
  if (!child.prepared || !AreReadable(path, envp)) return exec(envp);
  if (TakesNothing(path, search)) return ExportByChild(child) ? exec(envp) : Ret<int>(-EAGAIN);
  if (child.attach == nullptr || child.attach[0] == 0) return exec(envp);
  if (child.env != nullptr) sys::Unmap(child.env, child.env_bytes);
  child.env_bytes = EnvBytes(envp);
  child.env = static_cast<char**>(sys::MapPrivate(child.env_bytes));
  return child.env != nullptr ? exec(WithAttach(envp, child.attach, child.env)) : Ret<int>(-ENOMEM);
}

// Runs `exec(envp)`, which returns only if it fails. `path` is what it will run, as far as that can
// be told.
template <typename Call>
int Exec(const char* path, bool search, char* const envp[], Call exec) {
  if (InVfork()) return ExecInVfork(path, search, envp, exec);
  // Without a stack there is nothing to hand on, and the environment is the kernel's to read.
  if (!g_family.attached || !AreReadable(path, envp)) return exec(envp);
  const Outfit outfit(envp);
  if (!outfit.ok()) return Ret<int>(-ENOMEM);
  int r = -1;
  const bool loses = TakesNothing(path, search);
  if (loses) ExportInherited(false);
  while (!TryExec(loses, envp, outfit, exec, &r)) {
  }
  return r;
}

// execl and its kin: `exec(argv, envp)` with the list as an array. Behind its end execle has the
// environment. A child of vfork() has no memory to take that it could give back: its list is
// libc's, on the stack.
template <typename Call>
int ExecList(const char* arg, va_list ap, bool has_env, Call exec) {
  va_list to_count;
  va_copy(to_count, ap);
  size_t n = 0;
  for (const char* a = arg; a != nullptr; a = va_arg(to_count, const char*)) n++;
  va_end(to_count);
  constexpr size_t kFew = 64;
  char* few[kFew];
  const OwnPages many(n < kFew ? 0 : (n + 1) * sizeof(char*));
  char** const argv = n < kFew ? few : many.As<char*>();
  if (argv == nullptr) return Ret<int>(-ENOMEM);
  for (size_t i = 0; i < n; i++, arg = va_arg(ap, const char*)) argv[i] = const_cast<char*>(arg);
  argv[n] = nullptr;
  return exec(argv, has_env ? va_arg(ap, char**) : environ);
}

}  // namespace

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
  const auto real = [&](char* const* env) {
    return PSTN_REAL(execveat)(dir, path, argv, env, flags);
  };
  if (!g_family.attached || dir == AT_FDCWD || !UserReadable(path, 1) || path[0] == '/')
    return Exec(path, false, envp, real);
  const OwnPages full(kPathBytes);
  if (full.As<char>() == nullptr) return Ret<int>(-ENOMEM);
  snprintf(full.As<char>(), kPathBytes, "/proc/self/fd/%d%s%s", dir, path[0] != 0 ? "/" : "", path);
  return Exec(full.As<char>(), false, envp, real);
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
  if (!g_family.attached || !AreReadable(path, envp)) return spawn(context, pid, envp);
  if (TakesNothing(path, search)) {
    ExportInherited(true);
    return spawn(context, pid, envp);
  }
  const Outfit outfit(envp);
  if (!outfit.ok()) return ENOMEM;
  // What the slot's table says and what the child inherits is one state.
  SpawnPrepare(g_family, [](Family&) { ExportInherited(true); });
  uint32_t slot = EmbryoSlot(g_family);
  size_t len =
      slot != PSTN_NONE ? ExecPrepare(g_family, outfit.attach(), kAttachBytes, slot, true) : 0;
  int r = spawn(context, pid, len != 0 ? WithAttach(envp, outfit.attach(), outfit.env()) : envp);
  ExecFailed(g_family);
  SpawnDone(g_family);
  if (slot != PSTN_NONE) Adopted(slot, r == 0 ? *pid : -1);
  return r;
}
