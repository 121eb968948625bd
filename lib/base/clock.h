// SPDX-License-Identifier: Apache-2.0
// clock.h - the time, as cheap as the use allows.
#pragma once
#include <time.h>

#include <cstdint>

#include "base/sys.h"

namespace postern {

inline uint64_t MonotonicNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);  // vdso: no system call
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec);
}

// Behind MonotonicNs() by up to a tick (1 to 10 ms), and cheaper: no look at the clock itself.
inline uint64_t MonotonicCoarseNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec);
}

// Milliseconds, coarse (one tick): for ages, not for intervals that are measured.
inline uint32_t CoarseMs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return static_cast<uint32_t>(static_cast<uint64_t>(ts.tv_sec) * 1000u +
                               static_cast<uint64_t>(ts.tv_nsec) / 1000000u);
}

// An end that may be "never".
struct Deadline {
  uint64_t at_ns = UINT64_MAX;

  static Deadline Never() { return {}; }
  static Deadline AfterNs(uint64_t ns) {
    uint64_t now = MonotonicNs();
    return {ns < UINT64_MAX - now ? now + ns : UINT64_MAX};
  }
  // As programs give it, and valid: what is beyond the clock's range (584 years) is never.
  static Deadline After(const timespec& ts) {
    constexpr uint64_t kLongest = UINT64_MAX / 1000000000u - 1;
    uint64_t sec = static_cast<uint64_t>(ts.tv_sec);
    return sec >= kLongest ? Never()
                           : AfterNs(sec * 1000000000u + static_cast<uint64_t>(ts.tv_nsec));
  }
  // poll()'s and epoll_wait()'s convention: negative = never.
  static Deadline AfterMs(long ms) {
    return ms < 0 ? Never() : AfterNs(static_cast<uint64_t>(ms) * 1000000u);
  }
  // The timeouts that sockets have: 0 = never.
  static Deadline AfterTimeout(uint64_t ns) { return ns != 0 ? AfterNs(ns) : Never(); }
  bool never() const { return at_ns == UINT64_MAX; }
  uint64_t left_ns() const {
    if (never()) return UINT64_MAX;
    uint64_t now = MonotonicNs();
    return now >= at_ns ? 0 : at_ns - now;
  }
  // What is left, at most cap_ns, as a timespec for a sleeping call.
  timespec LeftTimespec(uint64_t cap_ns) const {
    uint64_t left = left_ns();
    if (left > cap_ns) left = cap_ns;
    return {static_cast<time_t>(left / 1000000000u), static_cast<long>(left % 1000000000u)};
  }
};

}  // namespace postern
