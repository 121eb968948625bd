// SPDX-License-Identifier: Apache-2.0
// claim.h - what a client says of its name.
#pragma once

#include "family/family.h"

namespace postern {

// Whether a client in such a link group (pstn_lgr_ref.remote) can have these names.
bool IsCredible(Family& fam, const pstn_ep& listener, uint32_t remote, const pstn_addr& client,
                const pstn_addr& server);

}  // namespace postern
