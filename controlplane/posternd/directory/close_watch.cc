// close_watch.cc - see close_watch.h.
// SPDX-License-Identifier: Apache-2.0
#include "close_watch.h"

#include <sys/inotify.h>
#include <sys/socket.h>

#include <fstream>
#include <string>
#include <utility>

namespace postern::daemon {
namespace {

// The user's other programs have watches, too: so much of what the kernel allows is theirs.
constexpr size_t kTheirShare = 4;

size_t WatchesMost() {
  size_t allowed = 0;
  std::ifstream("/proc/sys/fs/inotify/max_user_watches") >> allowed;
  return allowed / kTheirShare;
}

}  // namespace

CloseWatch::CloseWatch(event_base* base, std::function<void(uint64_t)> closed,
                       std::function<void()> lost)
    : closed_(std::move(closed)),
      lost_(std::move(lost)),
      most_(WatchesMost()),
      inotify_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)),
      works_(Works()),
      readable_(base, inotify_.get(), static_cast<short>(EV_READ | EV_PERSIST),
                [this] { Take(closed_); }) {
  if (works_) readable_.Add();
}

// The kernel decides for each kind of file whether it tells of it.
bool CloseWatch::Works() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool added = Watch(socket.get(), 0);
  socket.Reset();
  bool told = false;
  if (added) Take([&told](uint64_t) { told = true; });
  return told;
}

bool CloseWatch::Add(int socket, uint64_t tag) { return works_ && Watch(socket, tag); }

bool CloseWatch::Watch(int socket, uint64_t tag) {
  if (tags_.size() >= most_) return false;
  const std::string path = "/proc/self/fd/" + std::to_string(socket);
  const int watch = inotify_add_watch(inotify_.get(), path.c_str(), IN_CLOSE);
  if (watch >= 0) tags_.emplace(watch, tag);
  return watch >= 0;
}

// The last descriptor is closed once, so a watch has one event, and one that it is ignored.
void CloseWatch::Take(const std::function<void(uint64_t)>& closed) {
  alignas(inotify_event) char buffer[64 * sizeof(inotify_event)];
  ssize_t n;
  while ((n = read(inotify_.get(), buffer, sizeof buffer)) > 0) {
    for (char* at = buffer; at < buffer + n;) {
      const auto& event = *reinterpret_cast<const inotify_event*>(at);
      at += sizeof event + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) lost_();
      const auto it = tags_.find(event.wd);
      if ((event.mask & IN_CLOSE) == 0 || it == tags_.end()) continue;
      const uint64_t tag = it->second;
      (void)inotify_rm_watch(inotify_.get(), event.wd);
      tags_.erase(it);
      closed(tag);
    }
  }
}

}  // namespace postern::daemon
