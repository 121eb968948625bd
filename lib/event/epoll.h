// SPDX-License-Identifier: Apache-2.0
// epoll.h - event sets.
#pragma once
#include <sys/epoll.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "family/fdtab.h"

namespace postern {

long SockEpollCtl(Family& fam, int epfd, int op, int fd, epoll_event* ev);
// Not ours to register: the kernel serves it, or it is nothing any more.
inline bool WatchesKernelOnly(const pstn_ep& ep) {
  uint32_t st = LoadAcquire(ep.state);  // [E1]
  return (st == PSTN_EP_KERNEL && !IsDatagram(ep)) || st == PSTN_EP_FREE || st == PSTN_EP_CLOSED;
}
long SockEpollWait(Family& fam, int epfd, epoll_event* out, int max, Deadline until,
                   const sigset_t* mask);
// After a wait in the kernel alone, `count` events: drops what is not the program's, as the set has
// become ours meanwhile (and, perhaps, its number another one's), and what is over. Returns how
// many are left.
long SockEpollFilter(Family& fam, int epfd, epoll_event* events, long count);
// Sets in other sets: notes a registration that the kernel has taken; drops events that are over;
// makes the kernel's fd of a set tell, by being readable, whether members of ours are ready.
void SockEpollMade(Family& fam, int fd);  // epoll_create gave this number, in a TableChange
// A set that is the kernel's is about to have one more number: before the kernel gives that. Then
// that number is told of.
void SockEpollDups(Family& fam, int fd);
void SockEpollDuped(Family& fam, int to);
void SockEpollGone(Family& fam, int fd);  // it is about to be closed, in a TableChange
// Might `fd` be a set itself? If not, SockEpollNest has nothing to do.
inline bool MayBeSet(Family& fam, int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return false;
  return (FdEntry(fam, fd) & PSTN_FD_KIND) == PSTN_FD_EPOLL ||
         (LoadRelaxed(fam.epolls_made[fd / 64]) >> (fd & 63) & 1u) != 0;
}
// Closes a kernel's set. -EAGAIN: it has become ours, or something else.
long SockEpollClose(Family& fam, int fd);
// The line to posternd, `fd`, is about to be closed: sets tell of it no longer. Without that they
// would for as long as a thread sleeps in poll() on it, which holds its file.
void SockEpollLineLost(Family& fam, uint32_t line, int fd);
// The process has no sockets of ours any more, and will have none: its set, `fd`, is the kernel's
// if it has no member of ours. An io_uring that watches it is told of its members only.
void GiveSetToKernel(Family& fam, int fd);
void SockEpollNest(Family& fam, int outer, int op, int inner, const epoll_event* ev);
void SockEpollWatch(Family& fam, int epfd);
void DropItemsOfEp(Family& fam, pstn_ep& ep);
void MoveItemsToKernel(Family& fam, int fd, pstn_ep& ep);
void WatchListener(Family& fam, int fd, pstn_ep& ep);
void DropEpoll(Family& fam, uint32_t idx);
void AdoptBeforeFork(Family& fam);

}  // namespace postern
