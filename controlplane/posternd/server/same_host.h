// same_host.h - the administrator's switch for paths through memory, as a user's posternd obeys it.
// SPDX-License-Identifier: Apache-2.0
//
// `same_host` of /etc/postern/policy.json, for the whole host:
//
//   "on"          a path through memory where the kernel lets a plain connection through (ADR 21)
//   "unfiltered"  ... and nothing in this network namespace touches packets (routes_filters.h)
//   "off"         none
//
// New connections obey a change within two seconds; connections that are there go on. A file that
// is there and can't be read, or means nothing, counts as "off".
#pragma once
#include <sys/stat.h>

#include <functional>
#include <memory>
#include <string>

#include "../broker/policy.h"
#include "../kit/event.h"
#include "../routes/routes_filters.h"

namespace postern::daemon {

class SameHostSwitch {
 public:
  // `tell` is called with each change, but not before Start().
  SameHostSwitch(event_base* base, std::string path, std::function<void()> tell);

  void Start();
  bool open() const { return open_; }

 private:
  void Look();
  void ReadPolicy();
  void Set(bool open);

  event_base* base_;
  const std::string path_;
  std::function<void()> tell_;
  SameHost mode_ = SameHost::kOn;
  bool open_ = true, was_read_ = false;
  struct stat seen_ {};
  std::unique_ptr<FilterWatch> watch_;  // with "unfiltered"
  Event look_;
};

}  // namespace postern::daemon
