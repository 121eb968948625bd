// become.h - a keeper or reaper becomes the user whose stack it works on.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <grp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace postern::daemon {

// `who`: "UID:GID" (registry.h), for good; null: stays what it is. False: it is not allowed to.
inline bool BecomeUser(const char* who) {
  if (who == nullptr) return true;
  char* end = nullptr;
  const unsigned long uid = strtoul(who, &end, 10);
  if (end == who || *end != ':' || uid == 0) return false;
  const char* const group = end + 1;
  const unsigned long gid = strtoul(group, &end, 10);
  if (end == group || *end != 0) return false;
  const auto user = static_cast<uid_t>(uid);
  const auto its = static_cast<gid_t>(gid);
  return setgroups(0, nullptr) == 0 && setresgid(its, its, its) == 0 &&
         setresuid(user, user, user) == 0;
}

}  // namespace postern::daemon
