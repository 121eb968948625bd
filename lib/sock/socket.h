// SPDX-License-Identifier: Apache-2.0
// socket.h - sockets that are neither connected nor listen, and how they come to it.
#pragma once
#include <sys/socket.h>

#include "base/schema/reasons.h"
#include "family/family.h"

namespace postern {

long SockSocket(Family& fam, int domain, int type, int protocol);
long SockBind(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len);
long SockListen(Family& fam, int fd, pstn_ep& ep, int backlog);
long SockGetName(Family& fam, int fd, pstn_ep& ep, sockaddr* sa, socklen_t* len, bool peer);
long SockShutdown(Family& fam, int fd, pstn_ep& ep, int how);

}  // namespace postern
