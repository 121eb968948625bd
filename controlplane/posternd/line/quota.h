// quota.h - how much of something each user has, and no more.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <utility>

namespace postern::daemon {

class Quota {
 public:
  // One of it, which is given back with this.
  class Held {
   public:
    Held() = default;
    Held(Held&& other) noexcept : of_(std::exchange(other.of_, nullptr)), uid_(other.uid_) {}
    Held& operator=(Held&& other) noexcept {
      if (this == &other) return *this;
      Reset();
      of_ = std::exchange(other.of_, nullptr);
      uid_ = other.uid_;
      return *this;
    }
    ~Held() { Reset(); }
    bool ok() const { return of_ != nullptr; }
    void Reset() {
      if (of_ != nullptr) of_->Give(uid_);
      of_ = nullptr;
    }

   private:
    friend class Quota;
    Held(Quota& of, uid_t uid) : of_(&of), uid_(uid) {}
    Quota* of_ = nullptr;
    uid_t uid_ = 0;
  };

  // Not ok(): the user has `most` already.
  Held Take(uid_t uid, uint32_t most) {
    const auto it = used_.find(uid);
    if (most == 0 || (it != used_.end() && it->second >= most)) return {};
    ++used_[uid];
    return {*this, uid};
  }
  uint32_t Used(uid_t uid) const {
    const auto it = used_.find(uid);
    return it != used_.end() ? it->second : 0;
  }

 private:
  void Give(uid_t uid) {
    const auto it = used_.find(uid);
    if (--it->second == 0) used_.erase(it);
  }
  std::map<uid_t, uint32_t> used_;
};

}  // namespace postern::daemon
