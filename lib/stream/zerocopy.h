// SPDX-License-Identifier: Apache-2.0
// zerocopy.h - MSG_ZEROCOPY, and what else comes beside the bytes.
#pragma once
#include <sys/socket.h>

#include "base/atomic.h"
#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

long SendZerocopy(Family& fam, Call& call, const iovec* iov, size_t count, int flags);
// recvmsg(MSG_ERRQUEUE); `m` may be null: the message is dropped.
long RecvErrorQueue(pstn_ep& ep, msghdr* m);
// As the kernel's put_cmsg, into all of m.msg_control.
void PutControl(msghdr& m, int level, int type, const void* data, size_t bytes);

}  // namespace postern
