// SPDX-License-Identifier: Apache-2.0
// tsan.h - tells ThreadSanitizer of an order that another process keeps. Nothing in other builds.
//
// It watches one process. What one thread leaves, a process of the family gives back to a pool, and
// another thread takes, is ordered, but the middle of it is not seen: docs/concurrency.md says
// where that is so.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#endif

namespace postern {

#if defined(__SANITIZE_THREAD__)
inline void TsanLeave(void* at) { __tsan_release(at); }
inline void TsanCome(void* at) { __tsan_acquire(at); }
#else
inline void TsanLeave(void*) {}
inline void TsanCome(void*) {}
#endif

}  // namespace postern
