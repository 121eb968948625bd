// SPDX-License-Identifier: Apache-2.0
// options.h - options, ioctl() and fcntl().
#pragma once
#include <sys/socket.h>

#include "family/family.h"

namespace postern {

long SockIoctl(int fd, pstn_ep& ep, unsigned long request, void* arg);
long SockFcntl(int fd, pstn_ep& ep, int cmd, long arg);

long SockSetOpt(int fd, pstn_ep& ep, int level, int name, const void* value, socklen_t len);
long SockGetOpt(int fd, pstn_ep& ep, int level, int name, void* value, socklen_t* len);

}  // namespace postern
