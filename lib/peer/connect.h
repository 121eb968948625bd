// SPDX-License-Identifier: Apache-2.0
// connect.h - connect() and accept() of two ends on this host.
#pragma once
#include <sys/socket.h>

#include "endpoint/call.h"
#include "family/family.h"
#include "peer/pair.h"

namespace postern {

inline constexpr uint16_t kFreePorts = 1024;  // ports below need a privilege
bool IsLocalAddress(const pstn_dir& d, const pstn_addr& a);
long SockConnect(Family& fam, Call& call, const sockaddr* sa, socklen_t len);
long SockAccept(Family& fam, Call& call, sockaddr* sa, socklen_t* len, int flags);
// Fills in the slot for the endpoint, and tells no process yet.
void FillConn(Family& fam, pstn_ep& ep, const ConnSlot& slot, uint32_t listener_idx,
              uint32_t listener_gen, const pstn_addr& to, const pstn_addr& from);
// The endpoint is connected from now on: tells the threads that wait for that.
void ShowConnected(Family& fam, pstn_ep& ep);
// Takes what clients have posted into the accept queues of this stack's listeners: of each link
// group as much as a look takes, or all that an honest client may have posted.
void AdmitSyns(Family& fam, uint32_t looks = 1);
// Takes those that TCP_DEFER_ACCEPT has left where they were, too: their bits are gone. The
// listener defers no more.
void AdmitDeferred(Family& fam, pstn_ep& listener);
// After one has been taken from the queue: clients that wait for a place get it.
void AdmitWaiting(Family& fam, pstn_ep& listener);
// Those that were seen to wait are refused if the listener listens no more; else they are let in,
// whatever room there is.
void EndWaiting(Family& fam, pstn_ep& listener);
// A connect() that waits for room goes on over the kernel. False: it is none, or has ended.
bool LeaveWaiting(Family& fam, int fd, pstn_ep& ep, Reason why);
// The next connection of the accept queue, or PSTN_NONE.
uint32_t DequeueEmbryo(Family& fam, pstn_ep& listener);
// Puts it back, as the first: the program has no number free.
void RequeueEmbryo(Family& fam, pstn_ep& listener, uint32_t idx);
// After the fd table of a dead process has been dropped: the connections that were in its hands.
void RecoverConns(Family& fam, uint32_t slot);
// Takes the lock of a listener's accept queue over from a process that died with it.
void MendQueue(Family& fam, pstn_ep& listener);
}  // namespace postern
