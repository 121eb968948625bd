// SPDX-License-Identifier: Apache-2.0
// kernel_loopback.h - what this kernel says of one of its own connections over the loopback.
#pragma once
#include "family/family.h"
#include "peer/peers.h"

namespace postern {

// It depends on the kernel's version and its settings: one connection tells, the first time that a
// program asks. Null: none can be made (no descriptor), or another thread makes it just now.
const Loopback* LoopbackSays(Family& fam);

}  // namespace postern
