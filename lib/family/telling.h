// SPDX-License-Identifier: Apache-2.0
// telling.h - what a process says of itself, if its options ask for that: log.level, log.file.
//
// Nothing on the data path says anything: a socket becomes the kernel's once. A process that has
// stepped aside, before it enters a sandbox, is silent: its system calls are counted.
#pragma once
#include "base/schema/reasons.h"
#include "family/family.h"

namespace postern {

inline bool Logs(const Family& fam, LogLevel level) {
  return level <= fam.log.level && LoadRelaxed(fam.aside) == 0;
}

// "process 12 TEXT".
void LogText(Family& fam, LogLevel level, const char* text, const char* more = "");

// Tells of the first fallback for each reason. `fd`: the socket's number, or -1. `to`: where it
// connects to or listens, or null.
void TellFallback(Family& fam, Reason reason, int fd, const pstn_addr* to);
// Something is the kernel's: counted, and told of.
void NoteFallback(Family& fam, Reason reason, int fd, const pstn_addr* to = nullptr);
// A call fails since strict forbids that.
void LogStrict(Family& fam, Reason reason, const pstn_addr* to);

}  // namespace postern
