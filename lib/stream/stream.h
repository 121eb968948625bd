// SPDX-License-Identifier: Apache-2.0
// stream.h - bytes through a connection.
#pragma once
#include <sys/uio.h>

#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

class NowPipe;  // now_pipe.h

// `ahead`: bytes that will follow at once.
long StreamSend(Family& fam, Call& call, const iovec* iov, size_t count, int flags,
                size_t ahead = 0);
long StreamRecv(Family& fam, Call& call, const iovec* iov, size_t count, int flags);
// What is there goes into the pipe, by way of `bounce`, and what that takes leaves the connection:
// no other reader comes in between. How many bytes went, or -errno; -EAGAIN: of the pipe;
// kNothingThere: nothing was read, or the urgent mark stops it.
inline constexpr long kNothingThere = kPass - 3;
long StreamMove(Family& fam, const Call& call, uint8_t* bounce, size_t bytes, NowPipe& pipe);
// The same from the pipe: no more is read than the connection takes. 0: the pipe has ended.
// kNothingThere: there is no room, or the end is shut.
long StreamFill(Family& fam, const Call& call, uint8_t* bounce, size_t bytes, NowPipe& pipe,
                int flags);
long StreamSendFile(Family& fam, Call& call, int in_fd, off_t* offset, size_t count);
long StreamSplice(Family& fam, Call& in, Call& out, int fd_in, int fd_out, size_t len,
                  unsigned flags);

}  // namespace postern
