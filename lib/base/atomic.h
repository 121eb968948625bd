// SPDX-License-Identifier: Apache-2.0
// atomic.h - atomic access to plain fields of shared memory.
//
// The ABI's fields are plain integers so that C and the kernel can read the same header;
// std::atomic_ref gives them their memory order here. No use of volatile, no other way in.
#pragma once
#include <atomic>
#include <cstdint>

namespace postern {

template <typename T>
inline T LoadRelaxed(const T& v) {
  return std::atomic_ref<T>(const_cast<T&>(v)).load(std::memory_order_relaxed);
}
template <typename T>
inline T LoadAcquire(const T& v) {
  return std::atomic_ref<T>(const_cast<T&>(v)).load(std::memory_order_acquire);
}
template <typename T, typename U>
inline void StoreRelaxed(T& v, U x) {
  std::atomic_ref<T>(v).store(static_cast<T>(x), std::memory_order_relaxed);
}
template <typename T, typename U>
inline void StoreRelease(T& v, U x) {
  std::atomic_ref<T>(v).store(static_cast<T>(x), std::memory_order_release);
}
template <typename T, typename U>
inline T Exchange(T& v, U x) {
  return std::atomic_ref<T>(v).exchange(static_cast<T>(x), std::memory_order_seq_cst);
}
template <typename T, typename U>
inline T FetchAdd(T& v, U x) {
  return std::atomic_ref<T>(v).fetch_add(static_cast<T>(x), std::memory_order_seq_cst);
}
template <typename T, typename U>
inline T FetchSub(T& v, U x) {
  return std::atomic_ref<T>(v).fetch_sub(static_cast<T>(x), std::memory_order_seq_cst);
}
template <typename T, typename U>
inline T FetchOr(T& v, U x) {
  return std::atomic_ref<T>(v).fetch_or(static_cast<T>(x), std::memory_order_seq_cst);
}
template <typename T, typename U>
inline T FetchAnd(T& v, U x) {
  return std::atomic_ref<T>(v).fetch_and(static_cast<T>(x), std::memory_order_seq_cst);
}
template <typename T, typename U>
inline bool CompareExchange(T& v, T& expected, U desired) {
  return std::atomic_ref<T>(v).compare_exchange_strong(expected, static_cast<T>(desired),
                                                       std::memory_order_seq_cst);
}

// Full barrier of the sleep/wake handshakes; each use says what it pairs with. A locked
// instruction on our own stack is what a fence costs at best, and TSan understands neither.
inline void FullFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// The same where a locked instruction of this thread (FetchOr, Exchange, Unlock) stands between the
// store and the load, or is the store. On x86 that instruction was the barrier, and this is none.
// Elsewhere it is not: on aarch64 without LSE a read-modify-write is a loop of ldaxr and stlxr, and
// a later load may be satisfied before the stlxr is seen by others. LSE's ldaddal and swpal do not
// order it, either.
inline void FenceAfterLocked() {
#if defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  FullFence();
#endif
}

// Between two stores to shared memory of which a process that is killed has done the first one if
// it has done the second: the compiler keeps their order, and what a dead process has stored is
// there.
inline void DeathFence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace postern
