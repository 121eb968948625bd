// SPDX-License-Identifier: Apache-2.0
// validate.h - what holds of a Tcb between two calls of tcp.h: for tests, fuzzers, and the thread
// that takes over from a holder of the lock that has died.
#pragma once
#include "tcp/host.h"
#include "tcp/tcb.h"

namespace postern::tcp {

// The first rule that does not hold, in words; nullptr: all do. Walks are bounded, whatever the
// chains look like; indices are those that the Host would take.
const char* Validate(const Tcb& tcb, Host& host);

}  // namespace postern::tcp
