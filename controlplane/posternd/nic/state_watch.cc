// state_watch.cc - see state_watch.h.
// SPDX-License-Identifier: Apache-2.0
#include "state_watch.h"

#include <sys/epoll.h>

#include <utility>

namespace postern::daemon {
namespace {

constexpr int kLeftAtOnce = 64;

}  // namespace

StateWatch::StateWatch(event_base* base)
    : set_(epoll_create1(EPOLL_CLOEXEC)),
      event_(base, set_.get(), static_cast<short>(EV_READ | EV_PERSIST), [this] { Look(); }) {
  if (set_.ok()) event_.Add();
}

std::unique_ptr<StateWatch::Hold> StateWatch::Add(int fd, Left left) {
  epoll_event event{};
  event.data.u64 = next_;
  if (epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return nullptr;
  watched_[next_] = std::move(left);
  return std::make_unique<Hold>(*this, fd, next_++);
}

void StateWatch::Drop(int fd, uint64_t token) {
  (void)epoll_ctl(set_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watched_.erase(token);
}

void StateWatch::Look() {
  epoll_event events[kLeftAtOnce];
  const int n = epoll_wait(set_.get(), events, kLeftAtOnce, 0);
  for (int i = 0; i < n; i++) {
    const auto it = watched_.find(events[i].data.u64);  // not one that has gone meanwhile
    if (it == watched_.end()) continue;
    const Left left = it->second;  // a copy, since what runs may drop it
    left();
  }
}

}  // namespace postern::daemon
