// SPDX-License-Identifier: Apache-2.0
// epoll_set.cc - a kernel epoll fd becomes a set of ours: its object, its doorbell.

#include <cerrno>

#include "base/local_lock.h"
#include "base/sys.h"
#include "endpoint/posts.h"
#include "event/epoll.h"
#include "event/epoll_set.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/open_fds.h"

namespace postern {

SetLocal set_local[PSTN_EPOLLS];

namespace {

// What may be half made is a bell: the child has its number and no entry for it, until it ends.
void RenewSets() {}

}  // namespace

PSTN_LOCK_RENEWED(adopt_lock, RenewSets);

long KernelAdd(int epfd, int fd, uint32_t events, uint64_t data) {
  epoll_event ev = {};
  ev.events = events;
  ev.data.u64 = data;
  return sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_ADD), fd, &ev);
}

namespace {

// What a set before it has left is closed: its bell has no use. Needs adopt_lock: two threads that
// see the old one would close the number twice.
SetLocal& RenewLocal(const pstn_epoll& set, uint32_t idx) {
  SetLocal& l = set_local[idx];
  if (l.gen == set.gen) return l;
  if (l.bell > 0) CloseInternal(l.bell);
  l = {};
  StoreRelease(l.gen, set.gen);
  return l;
}

}  // namespace

SetLocal& LocalOf(const pstn_epoll& set, uint32_t idx) {
  SetLocal& l = set_local[idx];
  if (LoadAcquire(l.gen) == set.gen) return l;
  Guard g(adopt_lock);
  return RenewLocal(set, idx);
}

namespace {

// dup() of the set's fd from before it was ours: the table has to know those, too.
void AdoptDups(int epfd, pstn_epoll& set, uint32_t idx) {
  bool may_ask = true;
  EachOpen([&](int fd) {
    if (!may_ask || fd == epfd || FdEntry(fd) != 0) return;
    long r = sys::Call(SYS_kcmp, sys::Pid(), sys::Pid(), 0L /* KCMP_FILE */, static_cast<long>(fd),
                       static_cast<long>(epfd));
    may_ask = r != -EPERM && r != -ENOSYS;
    if (r != 0 || !ClaimFd(fd, 0, kFdReplaced)) return;
    // It may have become another file before it was claimed.
    r = sys::Call(SYS_kcmp, sys::Pid(), sys::Pid(), 0L, static_cast<long>(fd),
                  static_cast<long>(epfd));
    if (r == 0) FetchAdd(set.refs, 1u);
    SetFd(fd, r == 0 ? PSTN_FD_EPOLL | idx : 0u);
  });
}

// What Adopt makes of a claimed number: its entry, or -errno.
long MakeSet(int epfd) {
  // The kernel says whether this is an epoll fd at all, and what is wrong otherwise.
  epoll_event probe = {};
  long r = sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL),
                     BellSender(g_proc.bells), &probe);
  if (r != -ENOENT) return r < 0 ? r : -EINVAL;
  pstn_stack& s = Stack();
  uint32_t i = TakeEpoll(s, g_proc.whom);
  if (i == PSTN_NONE) return -ENOSPC;
  const uint64_t magic = SetMagic();
  Bed bed = MakeBed(PSTN_NONE);
  if (bed.waiter == PSTN_NONE) {
    GiveEpoll(s, i);
    return bed.bell;
  }
  r = KernelAdd(epfd, bed.bell, EPOLLIN, magic | kTagBell);
  if (r < 0) {
    UnmakeBed(bed);
    GiveEpoll(s, i);
    return r;
  }
  pstn_epoll& set = s.epolls[i];
  // After all that was done under its lock, and by who dropped it last; as with endpoints (Clear in
  // ep.cc), a late one may hold the lock.
  (void)LoadAcquire(set.lock.word);
  (void)LoadAcquire(set.refs);
  StoreRelaxed(set.refs, 1u);
  set.ready_head = set.ready_tail = set.all_head = PSTN_NONE;
  StoreRelaxed(set.ready_count, 0u);
  StoreRelaxed(set.sleepers, 0u);
  set.kernel_count = 0;
  StoreRelaxed(set.listeners, 0u);
  set.gen++;
  set.magic = magic;
  StoreRelease(set.waiter_idx, bed.waiter);
  StoreRelease(set.state, 1u);
  MarkWaiter(bed.waiter, PSTN_EV_USED);
  StoreRelease(RenewLocal(set, i).bell, bed.bell);
  return static_cast<long>(PSTN_FD_EPOLL | i);
}

}  // namespace

// Makes the object of a kernel epoll fd at its first accelerated member. It has its doorbell from
// the beginning, and so whoever shares the set: a bell is in the kernel's set as long as any copy
// of it is open.
long Adopt(int epfd) {
  if (epfd < 0) return -EBADF;
  if (static_cast<uint32_t>(epfd) >= kFdMax) return -ENOSPC;  // no number that we keep a table of
  TableChange change;
  Guard g(adopt_lock);
  const uint32_t e = AwaitUnclaimed(epfd);
  if (e != 0) return (e & PSTN_FD_KIND) == PSTN_FD_EPOLL ? 0 : -EINVAL;  // another thread was first
  if (!ClaimFd(epfd, 0, kFdReplaced)) return 0;
  const long made = MakeSet(epfd);
  if (made < 0) {
    MarkPrivate(epfd, 0);
    return made;
  }
  pstn_stack& s = Stack();
  const uint32_t idx = static_cast<uint32_t>(made) & PSTN_FD_IDX;
  AdoptDups(epfd, s.epolls[idx], idx);
  const BellName bell = BellOf(s, s.epolls[idx].waiter_idx);
  SetFd(epfd, static_cast<uint32_t>(made));  // from here on another thread may close it
  // A thread may sleep in the kernel's set since before it was ours: it has to come and see.
  (void)RingBell(g_proc.bells, bell);
  return 0;
}

// Under the lock of those that make a kernel's set ours: what they have found open stays so.
long SockEpollClose(int fd) {
  TableChange change;
  Guard g(adopt_lock);
  if (!ClaimFd(fd, 0, kFdReplaced)) return -EAGAIN;
  SockEpollGone(fd);
  return CloseClaimed(fd);
}

namespace {

void KernelDel(int epfd, int fd) {
  epoll_event ev = {};
  (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), fd, &ev);
}

// The line to posternd tells a set that has listeners.
void WatchLine(int epfd, const pstn_epoll& set, SetLocal& l) {
  for (;;) {
    const uint32_t line = LoadAcquire(g_proc.ctl_line);
    const int fd = LoadRelaxed(g_proc.ctl_fd);
    if (fd < 0 || LoadRelaxed(l.control) == line) return;
    StoreRelaxed(l.control, line);
    (void)KernelAdd(epfd, fd, EPOLLIN, set.magic | kTagControl);
    FullFence();  // [F1] against SockEpollLineLost
    if (LoadAcquire(g_proc.ctl_line) == line) return;
    KernelDel(epfd, fd);  // it was lost meanwhile
    StoreRelaxed(l.control, 0u);
  }
}

}  // namespace

// A set that this process has from the image before it needs a bell anew.
long EnsureBell(int epfd, pstn_epoll& set, uint32_t idx) {
  SetLocal& l = LocalOf(set, idx);
  if (LoadAcquire(l.bell) == 0) {
    Guard g(adopt_lock);
    if (l.bell != 0) return 0;  // another thread has it just made
    int fd = MoveHigh(NewBell(set.waiter_idx));
    // EADDRINUSE: another process that shares the set has it; it is in the kernel's set already.
    if (fd == -EADDRINUSE) {
      StoreRelease(l.bell, -1);
    } else if (fd < 0) {
      return fd;
    } else {
      long r = KernelAdd(epfd, fd, EPOLLIN, set.magic | kTagBell);
      if (r < 0) {
        CloseInternal(fd);
        return r;
      }
      StoreRelease(l.bell, fd);
    }
  }
  if (LoadRelaxed(set.listeners) != 0) WatchLine(epfd, set, l);
  return 0;
}

void SockEpollLineLost(uint32_t line, int fd) {
  FullFence();  // [F1] against WatchLine
  for (uint32_t i = 0; i < PSTN_EPOLLS && i < LoadRelaxed(Stack().hdr.epolls.hw); i++) {
    if (!CompareExchange(set_local[i].control, line, 0u)) continue;
    const int epfd = NumberOf(i, -1);
    if (epfd >= 0) KernelDel(epfd, fd);
  }
}

}  // namespace postern
