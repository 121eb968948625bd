// SPDX-License-Identifier: Apache-2.0
// refs.h - references to endpoints and event sets, one for each number that means them.
#pragma once

#include "family/family.h"

namespace postern {

void SockDup(Family& fam, uint32_t entry, int to);  // `to` means it, too
// One more reference. False: it was on its way out.
bool RefEntry(Family& fam, uint32_t entry);
// Closes a number that means `entry`, and takes it out of both tables. The reference is the
// caller's.
long CloseNumberOf(Family& fam, int fd, uint32_t entry);
void DropFdRef(Family& fam, uint32_t entry);  // one reference of an entry, its fd already gone

}  // namespace postern
