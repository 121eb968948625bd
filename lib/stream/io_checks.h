// SPDX-License-Identifier: Apache-2.0
// io_checks.h - what sending and receiving ask alike, before they touch a ring or when they can't.
#pragma once
#include <sys/uio.h>

#include <cerrno>

#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "endpoint/places/places.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/verbs.h"

namespace postern {

inline constexpr uint64_t kNoRingNs = 1'000'000;  // to the next look for a ring, if none is free
inline constexpr size_t kRestMax = 64;  // pieces of a call that is continued in the kernel

// What a call comes to where that is not so: kPass if the kernel serves it.
inline long NotHere(const ConnEnd& e) {
  if (Which(*e.ep) != e.which) return -EBADF;
  return LoadAcquire(e.ep->state) == PSTN_EP_KERNEL ? kPass : -ECONNABORTED;  // [E1]
}

// Each of these for one piece, as most calls have it, and for more.
inline bool TooMuch(const iovec* iov, size_t count) {
  if (count == 1) [[likely]]
    return iov->iov_len > static_cast<size_t>(INT64_MAX);
  if (count > 1024) return true;
  size_t sum = 0;
  for (size_t i = 0; i < count; i++) {
    if (iov[i].iov_len > static_cast<size_t>(INT64_MAX) - sum) return true;
    sum += iov[i].iov_len;
  }
  return false;
}

inline bool BadBuffer(const iovec* iov, size_t count) {
  if (count == 1) [[likely]]
    return iov->iov_len != 0 && BadPointer(iov->iov_base);
  for (size_t i = 0; i < count; i++) {
    if (iov[i].iov_len != 0 && BadPointer(iov[i].iov_base)) return true;
  }
  return false;
}

// The same of the first bytes: what arrives may not need the rest.
inline bool BadStart(const iovec* iov, size_t count) {
  if (count == 1) [[likely]]
    return BadBuffer(iov, count);
  while (count != 0 && iov->iov_len == 0) iov++, count--;
  return BadBuffer(iov, count != 0 ? 1 : 0);
}

inline long SendUnconnected(pstn_ep& ep) {
  return LoadRelaxed(ep.error) != 0 ? -static_cast<long>(Exchange(ep.error, 0u)) : -EPIPE;
}

// As in the kernel: a blocking call waits for the end of the handshake first. kAgain: look again.
inline constexpr long kAgain = kPass - 1;
inline long AwaitConnected(Family& fam, pstn_ep& ep) {
  if (StateNow(fam, ep) != PSTN_EP_CONNECTING) return kAgain;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return -EAGAIN;
  const long r = kVerbs.wire_await_connected(fam, ep, Interrupts());
  return r == 0 ? kAgain : r == -EINPROGRESS ? -EAGAIN : r;
}

}  // namespace postern
