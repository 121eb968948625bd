// SPDX-License-Identifier: Apache-2.0
// socket.h - sockets that are neither connected nor listen, and how they come to it.
#pragma once
#include <sys/socket.h>

#include "base/schema/reasons.h"
#include "family/family.h"

namespace postern {

long SockSocket(int domain, int type, int protocol);
long SockBind(int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len);
long SockListen(int fd, pstn_ep& ep, int backlog);
long SockGetName(int fd, pstn_ep& ep, sockaddr* sa, socklen_t* len, bool peer);
long SockShutdown(int fd, pstn_ep& ep, int how);

}  // namespace postern
