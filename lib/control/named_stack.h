// SPDX-License-Identifier: Apache-2.0
// named_stack.h - see named_stack.cc.
#pragma once
#include "family/family.h"

namespace postern {

// The stack that has this process's stack.name: a descriptor of its memory, which may be that of
// `own`, a new one. -errno: posternd can't say. `netns_ino`: the process's network namespace.
int FindNamedStack(Family& fam, int own, uint64_t netns_ino);
// The stack of those that have left the family for this process's user: a descriptor of its memory,
// which may be that of `own`, a new one. -errno: posternd can't say, or won't have it.
int FindGuestStack(Family& fam, int own, uint64_t* ticket);

}  // namespace postern
