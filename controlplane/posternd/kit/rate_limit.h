// rate_limit.h - so many a second of one client, and as many at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

namespace postern::daemon {

// A token bucket that holds a second's worth, and is full at first.
class RateLimit {
 public:
  // Whether something that counts for `cost` may be done now. `per_sec` may change at any time.
  bool Take(uint64_t now_ns, uint32_t per_sec, uint32_t cost) {
    constexpr uint64_t kSec = 1'000'000'000;
    const uint64_t full = per_sec * kSec, since_ns = std::min(now_ns - at_ns_, kSec);
    at_ns_ = now_ns;
    left_ = std::min(full, left_ > full ? full : left_ + since_ns * per_sec);
    if (left_ < std::min(cost * kSec, full) || per_sec == 0) return false;
    left_ -= std::min(cost * kSec, full);
    return true;
  }

 private:
  uint64_t at_ns_ = 0;
  uint64_t left_ = 0;  // in billionths
};

}  // namespace postern::daemon
