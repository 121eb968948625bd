// SPDX-License-Identifier: Apache-2.0
// stream.h - bytes through a connection.
#pragma once
#include <sys/uio.h>

#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

// `ahead`: bytes that will follow at once.
long SockSend(Family& fam, Call& call, const iovec* iov, size_t count, int flags, size_t ahead = 0);
long SockRecv(Family& fam, Call& call, const iovec* iov, size_t count, int flags);
long SockSendFile(Family& fam, Call& call, int in_fd, off_t* offset, size_t count);
long SockSplice(Family& fam, Call& in, Call& out, int fd_in, int fd_out, size_t len,
                unsigned flags);

}  // namespace postern
