// SPDX-License-Identifier: Apache-2.0
// socket_options.h - options, ioctl() and fcntl().
#pragma once
#include <sys/socket.h>

#include "family/family.h"

namespace postern {

long SockIoctl(Family& fam, int fd, pstn_ep& ep, unsigned long request, void* arg);
long SockFcntl(Family& fam, int fd, pstn_ep& ep, int cmd, long arg);

long SockSetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                socklen_t len);
long SockGetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, void* value, socklen_t* len);

}  // namespace postern
