// SPDX-License-Identifier: Apache-2.0
// watch.h - what select(), epoll_ctl() and stdio ask of a number before they wait or read.
#pragma once
#include <sys/epoll.h>

#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdtab.h"

namespace postern {

// Whether the number is a socket that is not the kernel's alone.
inline bool SockIsServed(const Call& call) {
  return call.ep() != nullptr && !IsKernels(*call.ep());
}

inline bool SockIsSet(Family& fam, int fd) {
  return (FdMeans(fam, fd) & PSTN_FD_KIND) == PSTN_FD_EPOLL;
}

// epoll_ctl() for a socket; kPass: a set of the kernel's watches a socket of the kernel's.
inline long SockWatch(Family& fam, const Call& call, int epfd, int op, int fd, epoll_event* ev) {
  if (WatchesKernelOnly(*call.ep()) && !SockIsSet(fam, epfd)) return kPass;
  return SockEpollCtl(fam, epfd, op, fd, ev);
}

}  // namespace postern
