// SPDX-License-Identifier: Apache-2.0
// own_family.cc - see own_family.h.
#include "sock/own_family.h"
#include "sock/rooms.h"

namespace postern {

static constinit Rooms rooms{};
constinit Family g_family = FamilyIn(rooms);

}  // namespace postern
