// SPDX-License-Identifier: Apache-2.0
// tcp_info.h - TCP_INFO and TCP_INQ.
#pragma once
#include <sys/socket.h>

#include "family/family.h"

namespace postern {

long GiveTcpInfo(Family& fam, int fd, pstn_ep& ep, void* value, socklen_t* len);
void PutInq(Family& fam, pstn_ep& ep, msghdr& m,
            size_t room);  // TCP_INQ's message behind a recvmsg()

}  // namespace postern
