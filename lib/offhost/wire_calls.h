// SPDX-License-Identifier: Apache-2.0
// wire_calls.h - what calls on a socket ask of the wire.
#pragma once

#include "base/schema/reasons.h"
#include "family/family.h"
#include "family/interrupts.h"

namespace postern {

// kReasonNone: the endpoint is PSTN_EP_CONNECTING, or past it already. Else it is as before.
Reason WireConnect(Family& fam, int fd, pstn_ep& ep, const pstn_addr& to)
    PSTN_REQUIRES(ep.setup_lock);
// Clients that come between the kernel's listen() and the filter that steers to us are the
// kernel's, and stay so. There are few of them if all else that takes time has been done before.
void WireBeforeListen(Family& fam, const pstn_ep& ep);
// An attempt that is under way ends, as if it had been reset. Under ep.setup_lock.
void WireGiveUp(Family& fam, pstn_ep& ep) PSTN_REQUIRES(ep.setup_lock);
// Waits for the end of a handshake. 0, -EINTR, or -EINPROGRESS at the end of SO_SNDTIMEO. The
// caller has no lock: signal handlers run during the wait, and the thread can be cancelled.
long WireAwaitConnected(Family& fam, pstn_ep& ep, const Interrupts& since = Interrupts());

}  // namespace postern
