// SPDX-License-Identifier: Apache-2.0
// kernel_only.h - makes a socket the kernel's if what is about to be asked of it needs that.
#pragma once
#include <sys/socket.h>

#include "family/family.h"

namespace postern {

// TCP_FASTOPEN_CONNECT and SO_PEEK_OFF of the kernel's interface.
inline constexpr int kFastOpenConnect = 30, kPeekOff = 42;

// What only the kernel can do makes the socket the kernel's. False: it can't be (EADDRNOTAVAIL).
[[nodiscard]] bool OptionForKernel(Family& fam, int fd, pstn_ep& ep, int level, int name,
                                   const void* value, socklen_t len);
void FcntlForKernel(Family& fam, int fd, pstn_ep& ep, int cmd, long arg);
void IoctlForKernel(Family& fam, int fd, pstn_ep& ep, unsigned long request, const void* arg);

}  // namespace postern
