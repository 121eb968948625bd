// SPDX-License-Identifier: Apache-2.0
// held.h - what peers hold back (smcd/hold.h), for threads that wait on more than one connection.
#pragma once
#include "family/family.h"

namespace postern {

// When the first of it can be read: no thread of this process sleeps longer. UINT64_MAX: nothing is
// held back. What can be read by now is told as if it had just come.
uint64_t HeldUntil(Family& fam);

}  // namespace postern
