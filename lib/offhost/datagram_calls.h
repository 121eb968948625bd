// SPDX-License-Identifier: Apache-2.0
// datagram_calls.h - calls on UDP sockets that the wire serves beside the kernel.
#pragma once
#include <sys/socket.h>

#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

// recvmsg() and sendmsg() of one; kPass: the kernel's alone.
long DatagramRecv(Family& fam, Call& call, msghdr& m, int flags);
long DatagramSend(Family& fam, Call& call, const msghdr& m, int flags);
long DatagramIoctl(Family& fam, const pstn_ep& ep, unsigned long request, void* arg);
uint32_t DatagramReadiness(Family& fam, const pstn_ep& ep);
// It may be that this process has it from another one, and has no wire yet.
void DatagramTouch(Family& fam, const pstn_ep& ep);

}  // namespace postern
