// SPDX-License-Identifier: Apache-2.0
// user_memory.h - memory that a program names in a call, and that may not be there.
//
// The kernel answers EFAULT. So do we: a copy that faults ends there and says false. The way back
// is the handler of SIGSEGV and SIGBUS (preload/signal_calls.cc), which asks RecoverFault first; a
// copy that does not fault pays for it with nothing but a call that is not libc's. Where no such
// handler is (other programs that are built of lib/, builds for sanitizers, threads that have the
// signal blocked), a fault is what it is without us.
//
// Memory may also go away between two calls here: what was readable has to be copied to count.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/sanitized.h"

namespace postern {

// Up to kSmallCopy bytes take a way of their own, without any preparation.
inline constexpr size_t kSmallCopy = 128;

#if defined(__x86_64__)
// user_memory.cc, in assembly: 1, or 0 if it has faulted.
extern "C" int pstn_user_copy(void* to, const void* from, size_t bytes);  // at most kSmallCopy
extern "C" int pstn_user_read(const void* at);
extern "C" int pstn_user_write(void* at);
// 1: the CPU has registers of 32 bytes for pstn_user_copy. For tests to change.
extern "C" __attribute__((visibility("hidden"))) uint8_t pstn_user_wide;
inline bool CopySmall(void* to, const void* from, size_t bytes) {
  return pstn_user_copy(to, from, bytes) != 0;
}
#else
bool CopyGuarded(void* to, const void* from, size_t bytes);
inline bool CopySmall(void* to, const void* from, size_t bytes) {
  return CopyGuarded(to, from, bytes);
}
#endif

// The ways of more bytes: memcpy, and past the cache (copy.h).
bool CopyLarge(void* to, const void* from, size_t bytes);
bool CopyLargePastCache(uint8_t* to, const uint8_t* from, size_t bytes);

// One of the two is the program's. False: a fault; `to` may have been written in part.
[[nodiscard]] inline bool CopyUser(void* to, const void* from, size_t bytes) {
  return bytes <= kSmallCopy && !kSanitized ? CopySmall(to, from, bytes)
                                            : CopyLarge(to, from, bytes);
}
template <typename T>
[[nodiscard]] bool GetUser(T& to, const void* from) {
  return CopyUser(&to, from, sizeof to);
}
template <typename T>
[[nodiscard]] bool PutUser(void* to, const T& from) {
  return CopyUser(to, &from, sizeof from);
}

// Whether each page of it can be read, or written, at this moment.
[[nodiscard]] bool UserReadable(const void* at, size_t bytes);
[[nodiscard]] bool UserWritable(void* at, size_t bytes);

// For the handler of a fault, with its third argument: the thread goes on behind the copy that has
// failed. False: it was not at one.
bool RecoverFault(void* context);
// Around a handler of the program's, which may come in the middle of a copy and never return.
void* HideCopy();
void ShowCopy(void* hidden);

// Called once a process has accelerated sockets. Never null.
extern void (*g_watch_faults)();
// It has been: before that, nothing of the library looks at what a program names.
extern bool g_faults_watched;

}  // namespace postern
