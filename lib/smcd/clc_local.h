// SPDX-License-Identifier: Apache-2.0
// clc_local.h - what this host says of itself in a handshake.
#pragma once
#include "abi/postern_abi.h"
#include "smcd/clc_negotiate.h"

namespace postern {

// `host` may be anything: it is read from memory that others write.
ClcLocal ClcLocalOf(const pstn_host& host);

}  // namespace postern
