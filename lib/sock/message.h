// SPDX-License-Identifier: Apache-2.0
// message.h - the calls that move bytes, for sockets of every kind: a connection's rings, UDP on
// the wire, and what is the kernel's.
//
// Each takes what libc's function of that name takes, but a Call instead of the number, and
// recv() and send() are those with an address, without one. The result is libc's, or -errno; kPass:
// the kernel's socket has to do it; kRestart: the number means something else by now.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

// ---- message_in.cc
long SockRead(Family& fam, Call& call, void* buf, size_t n);
long SockReadv(Family& fam, Call& call, const iovec* iov, int count);
long SockPreadv2(Family& fam, Call& call, const iovec* iov, int count, off_t offset, int flags);
long SockRecvfrom(Family& fam, Call& call, void* buf, size_t n, int flags, sockaddr* sa,
                  socklen_t* len);
long SockRecvmsg(Family& fam, Call& call, msghdr* m, int flags);
long SockRecvmmsg(Family& fam, Call& call, mmsghdr* v, unsigned n, int flags, timespec* timeout);

// ---- message_out.cc. A stream that can't be written to any more raises SIGPIPE in the thread, as
// in Linux, unless the flags say not to.
long SockWrite(Family& fam, Call& call, const void* buf, size_t n);
long SockWritev(Family& fam, Call& call, const iovec* iov, int count);
long SockPwritev2(Family& fam, Call& call, const iovec* iov, int count, off_t offset, int flags);
long SockSendto(Family& fam, Call& call, const void* buf, size_t n, int flags, const sockaddr* sa,
                socklen_t len);
long SockSendmsg(Family& fam, Call& call, const msghdr* m, int flags);
long SockSendmmsg(Family& fam, Call& call, mmsghdr* v, unsigned n, int flags);
long SockSendfile(Family& fam, Call& call, int in, off_t* offset, size_t count);
// One of them, or both, may be no socket.
long SockSplice(Family& fam, Call& in, const off64_t* off_in, Call& out, const off64_t* off_out,
                int fd_in, int fd_out, size_t len, unsigned flags);

}  // namespace postern
