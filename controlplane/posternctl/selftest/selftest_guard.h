// selftest_guard.h - whatever happens to the self-test, nothing of it stays behind.
// SPDX-License-Identifier: Apache-2.0
//
// The work is done in a child, with mounts of its own: they end with it, and so do its children
// (PR_SET_PDEATHSIG), namespaces, and the programs that a broker of its own has attached. What is
// left are an empty directory and an empty cgroup, which the parent removes after the child's end,
// of whatever cause; a signal to the parent ends the child.
#pragma once
#include <functional>
#include <string>

namespace postern::ctl_command::selftest {

struct Place {
  std::string dir;     // below /tmp; empty for an ordinary user
  std::string cgroup;  // of version 2; empty if there is none, and `why_not` says so
  std::string why_not;
};

int Guarded(const std::function<int(const Place&)>& work);

}  // namespace postern::ctl_command::selftest
