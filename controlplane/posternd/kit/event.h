// event.h - libevent's events as objects. One thread; callbacks may destroy their own event.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <event2/event.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace postern::daemon {

class Event {
 public:
  using Callback = std::function<void()>;

  // what: EV_READ, EV_WRITE, EV_PERSIST, EV_SIGNAL; fd -1 makes a timer.
  Event(event_base* base, int fd, short what, Callback callback)
      : callback_(std::move(callback)), event_(event_new(base, fd, what, &Event::Fire, this)) {}
  ~Event() {
    if (event_ != nullptr) event_free(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Add() { event_add(event_, nullptr); }
  void AddMs(uint32_t ms) {
    timeval delay{static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
    event_add(event_, &delay);
  }
  void Del() { event_del(event_); }
  bool pending() const {
    return event_pending(event_, EV_READ | EV_WRITE | EV_TIMEOUT | EV_SIGNAL, nullptr) != 0;
  }

 private:
  static void Fire(evutil_socket_t, short, void* self) {
    // A copy, since what runs may destroy the event that it came from.
    Callback callback = static_cast<Event*>(self)->callback_;
    callback();
  }

  Callback callback_;
  event* event_;
};

}  // namespace postern::daemon
