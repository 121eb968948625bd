// report_sockets.h - the list of sockets, as JSON text.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <string>

#include "../registry/registry.h"

namespace postern::daemon {

// Of one family. A program has as many descriptors as its limit allows, for the same endpoints.
template <typename Stack>
size_t SocketsMax(const Stack& s) {
  return size_t{2} * s.eps.count();
}

// The text as a string of JSON's, quotes and all (report.cc, which has that library).
std::string Quoted(const std::string& text);
std::string AddressText(const pstn_addr& from, uint32_t family);
// A JSON array of what each fd of process `pid` means; 0: of all processes.
std::string SocketsText(const Registry& registry, pid_t pid, bool details);

}  // namespace postern::daemon
