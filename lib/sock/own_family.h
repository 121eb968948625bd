// SPDX-License-Identifier: Apache-2.0
// own_family.h - the family that this process belongs to as a whole: the program's.
//
// The preloaded library, the keepers and the reaper have one each. No room below sock/ knows of it
// (tests/tidy): they are given a Family.
#pragma once
#include "family/family.h"

namespace postern {

extern Family g_family;

}  // namespace postern
