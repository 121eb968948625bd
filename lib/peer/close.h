// SPDX-License-Identifier: Apache-2.0
// close.h - references to endpoints, and the end of a connection.
#pragma once

#include "base/atomic.h"
#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

// What close() would return.
long SockClose(int fd, uint32_t entry);
// The last reference to what a table's entry meant is gone.
void LastReference(uint32_t entry);
void CloseEp(pstn_ep& ep);      // the same, of an endpoint
void FinishClose(pstn_ep& ep);  // the rest of it, for a connection in state CLOSED
// Takes a listener out of the directory and resets who waits in its queue; `state` is its next.
void StopListening(pstn_ep& ep, uint32_t state);
void ResetQueue(pstn_ep& listener);  // those who wait in it
// RST to the peer; the endpoint is NEW again. False: its connection is gone, or the kernel's.
bool ResetConnection(pstn_ep& ep);
void ReleaseLinger(pstn_ep& ep);

}  // namespace postern
