// SPDX-License-Identifier: Apache-2.0
// stream.h - bytes through a connection.
#pragma once
#include <sys/uio.h>

#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

// `ahead`: bytes that will follow at once.
long StreamSend(Family& fam, Call& call, const iovec* iov, size_t count, int flags,
                size_t ahead = 0);
long StreamRecv(Family& fam, Call& call, const iovec* iov, size_t count, int flags);
long StreamSendFile(Family& fam, Call& call, int in_fd, off_t* offset, size_t count);
long StreamSplice(Family& fam, Call& in, Call& out, int fd_in, int fd_out, size_t len,
                  unsigned flags);

}  // namespace postern
