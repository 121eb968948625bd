// SPDX-License-Identifier: Apache-2.0
// epoll_set.cc - a kernel epoll fd becomes a set of ours: its object, its doorbell.

#include <cerrno>

#include "base/sys.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "endpoint/refs.h"
#include "event/epoll.h"
#include "event/epoll_set.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"
#include "family/open_fds.h"

namespace postern {

namespace {

// What may be half made is a bell: the child has its number and no entry for it, until it ends.
void RenewSets(Family&) {}

}  // namespace

PSTN_LOCK_ENTRY(adopt_lock, fam.sets->adopt_lock, RenewSets);

long KernelAdd(int epfd, int fd, uint32_t events, uint64_t data) {
  epoll_event ev = {};
  ev.events = events;
  ev.data.u64 = data;
  return sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_ADD), fd, &ev);
}

namespace {

// What a set before it has left is closed: its bell has no use. Needs adopt_lock: two threads that
// see the old one would close the number twice.
SetLocal& RenewLocal(Family& fam, const pstn_epoll& set, uint32_t idx)
    PSTN_REQUIRES(fam.sets->adopt_lock) {
  SetLocal& l = fam.sets->local[idx];
  if (l.gen == set.gen) return l;
  if (l.bell > 0) CloseBell(fam, l.bell);
  l = {};
  StoreRelease(l.gen, set.gen);  // [S4]
  return l;
}

}  // namespace

SetLocal& LocalOf(Family& fam, const pstn_epoll& set, uint32_t idx) {
  SetLocal& l = fam.sets->local[idx];
  if (LoadAcquire(l.gen) == set.gen) return l;  // [S4]
  Guard g(fam.sets->adopt_lock);
  return RenewLocal(fam, set, idx);
}

namespace {

// A set that this process has made has no other number but by dup(), which says so. One that it was
// given, or came with, may.
bool HasOneNumber(Family& fam, int epfd) {
  const uint64_t bit = 1ull << (epfd & 63);
  FullFence();  // [F1] against SockEpollDups: the table says by now that the set is ours
  return (LoadRelaxed(fam.epolls_made[epfd / 64]) & bit) != 0 &&
         (LoadRelaxed(fam.epolls_duped[epfd / 64]) & bit) == 0;
}

// dup() of the set's fd from before it was ours: the table has to know those, too.
void AdoptDups(Family& fam, int epfd, uint32_t idx) {
  if (HasOneNumber(fam, epfd)) return;  // a look at each open number costs most of all
  bool may_ask = true;
  EachOpen([&](int fd) {
    if (!may_ask || fd == epfd || FdEntry(fam, fd) != 0) return;
    long r = sys::Call(SYS_kcmp, sys::Pid(), sys::Pid(), 0L /* KCMP_FILE */, static_cast<long>(fd),
                       static_cast<long>(epfd));
    may_ask = r != -EPERM && r != -ENOSYS;
    if (r != 0 || !ClaimFd(fam, fd, 0, kFdReplaced)) return;
    // It may have become another file before it was claimed.
    r = sys::Call(SYS_kcmp, sys::Pid(), sys::Pid(), 0L, static_cast<long>(fd),
                  static_cast<long>(epfd));
    if (r == 0)
      SockDup(fam, PSTN_FD_EPOLL | idx, fd);
    else
      MarkPrivate(fam, fd, 0);
  });
}

// What Adopt makes of a claimed number: its entry, or -errno.
long MakeSet(Family& fam, int epfd) PSTN_REQUIRES(fam.sets->adopt_lock) {
  // The kernel says whether this is an epoll fd at all, and what is wrong otherwise.
  epoll_event probe = {};
  long r = sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), BellSender(fam.bells),
                     &probe);
  if (r != -ENOENT) return r < 0 ? r : -EINVAL;
  StackMap& s = Stack(fam);
  uint32_t i = TakeEpoll(s, fam.whom);
  if (i == PSTN_NONE) return -ENOSPC;
  const uint64_t magic = SetMagic(fam);
  Bed bed = MakeBed(fam, PSTN_NONE);
  if (bed.waiter == PSTN_NONE) {
    GiveEpoll(s, i);
    return bed.bell;
  }
  r = KernelAdd(epfd, bed.bell, EPOLLIN, magic | kTagBell);
  if (r < 0) {
    UnmakeBed(fam, bed);
    GiveEpoll(s, i);
    return r;
  }
  pstn_epoll& set = s.epolls.Own(SetIndex(i));
  // After all that was done under its lock, and by the last to drop it; as with endpoints (Clear in
  // ep.cc), a late one may hold the lock.
  (void)LoadAcquire(set.lock.word);                   // [E6]
  (void)LoadAcquire(set.refs);                        // [E6]
  AssertHeld(set.lock);                               // no number means it yet
  StoreRelaxed(set.refs, LoadRelaxed(set.refs) + 1);  // none by now
  set.ready_head = set.ready_tail = set.all_head = PSTN_NONE;
  StoreRelaxed(set.ready_count, 0u);
  StoreRelaxed(set.sleepers, 0u);
  StoreRelaxed(set.unclaimed, 0u);
  StoreRelaxed(set.listeners, 0u);
  set.gen++;
  set.magic = magic;
  StoreRelease(set.waiter_idx, bed.waiter);            // [S1]
  StoreRelease(set.state, 1u);                         // [S1]
  LeaveHands(s.waiters.Own(WaiterIndex(bed.waiter)));  // it is the set's
  MarkWaiter(fam, bed.waiter, PSTN_EV_USED);
  StoreRelease(RenewLocal(fam, set, i).bell, bed.bell);  // [S5]
  return static_cast<long>(PSTN_FD_EPOLL | i);
}

}  // namespace

// Makes the object of a kernel epoll fd at its first accelerated member. It has its doorbell from
// the beginning, and so has every process that shares the set: a bell is in the kernel's set as
// long as any copy of it is open.
long Adopt(Family& fam, int epfd) {
  if (epfd < 0) return -EBADF;
  if (static_cast<uint32_t>(epfd) >= kFdMax) return -ENOSPC;  // no number that we keep a table of
  TableChange change(fam);
  Guard g(fam.sets->adopt_lock);
  const uint32_t e = AwaitUnclaimed(fam, epfd);
  if (e != 0) return (e & PSTN_FD_KIND) == PSTN_FD_EPOLL ? 0 : -EINVAL;  // another thread was first
  if (!ClaimFd(fam, epfd, 0, kFdReplaced)) return 0;
  const long made = MakeSet(fam, epfd);
  if (made < 0) {
    MarkPrivate(fam, epfd, 0);
    return made;
  }
  StackMap& s = Stack(fam);
  const uint32_t idx = static_cast<uint32_t>(made) & PSTN_FD_IDX;
  const BellName bell = BellOf(s, s.epolls.Own(SetIndex(idx)).waiter_idx);
  SetSharedFd(fam, epfd, static_cast<uint32_t>(made));
  AdoptDups(fam, epfd, idx);
  MarkPrivate(fam, epfd, static_cast<uint32_t>(made));  // another thread may close it now
  // A thread may sleep in the kernel's set since before it was ours: it has to come and see.
  (void)RingBell(fam.bells, bell);
  return 0;
}

// Under the lock of those that make a kernel's set ours: what they have found open stays so.
long SockEpollClose(Family& fam, int fd) {
  TableChange change(fam);
  Guard g(fam.sets->adopt_lock);
  if (!ClaimFd(fam, fd, 0, kFdReplaced)) return -EAGAIN;
  SockEpollGone(fam, fd);
  return CloseClaimed(fam, fd);
}

namespace {

void KernelDel(int epfd, int fd) {
  epoll_event ev = {};
  (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), fd, &ev);
}

// The line to posternd tells a set that has listeners.
void WatchLine(Family& fam, int epfd, const pstn_epoll& set, SetLocal& l) {
  for (;;) {
    const uint32_t line = LoadAcquire(fam.ctl_line);  // [S7]
    const int fd = LoadRelaxed(fam.ctl_fd);
    if (fd < 0 || LoadRelaxed(l.control) == line) return;
    StoreRelaxed(l.control, line);
    (void)KernelAdd(epfd, fd, EPOLLIN, set.magic | kTagControl);
    FullFence();                                    // [F1] against SockEpollLineLost
    if (LoadAcquire(fam.ctl_line) == line) return;  // [S7]
    KernelDel(epfd, fd);                            // it was lost meanwhile
    StoreRelaxed(l.control, 0u);
  }
}

// Whether no other process of the family lives, which might share a set. One that has just ended
// may still have its slot.
bool IsAlone(Family& fam) {
  StackMap& s = Stack(fam);
  for (const pstn_slot& slot : s.slots.Before(LoadRelaxed(s.hdr.slots_hw))) {
    const uint32_t state = LoadAcquire(slot.state);  // [P1]
    if (state == PSTN_SL_FREE || s.slots.IndexOf(slot).word() == fam.slot) continue;
    const auto pid = static_cast<long>(LoadRelaxed(slot.pid));
    if (pid == 0 || sys::Call(SYS_kill, pid, 0L) != -ESRCH) return false;
  }
  return true;
}

}  // namespace

// A set that this process has from the image before it needs a bell anew.
long EnsureBell(Family& fam, int epfd, pstn_epoll& set, uint32_t idx) {
  SetLocal& l = LocalOf(fam, set, idx);
  if (LoadAcquire(l.bell) == 0) {  // [S5]
    Guard g(fam.sets->adopt_lock);
    if (l.bell != 0) return 0;  // another thread has it just made
    int fd = MoveHigh(fam, NewBell(fam, set.waiter_idx));
    // EADDRINUSE: another process that shares the set has it; it is in the kernel's set already.
    if (fd == -EADDRINUSE) {
      StoreRelease(l.bell, -1);  // [S5]
    } else if (fd < 0) {
      return fd;
    } else {
      long r = KernelAdd(epfd, fd, EPOLLIN, set.magic | kTagBell);
      if (r < 0) {
        CloseInternal(fam, fd);
        return r;
      }
      StoreRelease(l.bell, fd);  // [S5]
    }
  }
  if (LoadRelaxed(set.listeners) != 0) WatchLine(fam, epfd, set, l);
  return 0;
}

// In the kernel's set a spoilt bell would end each sleep at once.
void DrainSet(Family& fam, int epfd, SetLocal& local) {
  const int bell = LoadAcquire(local.bell);  // [S5]
  if (bell <= 0 || DrainBell(fam.bells, bell)) return;
  int seen = bell;
  if (!CompareExchange(local.bell, seen, -1)) return;  // another thread has found it so
  KernelDel(epfd, bell);
  SpoiltBell(fam);
}

void GiveSetToKernel(Family& fam, int fd) {
  uint32_t entry, idx;
  {
    const Call call(fam, fd);
    pstn_epoll* const set = SetOf(fam, call, &idx);
    if (set == nullptr) return;
    entry = call.entry();
    const ByNumber asks(call);
    MoveMembers(fam, call.fd(), *set, idx);
    SetGuard g(Stack(fam), *set);
    if (set->all_head != PSTN_NONE) return;
  }
  TableChange change(fam);
  Guard g(fam.sets->adopt_lock);
  if (!ClaimFd(fam, fd, entry, kFdReplaced)) return;  // another thread closes it
  // A thread that waits on it goes on, in the kernel's set: its number stays another one's.
  (void)HandToUsers(fam, fd, entry);
  uint32_t line = LoadAcquire(fam.ctl_line);  // [S7]
  if (line != 0 && CompareExchange(fam.sets->local[idx].control, line, 0u))
    KernelDel(fd, LoadRelaxed(fam.ctl_fd));
  if (const int bell = LoadAcquire(fam.sets->local[idx].bell); bell > 0 && IsAlone(fam))  // [S5]
    KernelDel(fd, bell);
  DropNumber(fam, fd, entry);
  MarkPrivate(fam, fd, 0);
}

void SetsForget(Family& fam) {
  Guard g(fam.sets->adopt_lock);
  for (SetLocal& l : fam.sets->local) {
    if (l.gen == 0 && l.bell == 0) continue;
    if (l.bell > 0) CloseInternal(fam, l.bell);
    l = {};
  }
  Guard n(fam.sets->nested_lock);
  StoreRelaxed(fam.sets->nested_count, 0u);
}

void SockEpollLineLost(Family& fam, uint32_t line, int fd) {
  FullFence();  // [F1] against WatchLine
  const uint32_t end = Stack(fam).epolls.Clamp(LoadRelaxed(Stack(fam).hdr.epolls.hw));
  for (uint32_t i = 0; i < end; i++) {
    if (!CompareExchange(fam.sets->local[i].control, line, 0u)) continue;
    const int epfd = NumberOf(fam, i, -1);
    if (epfd >= 0) KernelDel(epfd, fd);
  }
}

}  // namespace postern
