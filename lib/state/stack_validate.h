// SPDX-License-Identifier: Apache-2.0
// stack_validate.h - whether the tables, lists, pools and counts of a stack agree.
#pragma once
#include "state/stack_map.h"

namespace postern {

// Of a stack in which no process is in the middle of a change, and whose dead have been reaped:
// each index is free once or in use, each list ends, counts say what is there, each reference has
// an entry of a table, and no lock is held. Null, or what is wrong. For tests; it locks nothing.
const char* Validate(StackMap& s);
// The same, and all of it is free: no process is left.
const char* ValidateEmpty(StackMap& s);

}  // namespace postern
