// SPDX-License-Identifier: Apache-2.0
// close.h - references to endpoints, and the end of a connection.
#pragma once

#include "base/atomic.h"
#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

// What close() would return.
long SockClose(Family& fam, int fd, uint32_t entry);
// The last reference to what a table's entry meant is gone.
void LastReference(Family& fam, uint32_t entry);
void CloseEp(Family& fam, pstn_ep& ep);      // the same, of an endpoint
void FinishClose(Family& fam, pstn_ep& ep);  // the rest of it, for a connection in state CLOSED
// Takes a listener out of the directory and resets the clients in its queue; `state` is its next.
void StopListening(Family& fam, pstn_ep& ep, uint32_t state);
void ResetQueue(Family& fam, pstn_ep& listener);  // the clients in it
// RST to the peer; the endpoint is NEW again. False: its connection is gone, or the kernel's.
bool ResetConnection(Family& fam, pstn_ep& ep);
void ReleaseLinger(Family& fam, pstn_ep& ep);

}  // namespace postern
