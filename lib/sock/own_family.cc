// SPDX-License-Identifier: Apache-2.0
// own_family.cc - see own_family.h.
#include "sock/own_family.h"

namespace postern {

constinit Family g_family;

}  // namespace postern
