// SPDX-License-Identifier: Apache-2.0
// port.h - ephemeral ports.
#pragma once

#include "family/family.h"

namespace postern {

// Reserves an ephemeral port at the kernel for the endpoint's socket, which keeps it for life.
bool ReservePort(Family& fam, int fd, pstn_ep& ep, const pstn_dir& dir)
    PSTN_REQUIRES(ep.setup_lock);

}  // namespace postern
