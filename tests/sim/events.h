// SPDX-License-Identifier: Apache-2.0
// events.h - virtual time: what will happen, in order; things of one instant in the order they were
// asked for, so that a seed says all.
#pragma once
#include <cstdint>
#include <queue>
#include <vector>

namespace postern::sim {

inline constexpr uint64_t kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

class Actor {
 public:
  virtual void Happen(uint64_t what) = 0;  // `what` as the actor itself has asked for

 protected:
  ~Actor() = default;
};

class Events {
 public:
  uint64_t now_ns() const { return now_ns_; }
  bool empty() const { return queue_.empty(); }
  uint64_t next_ns() const { return queue_.empty() ? UINT64_MAX : queue_.top().at_ns; }
  uint64_t count() const { return order_; }

  void At(uint64_t at_ns, Actor& actor, uint64_t what) {
    queue_.push({at_ns < now_ns_ ? now_ns_ : at_ns, order_++, &actor, what});
  }
  // False: nothing is left.
  bool RunOne() {
    if (queue_.empty()) return false;
    const Event event = queue_.top();
    queue_.pop();
    now_ns_ = event.at_ns;
    event.actor->Happen(event.what);
    return true;
  }
  void AdvanceTo(uint64_t ns) {
    if (ns > now_ns_) now_ns_ = ns;
  }

 private:
  struct Event {
    uint64_t at_ns, order;
    Actor* actor;
    uint64_t what;
    bool operator<(const Event& other) const {  // the queue's top is the largest
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };
  std::priority_queue<Event> queue_;
  // Not zero at the start: in TCP's fields zero often means "not set".
  uint64_t now_ns_ = 1000 * kSecond;
  uint64_t order_ = 0;
};

}  // namespace postern::sim
