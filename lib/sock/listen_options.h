// SPDX-License-Identifier: Apache-2.0
// listen_options.h - what listen() does to options that the program has set.
#pragma once
#include "abi/postern_abi.h"

namespace postern {

// The kernel begins the acknowledgements' state anew: TCP_QUICKACK has to be set behind listen().
void ResetForListen(pstn_ep& ep);

}  // namespace postern
