// same_host.cc - reads the switch, and looks for what touches packets where it says so.
// SPDX-License-Identifier: Apache-2.0
#include "same_host.h"

#include <utility>

#include "../kit/log.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kSwitchLookMs = 2000;

bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec &&
         a.st_mode == b.st_mode && a.st_uid == b.st_uid;
}

}  // namespace

SameHostSwitch::SameHostSwitch(event_base* base, std::string path, std::function<void()> tell)
    : base_(base), path_(std::move(path)), tell_(std::move(tell)), look_(base, -1, 0, [this] {
        Look();
        look_.AddMs(kSwitchLookMs);
      }) {}

void SameHostSwitch::Start() {
  Look();
  look_.AddMs(kSwitchLookMs);
}

void SameHostSwitch::Look() {
  struct stat now {};
  (void)stat(path_.c_str(), &now);  // all zero if it is not there
  if (was_read_ && IsSameFile(now, seen_)) return;
  seen_ = now;
  was_read_ = true;
  ReadPolicy();
}

void SameHostSwitch::ReadPolicy() {
  std::string error;
  const std::optional<Policy> policy = Policy::Load(path_, error);
  if (!policy) Warn("%s: so no path through memory is given to new connections", error.c_str());
  mode_ = policy ? policy->same_host : SameHost::kOff;
  watch_.reset();
  const auto filters = [this] {
    const Filters found = ReadFilters();
    Set(!found.netfilter && !found.xfrm);
  };
  if (mode_ != SameHost::kUnfiltered) return Set(mode_ == SameHost::kOn);
  watch_ = std::make_unique<FilterWatch>(base_, filters);
  filters();
}

void SameHostSwitch::Set(bool open) {
  if (std::exchange(open_, open) == open) return;
  Inform("paths through memory are %s", open ? "given again" : "no longer given");
  tell_();
}

}  // namespace postern::daemon
