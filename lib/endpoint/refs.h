// SPDX-License-Identifier: Apache-2.0
// refs.h - references to endpoints and event sets, one for each number that means them.
//
// A reference and the entry of a slot's table that has it come and go together, whatever
// instruction a process dies at (PSTN_REFS_*).
#pragma once

#include "family/family.h"

namespace postern {

// One more reference, which the entry at `place` has (PlaceOf; PSTN_NONE: no table has it, and our
// death leaves it behind). False: it was on its way out.
bool ShareRef(Family& fam, uint32_t entry, uint32_t place);
// Takes away both. True: it was the last reference, and the object is in the caller's hands, who
// has to end it (Verbs::last_reference). kIfThere: nothing, if the place has another entry by now.
enum class GiveUp : uint8_t { kAlways, kIfThere };
bool GiveUpRef(Family& fam, uint32_t entry, uint32_t place, GiveUp when = GiveUp::kAlways);
// What a process has died in the middle of is completed, or undone.
void MendRef(Family& fam, uint32_t entry);

void SockDup(Family& fam, uint32_t entry, int to);  // `to` means it, too
// Closes a number that means `entry`, takes it out of both tables, and gives up its reference.
long CloseNumberOf(Family& fam, int fd, uint32_t entry);
// The number is gone or another's: takes it out of the slot's table, and gives up its reference.
void DropNumber(Family& fam, int fd, uint32_t entry);
void DropFdRef(Family& fam, uint32_t entry);  // a reference that no table has

}  // namespace postern
