// SPDX-License-Identifier: Apache-2.0
// check.h - PSTN_CHECK: what has to be true of the family's own memory, looked at while it runs.
//
//   if (!PSTN_CHECK(set.ready_count != 0)) return -ECONNABORTED;
//
// A check that is false is an error of ours, or of the program, which may have written where it
// should not. It is counted (checks_failed), and its place kept in the stack's header: `posternctl
// status` shows both. Then the caller ends what it was about to do in an orderly way: the call, the
// connection or the family, never the program. Builds with PSTN_CHECKS (a sanitizer, or
// -Dbuildtype=debug) end the program instead, so that tests find it.
//
// Not for what a peer can write: a peer that lies is counted as a peer violation and its connection
// ends. Nor for what a death leaves behind, which is no error.
//
// The reaper, posternd and the fuzzers read memory that says anything. To them a false check is to
// be expected: ExpectLies() makes it one that is counted, in every build.
//
// A true check is a compare and a branch that is not taken; all else is out of line.
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"

namespace postern {

// Counts; false, so that it can end a condition. `what` says more than the place does, or is "".
[[gnu::cold, gnu::noinline]] bool CheckFailed(const char* file, uint32_t line, const char* what);

#define PSTN_CHECK(condition, ...)                         \
  (__builtin_expect(static_cast<bool>(condition), true) || \
   ::postern::CheckFailed(__FILE__, __LINE__, "" __VA_ARGS__))

// False checks are entered there from now on; null: nowhere. Where a process has several families
// it is the last one that has come.
void CountChecksIn(pstn_stack_hdr* hdr);
void ExpectLies(bool expects = true);
// For tests of what follows a false check, which abort in some builds.
bool ExpectsLies();

}  // namespace postern
