// SPDX-License-Identifier: Apache-2.0
// epoll.cc - event sets that hold accelerated sockets beside the kernel's descriptors.
//
// A set is the kernel's epoll fd and, from the first accelerated socket on, an object in the stack:
// registrations (items), a ready list and a waiter. The kernel's fds stay registered in the
// kernel's set with the program's own data; what we add there ourselves (doorbell, listeners'
// kernel sockets, the line to posternd) carries data whose upper 40 bits are the set's magic.
//
// A wait, in this order:
//   1. take the bits that peers have set (evmap) and put the items on the ready list,
//   2. look at the kernel's set, at most each epoll.kernel_usec while events keep coming,
//   3. walk the ready list once: an item whose endpoint is ready is an event; level-triggered ones
//      go back to the tail, others leave the list (one-shot ones are disarmed),
//   4. nothing: spin, then announce the sleep, look again, sleep in the kernel's set.
//
// Each post puts an item on the list at most once, so an edge is reported once; a level that
// persists is found again by the walk. Cost is by events, never by members.
#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "sock/cancel.h"
#include "sock/items.h"
#include "sock/sock.h"

namespace postern {
namespace {

constexpr uint64_t kMagicMask = ~0xffffffull;
constexpr uint32_t kTagBell = 0xffffff;
constexpr uint32_t kTagControl = 0xfffffe;
constexpr uint32_t kEventMask = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM |
                                EPOLLWRNORM | EPOLLRDBAND | EPOLLWRBAND | EPOLLMSG | EPOLLERR |
                                EPOLLHUP;
constexpr uint32_t kExclusiveOk =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
constexpr int kKernelBatch = 64;
constexpr uint64_t kSpinForNs = 2'000'000;  // spin while accelerated events are no rarer than this
constexpr uint64_t kIdleSweepNs = 20'000'000;  // first sleep, after which idle rings are given back

// Doorbells of the sets that this process has slept on, by set: an fd that belongs to the waiter.
struct SetLocal {
  uint32_t gen;
  int bell;     // 0: not opened here
  int control;  // ctl_fd that is registered; 0: none
  uint32_t epfd;
  uint64_t kernel_look_ns;
  uint64_t ours_ns;  // last event of an accelerated socket: no spinning where there are none
  uint32_t watched;  // 1: the set itself is in another set, or was polled: see Rearm
  uint32_t kernel_first;
};
SetLocal set_local[PSTN_EPOLLS];
pstn_lock adopt_lock;
// Threads of this process in SockEpollWait on a set, and the number of ours that keeps it for them
// since the program closed its own (0: none).
uint32_t set_waiting[PSTN_EPOLLS];
int set_kept[PSTN_EPOLLS];

// Sets that are members of another set of this process. Few programs have any.
constexpr uint32_t kNestedMax = 64;
struct Nested {
  int outer, inner;
  uint32_t idx;   // of the inner set
  uint64_t data;  // of the registration
};
uint64_t epolls_made[kFdMax / 64];  // numbers that epoll_create gave: a hint
pstn_lock nested_lock;
Nested nested[kNestedMax];
uint32_t nested_count;

pstn_epoll* SetOf(int epfd, uint32_t* idx) {
  uint32_t e = FdEntry(epfd);
  if ((e & PSTN_FD_KIND) != PSTN_FD_EPOLL || (e & PSTN_FD_IDX) >= PSTN_EPOLLS) return nullptr;
  *idx = e & PSTN_FD_IDX;
  return &Stack().epolls[*idx];
}

long KernelAdd(int epfd, int fd, uint32_t events, uint64_t data) {
  epoll_event ev = {};
  ev.events = events;
  ev.data.u64 = data;
  return sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_ADD), fd, &ev);
}

// This process's part of a set. One that was left by a set before it is closed: its bell has no
// use.
SetLocal& LocalOf(const pstn_epoll& set, uint32_t idx) {
  SetLocal& l = set_local[idx];
  if (l.gen == set.gen) return l;
  if (l.bell > 0) CloseInternal(l.bell);
  l = {};
  l.gen = set.gen;
  return l;
}

// dup() of the set's fd from before it was ours: the table has to know those, too.
void AdoptDups(int epfd, pstn_epoll& set, uint32_t idx) {
  constexpr int kLook = 1024;
  for (int fd = 0; fd < kLook; fd++) {
    if (fd == epfd || FdEntry(fd) != 0) continue;
    long r = sys::Call(SYS_kcmp, sys::Pid(), sys::Pid(), 0L /* KCMP_FILE */, static_cast<long>(fd),
                       static_cast<long>(epfd));
    if (r == -EPERM || r == -ENOSYS) return;  // not ours to ask
    if (r != 0) continue;
    FetchAdd(set.refs, 1u);
    SetFd(fd, PSTN_FD_EPOLL | idx);
  }
}

// The number under which a thread that waits reaches the kernel's set.
int KernelFd(int epfd, uint32_t idx) {
  int kept = LoadAcquire(set_kept[idx]);
  return kept != 0 ? kept : epfd;
}

// Makes the object of a kernel epoll fd at its first accelerated member. It has its doorbell from
// the beginning, and so whoever shares the set: a bell is in the kernel's set as long as any copy
// of it is open.
long Adopt(int epfd, uint32_t* idx) {
  Guard g(adopt_lock);
  if (SetOf(epfd, idx) != nullptr) return 0;  // another thread was first
  // The kernel says whether this is an epoll fd at all, and what is wrong otherwise.
  epoll_event probe = {};
  long r = sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL),
                     BellSender(g_proc.bells), &probe);
  if (r != -ENOENT) return r < 0 ? r : -EINVAL;
  pstn_stack& s = Stack();
  uint32_t i = TakeEpoll(s);
  if (i == PSTN_NONE) return -ENOSPC;
  uint64_t magic = NewUuid().hi & kMagicMask;
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
  set.refs = 1;
  set.lock.word = 0;
  set.ready_head = set.ready_tail = set.all_head = PSTN_NONE;
  set.ready_count = set.kernel_count = set.listeners = set.sleepers = 0;
  set.gen++;
  set.magic = magic;
  StoreRelease(set.waiter_idx, bed.waiter);
  StoreRelease(set.state, 1u);
  MarkWaiter(bed.waiter, PSTN_EV_USED);
  LocalOf(set, i).bell = bed.bell;
  SetFd(epfd, PSTN_FD_EPOLL | i);
  AdoptDups(epfd, set, i);
  *idx = i;
  // A thread may sleep in the kernel's set since before it was ours: it has to come and see.
  (void)RingBell(BellSender(g_proc.bells), s.hdr.id, bed.waiter);
  return 0;
}

// A set that this process has from the image before it needs a bell anew.
long EnsureBell(int epfd, pstn_epoll& set, uint32_t idx) {
  SetLocal& l = LocalOf(set, idx);
  if (l.bell == 0) {
    Guard g(adopt_lock);
    if (l.bell != 0) return 0;  // another thread has it just made
    int fd = MoveHigh(OpenBell(Stack().hdr.id, set.waiter_idx));
    // EADDRINUSE: another process that shares the set has it; it is in the kernel's set already.
    if (fd == -EADDRINUSE) {
      l.bell = -1;
    } else if (fd < 0) {
      return fd;
    } else {
      long r = KernelAdd(epfd, fd, EPOLLIN, set.magic | kTagBell);
      if (r < 0) {
        CloseInternal(fd);
        return r;
      }
      l.bell = fd;
    }
  }
  if (set.listeners != 0 && l.control != g_proc.ctl_fd) {
    l.control = g_proc.ctl_fd;
    if (l.control >= 0) (void)KernelAdd(epfd, l.control, EPOLLIN, set.magic | kTagControl);
  }
  return 0;
}

// ---------------------------------------------------------------- registrations

bool WatchesKernelOnly(pstn_ep& ep) {
  uint32_t st = LoadAcquire(ep.state);
  return st == PSTN_EP_KERNEL || st == PSTN_EP_FREE || st == PSTN_EP_CLOSED;
}

// Edge-triggered and one-shot concern the kernel's part as well; EPOLLEXCLUSIVE goes with it. Who
// has not asked for connections must not be woken for them: nobody would take them.
uint32_t ListenerKernelEvents(uint32_t events) {
  uint32_t in = (events & (EPOLLIN | EPOLLRDNORM)) != 0 ? EPOLLIN : 0u;
  return (events & (EPOLLET | EPOLLEXCLUSIVE | EPOLLONESHOT)) | in;
}

long AddItem(int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd,
             const epoll_event& ev) {
  pstn_stack& s = Stack();
  uint32_t prev;
  Guard g(ep.item_lock);
  if (WatchesKernelOnly(ep)) return kPass;  // since a moment: MoveItemsToKernel has been by
  if (FindItem(s, ep, set_idx, fd, &prev) != PSTN_NONE) return -EEXIST;
  uint32_t idx = TakeItem(s);
  if (idx == PSTN_NONE) return -ENOSPC;
  bool listens = LoadRelaxed(ep.state) == PSTN_EP_LISTEN;
  if (listens) {
    long r = KernelAdd(epfd, fd, ListenerKernelEvents(ev.events), set.magic | idx);
    if (r < 0) {
      GiveItem(s, idx);
      return r;
    }
  }
  SetGuard h(s, set);
  pstn_item& item = s.items[idx];
  item.ep_idx = EpIdx(s, ep);
  item.epoll_idx = set_idx;
  item.fd = static_cast<uint32_t>(fd);
  item.epfd = static_cast<uint32_t>(epfd);
  item.events = ev.events;
  item.data = ev.data.u64;
  item.owner_slot = g_proc.slot;
  item.flags = listens ? PSTN_IT_KERNEL : 0u;
  LinkItem(s, ep, set, idx);
  RenotifyLocked(ep);
  PushReady(s, set, idx);  // what it is ready for already is an event
  return 0;
}

long ModItem(int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd,
             const epoll_event& ev) {
  pstn_stack& s = Stack();
  uint32_t prev;
  Guard g(ep.item_lock);
  uint32_t idx = FindItem(s, ep, set_idx, fd, &prev);
  if (idx == PSTN_NONE) return -ENOENT;
  SetGuard h(s, set);
  pstn_item& item = s.items[idx];
  if (((item.events | ev.events) & EPOLLEXCLUSIVE) != 0) return -EINVAL;
  if ((item.flags & PSTN_IT_KERNEL) != 0) {
    epoll_event k = {};
    k.events = ListenerKernelEvents(ev.events);
    k.data.u64 = set.magic | idx;
    long r = sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_MOD), fd, &k);
    if (r < 0) return r;
  }
  item.events = ev.events;
  item.data = ev.data.u64;
  item.flags &= ~PSTN_IT_DISABLED;
  PushReady(s, set, idx);
  return 0;
}

long DelItem(int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd) {
  pstn_stack& s = Stack();
  uint32_t prev;
  Guard g(ep.item_lock);
  uint32_t idx = FindItem(s, ep, set_idx, fd, &prev);
  if (idx == PSTN_NONE) return -ENOENT;
  SetGuard h(s, set);
  bool kernel = (s.items[idx].flags & PSTN_IT_KERNEL) != 0;
  RemoveItem(s, ep, set, idx, prev);
  RenotifyLocked(ep);
  epoll_event none = {};
  return kernel ? sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), fd, &none) : 0;
}

// From our set into the kernel's, which tells at once if there is something to tell. Under
// ep.item_lock.
void MoveItem(int epfd, pstn_epoll& set, pstn_ep& ep, int fd, uint32_t idx, uint32_t prev) {
  pstn_stack& s = Stack();
  SetGuard h(s, set);
  const pstn_item& item = s.items[idx];
  bool in_kernel = (item.flags & PSTN_IT_KERNEL) != 0;
  // A one-shot registration that has fired stays silent.
  uint32_t events =
      (item.flags & PSTN_IT_DISABLED) != 0 ? item.events & (EPOLLET | EPOLLONESHOT) : item.events;
  epoll_event ev = {};
  ev.events = events;
  ev.data.u64 = item.data;
  RemoveItem(s, ep, set, idx, prev);
  (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(in_kernel ? EPOLL_CTL_MOD : EPOLL_CTL_ADD),
                  fd, &ev);
}

void MoveItemOf(int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd) {
  uint32_t prev;
  Guard g(ep.item_lock);
  uint32_t idx = FindItem(Stack(), ep, set_idx, fd, &prev);
  if (idx != PSTN_NONE) MoveItem(epfd, set, ep, fd, idx, prev);
}

}  // namespace

long SockEpollCtl(int epfd, int op, int fd, epoll_event* ev) {
  pstn_ep* ep = EpOfFd(fd);
  uint32_t idx = PSTN_NONE;
  pstn_epoll* set = SetOf(epfd, &idx);
  if (ep == nullptr) return kPass;
  if (WatchesKernelOnly(*ep)) {
    if (set != nullptr)
      MoveItemOf(epfd, *set, idx, *ep, fd);  // it became so after it was registered
    return kPass;
  }
  if (op != EPOLL_CTL_DEL && ev == nullptr) return -EFAULT;
  if (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) return -EINVAL;
  if (op == EPOLL_CTL_ADD && (ev->events & EPOLLEXCLUSIVE) != 0 &&
      (ev->events & ~kExclusiveOk) != 0)
    return -EINVAL;
  if (set == nullptr) {
    if (op != EPOLL_CTL_ADD) return kPass;  // the kernel knows neither: its error is the right one
    long r = Adopt(epfd, &idx);
    if (r < 0) return r;
    set = &Stack().epolls[idx];
  }
  if (op != EPOLL_CTL_DEL) {
    long r = op == EPOLL_CTL_ADD ? AddItem(epfd, *set, idx, *ep, fd, *ev)
                                 : ModItem(epfd, *set, idx, *ep, fd, *ev);
    if (r == 0)
      PostWaiter(g_proc.bells, Stack(), set->waiter_idx);  // somebody may sleep on the set
    return r;
  }
  return DelItem(epfd, *set, idx, *ep, fd);
}

void DropItemsOfEp(pstn_ep& ep) {
  pstn_stack& s = Stack();
  Guard g(ep.item_lock);
  for (uint32_t guard = 0; ep.item_head < PSTN_ITEMS && guard < PSTN_ITEMS; guard++) {
    uint32_t idx = ep.item_head;
    uint32_t set_idx = s.items[idx].epoll_idx;
    if (set_idx >= PSTN_EPOLLS) {
      ep.item_head = PSTN_NONE;
      break;
    }
    pstn_epoll& set = s.epolls[set_idx];
    SetGuard h(s, set);
    RemoveItem(s, ep, set, idx, PSTN_NONE);
  }
}

// A number of this process that means the set, if possible `epfd`; -1: none.
static int NumberOf(uint32_t set_idx, int epfd) {
  const uint32_t entry = PSTN_FD_EPOLL | set_idx;
  if (FdEntry(epfd) == entry) return epfd;
  const int hw = static_cast<int>(LoadRelaxed(g_fd_hw));
  for (int fd = 0; fd < hw; fd++) {
    if (FdEntry(fd) == entry) return fd;
  }
  return -1;
}

// The endpoint's socket has become the kernel's, and `fd` means it. Numbers with which the program
// registered it may be closed or mean something else by now. Sets that this process has no number
// for are left to those who have, when they next wait (LookAtOurs).
void MoveItemsToKernel(int fd, pstn_ep& ep) {
  pstn_stack& s = Stack();
  Guard g(ep.item_lock);
  uint32_t prev = PSTN_NONE;
  for (uint32_t i = ep.item_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS; guard++) {
    const pstn_item& item = s.items[i];
    uint32_t next = item.ep_next, set_idx = item.epoll_idx;
    if (set_idx >= PSTN_EPOLLS) return;
    int epfd = NumberOf(set_idx, static_cast<int>(item.epfd));
    int item_fd =
        FdEntry(static_cast<int>(item.fd)) == FdEntry(fd) ? static_cast<int>(item.fd) : fd;
    if (epfd >= 0) {
      MoveItem(epfd, s.epolls[set_idx], ep, item_fd, i, prev);
    } else {
      prev = i;
    }
    i = next;
  }
}

// The endpoint, registered before, listens from now on: the kernel's half of it has to be watched,
// too.
void WatchListener(int fd, pstn_ep& ep) {
  pstn_stack& s = Stack();
  Guard g(ep.item_lock);
  for (uint32_t i = ep.item_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS;
       i = s.items[i].ep_next, guard++) {
    pstn_item& item = s.items[i];
    if (item.epoll_idx >= PSTN_EPOLLS) return;
    pstn_epoll& set = s.epolls[item.epoll_idx];
    {
      SetGuard h(s, set);
      int epfd = NumberOf(item.epoll_idx, static_cast<int>(item.epfd));
      int item_fd =
          FdEntry(static_cast<int>(item.fd)) == FdEntry(fd) ? static_cast<int>(item.fd) : fd;
      if ((item.flags & PSTN_IT_KERNEL) != 0 ||
          KernelAdd(epfd, item_fd, ListenerKernelEvents(item.events), set.magic | i) < 0)
        continue;
      item.flags |= PSTN_IT_KERNEL;
      set.listeners++;
    }
    PostWaiter(g_proc.bells, s, set.waiter_idx);  // who sleeps on it has not asked for SYNs
  }
}

namespace {

// Takes the first item out of a set that nobody uses any more. False: it is empty.
bool DropFirstItem(pstn_stack& s, pstn_epoll& set, uint32_t set_idx) {
  uint32_t i;
  pstn_ep* ep;
  int fd;
  {
    SetGuard h(s, set);
    i = set.all_head;
    if (i >= PSTN_ITEMS) return false;
    ep = EpAt(s, s.items[i].ep_idx);
    fd = static_cast<int>(s.items[i].fd);
    if (ep == nullptr) RemoveOrphan(s, set, i);
  }
  if (ep == nullptr) return true;
  uint32_t prev;
  Guard g(ep->item_lock);
  uint32_t found = FindItem(s, *ep, set_idx, fd, &prev);
  SetGuard h(s, set);
  if (found != PSTN_NONE) {
    RemoveItem(s, *ep, set, found, prev);
    RenotifyLocked(*ep);
  } else if (set.all_head == i && EpAt(s, s.items[i].ep_idx) == ep) {
    RemoveOrphan(s, set, i);  // whoever added or removed it died on the way
  }
  return true;
}

}  // namespace

void DropEpoll(uint32_t idx) {
  pstn_stack& s = Stack();
  pstn_epoll& set = s.epolls[idx];
  for (uint32_t guard = 0; guard < PSTN_ITEMS && DropFirstItem(s, set, idx); guard++) {
  }
  SetLocal& l = set_local[idx];
  if (l.gen == set.gen && l.bell > 0) CloseInternal(l.bell);
  l = {};
  uint32_t w = set.waiter_idx;
  if (w < PSTN_WAITERS) {
    MarkWaiter(w, 0);
    StoreRelease(s.waiters[w].state, 0u);
    GiveWaiter(s, w);
  }
  StoreRelease(set.waiter_idx, PSTN_NONE);
  StoreRelease(set.state, 0u);
  GiveEpoll(s, idx);
}

// ---------------------------------------------------------------- waiting
namespace {

// 3. One walk over the ready list. Level-triggered items that are ready go to the tail again.
// `moved`: an endpoint was met that has become the kernel's.
int Harvest(pstn_epoll& set, epoll_event* out, int max, bool* moved) {
  pstn_stack& s = Stack();
  int n = 0;
  uint32_t rounds = set.ready_count;
  while (n < max && rounds-- != 0) {
    uint32_t idx = PopReady(s, set);
    if (idx == PSTN_NONE) break;
    pstn_item& item = s.items[idx];
    pstn_ep* ep = EpAt(s, item.ep_idx);
    if (ep == nullptr) continue;
    if (LoadAcquire(ep->state) == PSTN_EP_KERNEL) {
      *moved = true;
      continue;
    }
    uint32_t got = Readiness(*ep);
    if ((item.flags & PSTN_IT_KREADY) != 0) {
      got |= EPOLLIN | EPOLLRDNORM;
      item.flags &= ~PSTN_IT_KREADY;
    }
    got &= (item.events & kEventMask) | EPOLLERR | EPOLLHUP;
    if ((item.events & EPOLLOUT) != 0 && (got & EPOLLOUT) == 0 &&
        LoadRelaxed(ep->state) == PSTN_EP_ESTABLISHED) {
      ConnEnd e;
      if (Resolve(*ep, e)) {
        FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
        if (Writable(e)) got |= EPOLLOUT;  // [F1]: it has become so meanwhile
      }
    }
    if (got == 0) continue;
    out[n].events = got;
    out[n].data.u64 = item.data;
    n++;
    if ((item.events & EPOLLONESHOT) != 0) {
      item.flags |= PSTN_IT_DISABLED;
    } else if ((item.events & EPOLLET) == 0) {
      PushReady(s, set, idx);
    }
  }
  return n;
}

// The last thread that waited on a set whose number is closed ends it, unless other numbers mean
// it.
void ReleaseKept(uint32_t idx) {
  int kept = Exchange(set_kept[idx], 0);
  if (kept == 0) return;
  SetFd(kept, 0);
  sys::Close(kept);
  DropFdRef(PSTN_FD_EPOLL | idx);
}

void StopWaiting(uint32_t idx) {
  if (FetchSub(set_waiting[idx], 1u) == 1 && LoadAcquire(set_kept[idx]) != 0) ReleaseKept(idx);
}

// 2. What the kernel's set has. Events of the program's own fds go to `out`; ours are acted upon.
long LookAtKernel(int fd, pstn_epoll& set, uint32_t idx, epoll_event* out, int max,
                  const Deadline& until, bool sleep, const sigset_t* mask) {
  SetLocal& local = set_local[idx];
  const int epfd = KernelFd(fd, idx);
  epoll_event got[kKernelBatch];
  int batch = max < kKernelBatch ? max : kKernelBatch;
  long r;
  if (sleep) {
    uint64_t left = until.left_ns();
    timespec ts = until.LeftTimespec(UINT64_MAX);
    long ms = until.never() ? -1 : static_cast<long>((left + 999999) / 1000000);
    auto wait = [&] {
      long n = sys::Call(SYS_epoll_pwait2, epfd, &got[0], batch, until.never() ? nullptr : &ts,
                         mask, 8L);
      return n == -ENOSYS ? sys::Call(SYS_epoll_pwait, epfd, &got[0], batch, ms, mask, 8L) : n;
    };
    r = Cancellable(wait, [&] {
      AnnounceSleep(set.waiter_idx, FetchSub(set.sleepers, 1u) != 1);
      StopWaiting(idx);
    });
  } else {
    r = sys::Call(SYS_epoll_wait, epfd, &got[0], batch, 0L);
  }
  local.kernel_look_ns = MonotonicNs();
  if (r <= 0) return r;
  if (LoadRelaxed(nested_count) != 0) r = SockEpollFilter(epfd, &got[0], r);
  int n = 0;
  for (long i = 0; i < r; i++) {
    if ((got[i].data.u64 & kMagicMask) != set.magic) {
      out[n++] = got[i];
      continue;
    }
    uint32_t tag = static_cast<uint32_t>(got[i].data.u64 & ~kMagicMask);
    if (tag == kTagBell) {
      if (local.bell > 0) DrainBell(local.bell);
    } else if (tag == kTagControl) {
      CtlDrain();
      if (g_proc.ctl_fd < 0) {
        local.control = 0;
        CtlReconnect();
      }
    } else if (tag < PSTN_ITEMS) {
      pstn_stack& s = Stack();
      SetGuard g(s, set);
      pstn_item& item = s.items[tag];
      bool member = item.epoll_idx < PSTN_EPOLLS && &s.epolls[item.epoll_idx] == &set;
      if (member &&
          (item.flags & PSTN_IT_KERNEL) != 0) {  // another thread may just have removed it
        item.flags |= PSTN_IT_KREADY;
        PushReady(s, set, tag);
      }
    }
  }
  return n;
}

// A member of this set whose endpoint the kernel serves by now, and its fd in this process; null:
// none.
pstn_ep* MovedMember(pstn_epoll& set, int* fd) {
  pstn_stack& s = Stack();
  Guard g(set.lock);
  for (uint32_t i = set.all_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS;
       i = s.items[i].all_next, guard++) {
    pstn_ep* ep = EpAt(s, s.items[i].ep_idx);
    if (ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_KERNEL) continue;
    *fd = static_cast<int>(s.items[i].fd);
    if (EpOfFd(*fd) == ep) return ep;
  }
  return nullptr;
}

int LookAtOurs(int epfd, pstn_epoll& set, uint32_t idx, epoll_event* out, int max) {
  if (set.listeners != 0) AdmitSyns();
  if (!WaiterHasNews(set.waiter_idx, false) && LoadRelaxed(set.ready_count) == 0) return 0;
  TakePosts(g_proc.view, set, idx);
  bool moved = false;
  int n;
  {
    SetGuard g(Stack(), set);
    n = Harvest(set, out, max, &moved);
  }
  if (n != 0) set_local[idx].ours_ns = MonotonicNs();
  int fd;
  for (pstn_ep* ep; moved && (ep = MovedMember(set, &fd)) != nullptr;)
    MoveItemOf(epfd, set, idx, *ep, fd);
  return n;
}

// One look at both halves. More than 0: that many events.
long LookOnce(int epfd, pstn_epoll& set, uint32_t idx, epoll_event* out, int max, bool ask_kernel) {
  SetLocal& local = set_local[idx];
  // When one half fills `out`, the other half is first the next time.
  bool kernel_first = local.kernel_first != 0;
  local.kernel_first = 0;
  int ours = ask_kernel && kernel_first ? 0 : LookAtOurs(epfd, set, idx, out, max);
  if (!ask_kernel) return ours;
  if (ours == max) {
    local.kernel_first = 1;
    return ours;
  }
  long n = LookAtKernel(epfd, set, idx, out + ours, max - ours, Deadline{0}, false, nullptr);
  if (n < 0) return ours != 0 ? ours : n;
  n += ours;
  if (ours == 0 && n < max)
    n += LookAtOurs(epfd, set, idx, out + n,
                    max - static_cast<int>(n));  // the look may have brought some
  return n;
}

// 4. Sleeps until something may have happened. Events of the kernel's fds that end the sleep go to
// `out`.
long Sleep(int epfd, pstn_epoll& set, uint32_t idx, epoll_event* out, int max, Deadline until,
           const sigset_t* mask) {
  long r = EnsureBell(KernelFd(epfd, idx), set, idx);
  if (r < 0) return r;
  uint32_t w = set.waiter_idx;
  bool listens = set.listeners != 0;
  MarkWaiter(w, PSTN_EV_USED | (listens ? PSTN_EV_SYN : 0u));
  StoreRelaxed(Stack().waiters[w].wants_syn, listens ? 1u : 0u);
  FetchAdd(set.sleepers, 1u);
  AnnounceSleep(w, true);
  if (!WaiterHasNews(w, listens) && LoadRelaxed(set.ready_count) == 0) {
    Count(Stack().hdr, kCounterSleeps);
    if (listens && g_proc.ctl_fd < 0 && until.left_ns() > kDaemonRetryNs)
      until = Deadline::AfterNs(kDaemonRetryNs);
    r = LookAtKernel(epfd, set, idx, out, max, until, true, mask);
    if (listens && g_proc.ctl_fd < 0) CtlReconnect();
  }
  AnnounceSleep(w, FetchSub(set.sleepers, 1u) != 1);  // others may sleep on
  return r;
}

bool HasRings() {
  uint32_t hw = LoadRelaxed(Stack().hdr.lgrs_hw);
  for (uint32_t i = 0; i < hw && i < PSTN_LGRS; i++) {
    if (LoadRelaxed(Stack().lgrs[i].state) != 0 &&
        (LoadRelaxed(Stack().lgrs[i].rings) > 32 || LoadRelaxed(Stack().lgrs[i].zombies) > 32))
      return true;
  }
  return false;
}

}  // namespace

// ---------------------------------------------------------------- sets in other sets
// The kernel's epoll fd is readable when its own members are, or the doorbell. So for a set that is
// itself waited for, the bell is kept as if somebody slept on it, and rung while a member is ready.
// Whoever gives the event to the program looks again here: what the bell said may be over.
namespace {

bool AnyReady(pstn_epoll& set, uint32_t idx) {
  pstn_stack& s = Stack();
  if (set.listeners != 0) AdmitSyns();
  TakePosts(g_proc.view, set, idx);
  SetGuard g(s, set);
  for (uint32_t i = set.ready_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS; guard++) {
    const pstn_item& item = s.items[i];
    i = item.ready_next;
    pstn_ep* ep = EpAt(s, item.ep_idx);
    if (ep == nullptr) continue;
    if ((item.flags & PSTN_IT_KREADY) != 0) return true;
    if ((Readiness(*ep) & ((item.events & kEventMask) | EPOLLERR | EPOLLHUP)) != 0) return true;
  }
  return false;
}

// Is a member of ours ready? The bell then rings; else it is silent, and rings when one becomes so.
bool Rearm(int epfd, pstn_epoll& set, uint32_t idx) {
  if (EnsureBell(epfd, set, idx) < 0) return false;
  SetLocal& l = set_local[idx];
  StoreRelaxed(l.watched, 1u);
  if (l.bell > 0) DrainBell(l.bell);
  MarkWaiter(set.waiter_idx, PSTN_EV_USED | (set.listeners != 0 ? PSTN_EV_SYN : 0u));
  StoreRelaxed(Stack().waiters[set.waiter_idx].wants_syn, set.listeners != 0 ? 1u : 0u);
  AnnounceSleep(set.waiter_idx, true);
  if (!AnyReady(set, idx)) return false;
  (void)RingBell(BellSender(g_proc.bells), Stack().hdr.id, set.waiter_idx);
  return true;
}

// Whether an event that a kernel's set reports for the inner set is still true.
bool StillReady(const Nested& n) {
  uint32_t idx;
  pstn_epoll* set = SetOf(n.inner, &idx);
  if (set == nullptr || idx != n.idx || AnyReady(*set, idx)) return true;
  (void)Rearm(n.inner, *set, idx);
  pollfd p = {n.inner, POLLIN, 0};
  return sys::Call(SYS_poll, &p, 1L, 0L) != 0;
}

}  // namespace

void SockEpollMade(int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  FetchOr(epolls_made[fd / 64], 1ull << (fd & 63));
  if (LoadRelaxed(nested_count) == 0) return;
  Guard g(nested_lock);  // what the number was before
  for (uint32_t i = 0; i < nested_count;) {
    if (nested[i].outer == fd || nested[i].inner == fd) {
      nested[i] = nested[--nested_count];
    } else {
      i++;
    }
  }
}

void SockEpollNest(int outer, int op, int inner, const epoll_event* ev) {
  uint32_t idx;
  pstn_epoll* set = SetOf(inner, &idx);
  if (set == nullptr) {
    // A set with nothing of ours in it, yet: that can change, and the outer one must hear of it
    // then.
    uint64_t bit = 1ull << (inner & 63);
    if (op != EPOLL_CTL_ADD || static_cast<uint32_t>(inner) >= kFdMax ||
        (epolls_made[inner / 64] & bit) == 0)
      return;
    FetchAnd(epolls_made[inner / 64], ~bit);
    if (!g_proc.enabled || !EnsureStack() || Adopt(inner, &idx) < 0) return;
    set = &Stack().epolls[idx];
  }
  {
    Guard g(nested_lock);
    uint32_t i = 0;
    while (i < nested_count && (nested[i].outer != outer || nested[i].idx != idx)) i++;
    if (op == EPOLL_CTL_DEL) {
      if (i < nested_count) nested[i] = nested[--nested_count];
      return;
    }
    if (ev == nullptr || i == kNestedMax)
      return;  // not in the table: an event may then be one too many
    nested[i] = {outer, inner, idx, ev->data.u64};
    if (i == nested_count) StoreRelease(nested_count, i + 1);
  }
  (void)Rearm(inner, *set, idx);
}

long SockEpollFilter(int epfd, epoll_event* events, long count) {
  if (LoadRelaxed(nested_count) == 0) return count;
  long kept = 0;
  for (long i = 0; i < count; i++) {
    Nested found = {-1, -1, 0, 0};
    {
      Guard g(nested_lock);
      for (uint32_t k = 0; k < nested_count; k++) {
        if (nested[k].outer == epfd && nested[k].data == events[i].data.u64) found = nested[k];
      }
    }
    if (found.inner < 0 || StillReady(found)) events[kept++] = events[i];
  }
  return kept;
}

void SockEpollWatch(int epfd) {
  uint32_t idx;
  pstn_epoll* set = SetOf(epfd, &idx);
  if (set != nullptr) (void)Rearm(epfd, *set, idx);
}

// A wait that began when the set was the kernel's alone, and got `count` events.
long SockEpollAdopted(int epfd, epoll_event* events, long count, int max, Deadline until,
                      const sigset_t* mask) {
  uint32_t idx;
  pstn_epoll* set = SetOf(epfd, &idx);
  if (set == nullptr || count < 0) return count;
  long kept = 0;
  for (long i = 0; i < count; i++) {
    if ((events[i].data.u64 & kMagicMask) != set->magic) events[kept++] = events[i];
  }
  if (kept != 0) return kept;
  long r = SockEpollWait(epfd, events, max, until, mask);
  return r != kPass ? r : -EBADF;
}

namespace {

long WaitOnSet(int epfd, pstn_epoll& set, uint32_t idx, epoll_event* out, int max, Deadline until,
               const sigset_t* mask) {
  SetLocal& local = LocalOf(set, idx);
  const uint64_t kernel_ns = static_cast<uint64_t>(g_proc.opt.epoll_kernel_usec) * 1000u;
  const uint32_t interrupts = t_interrupts;
  long n = 0;
  auto news = [&] {
    if (!WaiterHasNews(set.waiter_idx, set.listeners != 0) && LoadRelaxed(set.ready_count) == 0)
      return false;
    n = LookOnce(epfd, set, idx, out, max, false);
    return n != 0;
  };
  // Where accelerated events flow, the kernel's half is asked now and then; where none do, it is
  // asked once, by the sleep.
  uint64_t now = MonotonicNs();
  bool flows = now - local.ours_ns < kSpinForNs;
  if (until.left_ns() == 0 || (flows && now - local.kernel_look_ns >= kernel_ns)) {
    if ((n = LookOnce(epfd, set, idx, out, max, true)) != 0) return n;
  } else if (news()) {
    return n;
  }
  if (until.left_ns() == 0) return 0;
  bool swept = false;
  for (;;) {
    if (flows && Spin(news, until)) return n;
    flows = false;
    if (t_interrupts != interrupts) return -EINTR;
    Deadline end = until;
    bool sweep = !swept && HasRings() && until.left_ns() > kIdleSweepNs;
    if (sweep) end = Deadline::AfterNs(kIdleSweepNs);
    n = Sleep(epfd, set, idx, out, max, end, mask);
    if (n != 0) return n;
    n = LookOnce(epfd, set, idx, out, max, false);
    if (n != 0) return n;
    if (until.left_ns() == 0) return 0;
    if (sweep && end.left_ns() == 0) {
      GiveBackIdleRings();
      swept = true;
    }
  }
}

// Before a call returns. Others may sleep on the set: the doorbell that this call has answered was
// for all, and what it leaves on the list is for them.
void WakeOthers(const pstn_epoll& set) {
  if (LoadRelaxed(set.sleepers) == 0) return;
  uint32_t w = set.waiter_idx;
  AnnounceSleep(w, true);
  if (!WaiterHasNews(w, set.listeners != 0) && LoadRelaxed(set.ready_count) == 0) return;
  (void)RingBell(BellSender(g_proc.bells), Stack().hdr.id, w);
}

}  // namespace

long SockEpollWait(int epfd, epoll_event* out, int max, Deadline until, const sigset_t* mask) {
  uint32_t idx;
  pstn_epoll* set = SetOf(epfd, &idx);
  if (set == nullptr) return kPass;
  if (max <= 0) return -EINVAL;
  if (out == nullptr) return -EFAULT;
  FetchAdd(set_waiting[idx],
           1u);  // [F1] against KeepForWaiters: it sees this, or we see that the number is gone
  uint32_t again;
  long n = -EBADF;
  if (SetOf(epfd, &again) == set) {
    n = WaitOnSet(epfd, *set, idx, out, max, until, mask);
    WakeOthers(*set);
    if (LoadRelaxed(set_local[idx].watched) != 0) (void)Rearm(KernelFd(epfd, idx), *set, idx);
  }
  StopWaiting(idx);
  return n;
}

// As with the kernel's files: who waits goes on though another thread closes the number. The
// reference moves to a number of our own, which the process's death releases like any other.
bool KeepForWaiters(int epfd, uint32_t entry) {
  uint32_t idx = entry & PSTN_FD_IDX;
  FullFence();  // [F1]
  if (idx >= PSTN_EPOLLS || LoadRelaxed(set_waiting[idx]) == 0) return false;
  int high = sys::Fcntl(epfd, F_DUPFD_CLOEXEC, kFdInternal);
  if (high < 0) return false;
  SetFd(high, entry);
  MarkPrivate(high, PSTN_FD_INTERNAL);
  int none = 0;
  if (!CompareExchange(set_kept[idx], none,
                       high)) {  // a duplicate was closed before: that is enough
    SetFd(high, 0);
    sys::Close(high);
    return false;
  }
  if (LoadAcquire(set_waiting[idx]) == 0) ReleaseKept(idx);
  return true;
}

// Threads of the parent are not in the child, nor what they held and waited for.
void SetsAfterFork() {
  adopt_lock.word = nested_lock.word = 0;
  for (uint32_t i = 0; i < PSTN_EPOLLS; i++) {
    if (set_waiting[i] == 0) continue;
    set_waiting[i] = 0;
    if (set_kept[i] != 0) ReleaseKept(i);
  }
}

}  // namespace postern
