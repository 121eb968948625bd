// SPDX-License-Identifier: Apache-2.0
// holder.h - owners of locks.
#pragma once

#include "family/family.h"

namespace postern {

uint32_t OwnPidns();  // inode of this process's PID namespace; PSTN_NONE: not known
void ForgetPidns();   // child of fork: it may be in another one
void UseLockSlot(Family& fam, uint32_t slot);  // from now on this process's locks bear this slot
void UseReaperLocks(Family& fam);

}  // namespace postern
