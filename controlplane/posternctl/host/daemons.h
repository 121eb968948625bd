// daemons.h - the posternds that there are here, and what each of them says.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../line/ask.h"

namespace postern::ctl_command {

struct Daemon {
  std::string runtime_dir;
  uint32_t uid = 0;  // of the process that listens there
};

// Of those directories, each that has a posternd: none is named twice.
std::vector<Daemon> DaemonsIn(const std::vector<std::string>& dirs);
// Of the directory that was given, or is usual; and as root those of all users, whose sockets the
// kernel lists for this network namespace.
std::vector<Daemon> FindDaemons(const std::string& runtime_dir);
// Of the directory; with `all` (root) those of all users, or with `user`, a name or a uid, that
// user's. Throws AskError where that may not be asked.
std::vector<Daemon> DaemonsOf(const std::string& runtime_dir, bool all, const std::string& user);

// Whether the host's broker listens.
bool BrokerListens();

}  // namespace postern::ctl_command
