// SPDX-License-Identifier: Apache-2.0
// urgent.h - urgent data.
#pragma once
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/iov.h"
#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

// RingRead where there is, or was, an urgent byte. kOk and no bytes: the mark ends a read that has
// begun (`first` is false).
ReadResult ReadToMark(const ConnEnd& e, IovCursor* to, size_t want, bool first, ReadMode mode)
    PSTN_REQUIRES(e.ep->rx.lock);
// recv(MSG_OOB): 1, 0 or -errno.
long RecvUrgent(const ConnEnd& e, const iovec* iov, size_t count, int flags)
    PSTN_EXCLUDES(e.ep->rx.lock);
// Of `iov`, `sent` bytes are in the ring and `more` will follow, the last of which is the urgent
// one. The writer's mark before it was `before`. Under tx.lock.
void MarkUrgent(const ConnEnd& e, uint64_t before, const iovec* iov, size_t sent, size_t more)
    PSTN_REQUIRES(e.ep->tx.lock);

}  // namespace postern
