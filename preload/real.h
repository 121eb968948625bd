// SPDX-License-Identifier: Apache-2.0
// real.h - the C library's own functions, behind ours.
//
// Looked up when the library is loaded: dlsym() takes a lock of the loader's, which another thread
// may have when this process is forked. A call that comes earlier (another constructor, an
// allocator that opens files) goes straight to the kernel where a system call of the same shape
// exists.
#pragma once
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "images/vforking.h"
#include "sock/own_family.h"

#define PSTN_EXPORT extern "C" __attribute__((visibility("default")))

namespace postern {

void* RealSymbol(const char* name);

// A name as an argument of a template.
template <size_t kBytes>
struct SymbolName {
  constexpr SymbolName(const char (&name)[kBytes]) { std::copy_n(name, kBytes, text); }
  char text[kBytes] = {};
};
// One for each name that is used anywhere, made with the library's other variables.
template <SymbolName kName>
struct Real {
  static inline void* function = RealSymbol(kName.text);
};

// The function of that name with the type of its declaration. Before the library's variables are
// made it is looked up each time.
#define PSTN_REAL(name)                                \
  ([]() -> decltype(&::name) {                         \
    void* found = Real<#name>::function;               \
    if (found == nullptr) found = RealSymbol(#name);   \
    return reinterpret_cast<decltype(&::name)>(found); \
  }())

// A system call's result as libc gives it.
template <typename T = long>
inline T Ret(long r) {
  if (r >= 0) return static_cast<T>(r);
  errno = static_cast<int>(-r);
  return static_cast<T>(-1);
}

// What a call on an fd that has no endpoint comes to: the kernel's business, or -EBADF, because the
// program has closed that number (its socket waits in the cache) or never had it (our own fds).
inline bool IsHidden(uint32_t entry) {
  uint32_t kind = entry & PSTN_FD_KIND;
  return kind == PSTN_FD_CACHED || kind == PSTN_FD_INTERNAL;
}
inline long Foreign(int fd) { return IsHidden(FdMeans(g_family, fd)) ? -EBADF : kPass; }

// One call on a descriptor: `ours(call)` if it is an endpoint's; `real(fd)`, libc's, if that says
// kPass or it is something else. A program pays a look at its number for descriptors that are not
// ours.
template <typename T, typename Fn, typename Real>
inline T Through(int fd, Fn ours, Real real) {
  for (bool again = true; again;) {
    again = false;
    Call call(g_family, fd);
    if (call.ep() != nullptr) {
      const long r = ours(call);
      if (r == kRestart) [[unlikely]] {
        again = true;
        continue;
      }
      if (r != kPass) return Ret<T>(r);
      if (call.moved()) [[unlikely]]  // another thread has closed the number: the call goes on
        return real(call.fd());
    } else if (IsHidden(call.entry())) {
      return Ret<T>(-EBADF);
    }
  }
  return real(fd);
}

// Wraps the handlers that the program installs from now on (signal_calls.cc). Before the library's
// own fork handlers are registered.
void SignalsInit();
// In poll, select and epoll_wait every handler ends the wait, SA_RESTART or not.
extern constinit thread_local bool t_waits_for_many __attribute__((tls_model("initial-exec")));
class WaitsForMany {
 public:
  WaitsForMany() { t_waits_for_many = true; }
  ~WaitsForMany() { t_waits_for_many = false; }
  WaitsForMany(const WaitsForMany&) = delete;
  WaitsForMany& operator=(const WaitsForMany&) = delete;
};

// Gives stdin, stdout and stderr functions of ours where they are accelerated sockets
// (stdio_calls.cc).
void StdioAttach();
// 0, 1 or 2 has been given to something else. `copied`: by a call that copies descriptors.
// Any other number is left alone. Returns it.
int NoteStandard(int fd, bool copied);

// Around a call that makes a descriptor and that we only watch: if the table still has the number,
// it was closed behind our back. But not if another thread may have put one of ours there since the
// call began, by dup2().
class Fresh {
 public:
  Fresh() : seen_(LoadAcquire(g_family.replaced)) {}  // [T7]
  int Fd(int fd) const;                               // returns it

 private:
  const uint32_t seen_;
};
// The program is about to put another file on this number.
void TakeNumber(int fd);
// After a fork: the child of an embryo slot is known, or (pid < 0) there is none.
void Adopted(uint32_t slot, pid_t pid);
// Retries what failed for want of descriptors after giving back the cached ones.
bool OutOfFds(int result);

}  // namespace postern
