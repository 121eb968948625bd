// SPDX-License-Identifier: Apache-2.0
// surroundings.h - limits and sandboxes in which a process does without a stack.
//
// A stack takes address space, descriptors and memory of its process, and calls (Unix sockets,
// memfds) that the program never makes itself. Where a limit or a filter would make that show, the
// process steps aside before its first accelerated socket, and costs nothing.
#pragma once
#include "family/family.h"

namespace postern {

// Null: this process may have a stack. Else what is in the way.
const char* WhyNoStack(Family& fam);
// Whether the doorbells of others, which have no name in the file system, can be rung from here
// (LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET).
bool RingsOthers(const Family& fam);
// As that is where no sandbox can have been entered: at no cost.
bool MayBeSandboxed();

}  // namespace postern
