// SPDX-License-Identifier: Apache-2.0
// epoll_set.h - what the parts of the epoll code share: the set itself, in the stack and in this
// process. epoll.cc registers, epoll_wait.cc waits, epoll_nest.cc knows of sets in other sets.
#pragma once
#include "endpoint/call.h"
#include "event/epoll.h"
#include "family/family.h"

namespace postern {

inline constexpr uint64_t kMagicMask = ~0xffffffull;
// Upper bits of the data with which we register what is ours in kernel's sets. One for all sets of
// the stack: a wait that has begun on another set is told of it, too (SockEpollFilter).
inline uint64_t SetMagic(Family& fam) { return (Stack(fam).hdr.id.hi & kMagicMask) | 1ull << 63; }
inline constexpr uint32_t kTagBell = 0xffffff;
inline constexpr uint32_t kTagControl = 0xfffffe;
inline constexpr uint32_t kEventMask = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM |
                                       EPOLLWRNORM | EPOLLRDBAND | EPOLLWRBAND | EPOLLMSG |
                                       EPOLLERR | EPOLLHUP;
inline constexpr uint32_t kExclusiveOk =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

// Doorbells of the sets that this process has slept on, by set: an fd that belongs to the waiter.
enum First : uint32_t { kNobodyFirst, kKernelFirst, kOursFirst };  // at the next look
// Several threads may wait on one set: all of it is (a), and the times and `first` are hints.
struct SetLocal {
  uint32_t gen;
  int bell;          // 0: not opened here
  uint32_t control;  // ctl_line of the line that is registered; 0: none
  uint32_t epfd;
  uint64_t kernel_look_ns;
  uint64_t ours_ns;  // last event of an accelerated socket: no spinning where there are none
  uint32_t watched;  // 1: the set itself is in another set, or was polled: see Rearm
  First first;
};

// Sets that are members of another set of this process. Few programs have any.
struct Nested {
  int outer, inner;
  uint32_t idx;   // of the inner set
  uint64_t data;  // of the registration
};

struct Sets {
  pstn_lock adopt_lock, nested_lock;
  uint32_t nested_count PSTN_GUARDED_BY(nested_lock);
  Nested nested[kNestedMax] PSTN_GUARDED_BY(nested_lock);
  SetLocal local[kSets.most];  // by the set's index
  uint32_t made_hw;            // (a) no bit of epolls_made was ever set in a word from here on
};

inline pstn_epoll* SetOf(Family& fam, const Call& call, uint32_t* idx) {
  const uint32_t e = call.entry();
  if ((e & PSTN_FD_KIND) != PSTN_FD_EPOLL) return nullptr;
  *idx = e & PSTN_FD_IDX;
  return Stack(fam).epolls.At(SetIndex(*idx));
}

// A number of this process that means the set, if possible `epfd`; -1: none.
int NumberOf(Family& fam, uint32_t set_idx, int epfd);
long KernelAdd(int epfd, int fd, uint32_t events, uint64_t data);
// This process's part of a set.
SetLocal& LocalOf(Family& fam, const pstn_epoll& set, uint32_t idx);
// Makes the object of a kernel epoll fd at its first accelerated member. 0 or -errno.
long Adopt(Family& fam, int epfd);
// A set that this process has from the image before it needs a bell anew.
long EnsureBell(Family& fam, int epfd, pstn_epoll& set, uint32_t idx);
// Takes what has rung for the set in this process.
void DrainSet(Family& fam, int epfd, SetLocal& local);
// The registration of an endpoint that the kernel serves by now moves to the kernel's set. True: it
// is there, and stays with us (StaysHere).
bool MoveItemOf(Family& fam, int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd);
// The same for all of a set's that this process has numbers for.
void MoveMembers(Family& fam, int epfd, pstn_epoll& set, uint32_t idx);
// Drops events of sets within the set that are over. Returns how many are left.
long DropStale(Family& fam, int epfd, epoll_event* events, long count);
// The process leaves the stack: its part of each set.
void SetsForget(Family& fam);
// Is a member of ours ready? The bell then rings; else it is silent, and rings when one becomes so.
bool Rearm(Family& fam, int epfd, pstn_epoll& set, uint32_t idx);

}  // namespace postern
