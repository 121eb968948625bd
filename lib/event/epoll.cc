// SPDX-License-Identifier: Apache-2.0
// epoll.cc - event sets that hold accelerated sockets beside the kernel's descriptors.
//
// A set is the kernel's epoll fd and, from the first accelerated socket on, an object in the stack:
// registrations (items), a ready list and a waiter. The kernel's fds stay registered in the
// kernel's set with the program's own data; what we add there ourselves (doorbell, listeners'
// kernel sockets, the line to posternd) carries data whose upper 40 bits are the stack's magic.
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
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "event/epoll.h"
#include "event/epoll_set.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/verbs.h"

namespace postern {
namespace {

// Edge-triggered and one-shot concern the kernel's part as well; EPOLLEXCLUSIVE goes with it. A
// thread that has not asked for connections must not be woken for them: it would take none.
uint32_t ListenerKernelEvents(uint32_t events) {
  uint32_t in = (events & (EPOLLIN | EPOLLRDNORM)) != 0 ? EPOLLIN : 0u;
  return (events & (EPOLLET | EPOLLEXCLUSIVE | EPOLLONESHOT)) | in;
}

long AddItem(Family& fam, int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd,
             const epoll_event& ev) {
  StackMap& s = Stack(fam);
  uint32_t prev;
  MapForRenotify(fam, ep);
  Guard g(ep.item_lock);
  if (WatchesKernelOnly(ep)) return kPass;  // since a moment: MoveItemsToKernel has been by
  if (FindItem(s, ep, set_idx, fd, &prev) != PSTN_NONE) return -EEXIST;
  uint32_t idx = TakeItem(s, fam.whom);
  if (idx == PSTN_NONE) return -ENOSPC;
  const bool both = LoadRelaxed(ep.state) == PSTN_EP_LISTEN || IsDatagram(ep);
  if (both) {
    long r = KernelAdd(epfd, fd, ListenerKernelEvents(ev.events), set.magic | idx);
    if (r == -EEXIST) {  // of a process that died before it had linked an item
      epoll_event k = {};
      k.events = ListenerKernelEvents(ev.events);
      k.data.u64 = set.magic | idx;
      r = sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_MOD), fd, &k);
    }
    if (r < 0) {
      GiveItem(s, idx);
      return r;
    }
  }
  SetGuard h(s, set);
  pstn_item& item = s.items.Own(ItemIndex(idx));
  StoreRelaxed(item.ep_idx, EpIdx(s, ep));  // PushEp looks without this set's lock
  StoreRelaxed(item.epoll_idx, set_idx);
  StoreRelaxed(item.fd, static_cast<uint32_t>(fd));
  StoreRelaxed(item.epfd, static_cast<uint32_t>(epfd));
  item.events = ev.events;
  item.data = ev.data.u64;
  StoreRelaxed(item.owner_slot, fam.slot);
  item.flags = both ? PSTN_IT_KERNEL : 0u;
  LinkItem(s, ep, set, idx);
  if (LoadRelaxed(ep.state) == PSTN_EP_LISTEN && LoadRelaxed(ep.acceptor) == 0)
    StoreRelaxed(set.unclaimed, 1u);
  RenotifyLocked(fam, ep);
  PushReady(s, set, idx);  // what it is ready for already is an event
  LeaveHands(item);
  return 0;
}

// Not registered; or it was, until MoveItemsToKernel came by a moment ago.
long NoItem(const pstn_ep& ep) { return WatchesKernelOnly(ep) ? kPass : -ENOENT; }

long ModItem(Family& fam, int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd,
             const epoll_event& ev) {
  StackMap& s = Stack(fam);
  uint32_t prev;
  Guard g(ep.item_lock);
  uint32_t idx = FindItem(s, ep, set_idx, fd, &prev);
  if (idx == PSTN_NONE) return NoItem(ep);
  SetGuard h(s, set);
  pstn_item& item = s.items.Own(ItemIndex(idx));
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

long DelItem(Family& fam, int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd) {
  StackMap& s = Stack(fam);
  uint32_t prev;
  MapForRenotify(fam, ep);
  Guard g(ep.item_lock);
  uint32_t idx = FindItem(s, ep, set_idx, fd, &prev);
  if (idx == PSTN_NONE) return NoItem(ep);
  SetGuard h(s, set);
  bool kernel = (s.items.Own(ItemIndex(idx)).flags & PSTN_IT_KERNEL) != 0;
  RemoveItem(s, ep, set, idx, prev);
  RenotifyLocked(fam, ep);
  epoll_event none = {};
  return kernel ? sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), fd, &none) : 0;
}

// What the kernel is to know of a registration. A one-shot one that has fired stays silent.
epoll_event KernelEvent(const pstn_item& item) {
  const bool disabled = (item.flags & PSTN_IT_DISABLED) != 0;
  epoll_event ev = {};
  ev.events = disabled ? item.events & (EPOLLET | EPOLLONESHOT) : item.events;
  ev.data.u64 = item.data;
  return ev;
}

// From our set into the kernel's, which tells at once if there is something to tell. Under
// ep.item_lock and set.lock.
void MoveItem(Family& fam, int epfd, pstn_epoll& set, pstn_ep& ep, int fd, uint32_t idx,
              uint32_t prev) PSTN_REQUIRES(ep.item_lock, set.lock) {
  StackMap& s = Stack(fam);
  const bool in_kernel = (s.items.Own(ItemIndex(idx)).flags & PSTN_IT_KERNEL) != 0;
  epoll_event ev = KernelEvent(s.items.Own(ItemIndex(idx)));
  RemoveItem(s, ep, set, idx, prev);
  // The kernel changes none that is exclusive: it is taken out, and comes anew.
  const bool change = in_kernel && (ev.events & EPOLLEXCLUSIVE) == 0;
  if (in_kernel && !change)
    (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), fd, &ev);
  (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(change ? EPOLL_CTL_MOD : EPOLL_CTL_ADD),
                  fd, &ev);
}

}  // namespace

bool MoveItemOf(Family& fam, int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int fd) {
  uint32_t prev;
  Guard g(ep.item_lock);
  uint32_t idx = FindItem(Stack(fam), ep, set_idx, fd, &prev);
  if (idx == PSTN_NONE) return false;
  SetGuard h(Stack(fam), set);
  if (StaysHere(Stack(fam).items.Own(ItemIndex(idx)))) return true;
  MoveItem(fam, epfd, set, ep, fd, idx, prev);
  return false;
}

namespace {

// epoll_ctl() for a registration that has stayed with us: armed again, it is the kernel's.
long CtlStaying(Family& fam, int epfd, pstn_epoll& set, uint32_t set_idx, pstn_ep& ep, int op,
                int fd, epoll_event* ev) {
  if (op == EPOLL_CTL_ADD) return -EEXIST;
  if (op == EPOLL_CTL_MOD ? (ev->events & EPOLLEXCLUSIVE) != 0 : op != EPOLL_CTL_DEL)
    return -EINVAL;
  {
    uint32_t prev;
    Guard g(ep.item_lock);
    uint32_t idx = FindItem(Stack(fam), ep, set_idx, fd, &prev);
    if (idx == PSTN_NONE) return kPass;  // another thread was here
    SetGuard h(Stack(fam), set);
    RemoveItem(Stack(fam), ep, set, idx, prev);
  }
  return op == EPOLL_CTL_DEL ? 0 : KernelAdd(epfd, fd, ev->events, ev->data.u64);
}

}  // namespace

namespace {

constexpr long kAdopted = kPass - 1;
// epoll_ctl() for a set of ours; null: not one of ours yet.
long CtlOn(Family& fam, int epfd, pstn_epoll* set, uint32_t idx, int op, int fd, pstn_ep& ep,
           epoll_event* ev) {
  if (WatchesKernelOnly(ep)) {
    // It became so after it was registered.
    if (set != nullptr && MoveItemOf(fam, epfd, *set, idx, ep, fd))
      return CtlStaying(fam, epfd, *set, idx, ep, op, fd, ev);
    return kPass;
  }
  if (IsDatagram(ep)) kVerbs.datagram_touch(fam, ep);
  if (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) return -EINVAL;
  if (op == EPOLL_CTL_MOD && (ev->events & EPOLLEXCLUSIVE) != 0) return -EINVAL;
  if (op == EPOLL_CTL_ADD && (ev->events & EPOLLEXCLUSIVE) != 0 &&
      (ev->events & ~kExclusiveOk) != 0)
    return -EINVAL;
  if (set == nullptr) {
    if (op != EPOLL_CTL_ADD) return kPass;  // the kernel knows neither: its error is the right one
    const long r = Adopt(fam, epfd);
    return r < 0 ? r : kAdopted;
  }
  if (op != EPOLL_CTL_DEL) {
    long r = op == EPOLL_CTL_ADD ? AddItem(fam, epfd, *set, idx, ep, fd, *ev)
                                 : ModItem(fam, epfd, *set, idx, ep, fd, *ev);
    if (r == 0)
      PostWaiter(fam.bells, Stack(fam), set->waiter_idx);  // a thread may sleep on the set
    return r;
  }
  return DelItem(fam, epfd, *set, idx, ep, fd);
}

}  // namespace

long SockEpollCtl(Family& fam, int epfd, int op, int fd, epoll_event* ev) {
  const Call socket(fam, fd);
  if (socket.ep() == nullptr) return kPass;
  epoll_event event = {};
  if (op != EPOLL_CTL_DEL) {  // as in the kernel, before anything else is looked at
    if (!GetUser(event, ev)) return -EFAULT;
    ev = &event;
  }
  for (bool left = false;;) {
    const Call own(fam, epfd, socket);
    uint32_t idx = PSTN_NONE;
    pstn_epoll* set = SetOf(fam, own, &idx);
    long r;
    {
      // By the program's numbers: what is registered has them. If one has been closed meanwhile,
      // that is as if it had been closed before.
      if (own.moved() || socket.moved()) return -EBADF;
      const ByNumber set_asks(own), socket_asks(socket);
      if (own.moved() || socket.moved()) return -EBADF;
      r = CtlOn(fam, epfd, set, idx, op, fd, *socket.ep(), ev);
    }
    if (r == kAdopted) continue;  // it is looked up as what it is now
    // The stack has no set left, or no registration: the kernel's set has the kernel's socket.
    const bool full = r == -ENOSPC || r == -EMFILE || r == -ENFILE;
    if (left || !full || op != EPOLL_CTL_ADD || kVerbs.leave_to_kernel(fam, fd) != 0) return r;
    left = true;
  }
}

void DropItemsOfEp(Family& fam, pstn_ep& ep) {
  StackMap& s = Stack(fam);
  Guard g(ep.item_lock);
  for (uint32_t guard = 0; guard < s.items.count(); guard++) {
    const uint32_t idx = ep.item_head;
    const pstn_item* const item = s.items.At(ItemIndex(idx));
    if (item == nullptr) break;
    pstn_epoll* const set = s.epolls.At(SetIndex(item->epoll_idx));
    if (set == nullptr) {
      StoreRelaxed(ep.item_head, PSTN_NONE);
      break;
    }
    SetGuard h(s, *set);
    RemoveItem(s, ep, *set, idx, PSTN_NONE);
  }
}

int NumberOf(Family& fam, uint32_t set_idx, int epfd) {
  const uint32_t entry = PSTN_FD_EPOLL | set_idx;
  if (FdEntry(fam, epfd) == entry) return epfd;
  const int hw = static_cast<int>(LoadRelaxed(fam.fd_hw));
  for (int fd = 0; fd < hw; fd++) {
    if (FdEntry(fam, fd) == entry) return fd;
  }
  return -1;
}

namespace {

// One registration for MoveItemsToKernel, in a set whose number here is `epfd`. Other threads may
// close numbers meanwhile. False: the set's has been, or the registration stays.
bool HandOver(Family& fam, int epfd, pstn_epoll& set, pstn_ep& ep, int fd, const pstn_item& item,
              uint32_t prev) PSTN_REQUIRES(ep.item_lock) {
  StackMap& s = Stack(fam);
  const uint32_t entry = PSTN_FD_EP | EpIdx(s, ep);
  SetGuard h(s, set);  // under which its number is closed (SockClose)
  if (StaysHere(item)) return false;
  if (FdEntry(fam, epfd) != (PSTN_FD_EPOLL | s.epolls.IndexOf(set).word())) return false;
  const int registered = static_cast<int>(LoadRelaxed(item.fd));
  const bool same = FdEntry(fam, registered) == entry;
  epoll_event ev = KernelEvent(item);
  MoveItem(fam, epfd, set, ep, same ? registered : fd, s.items.IndexOf(item).word(), prev);
  if (same && FdEntry(fam, registered) != entry) {  // closed: that may have been another file
    (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_DEL), registered, &ev);
    (void)sys::Call(SYS_epoll_ctl, epfd, static_cast<long>(EPOLL_CTL_ADD), fd, &ev);
  }
  return true;
}

}  // namespace

// The endpoint's socket has become the kernel's, and `fd`, which stays open meanwhile, means it.
// Numbers with which the program registered it may be closed or mean something else by now: then it
// is registered as `fd`, and the program can't find it any more, as with the kernel. Sets that this
// process has no number for are left to those that have, when they next wait (LookAtOurs); so are
// registrations of others with a number that is not this endpoint's here: the kernel knows a
// registration by its number.
void MoveItemsToKernel(Family& fam, int fd, pstn_ep& ep) {
  if (InVfork()) return PostEp(fam, ep);  // the sets' numbers are the parent's: it does
  StackMap& s = Stack(fam);
  const uint32_t entry = PSTN_FD_EP | EpIdx(s, ep);
  Guard g(ep.item_lock);
  uint32_t prev = PSTN_NONE;
  for (uint32_t i = ep.item_head, guard = 0; guard < s.items.count(); guard++) {
    const pstn_item* const place = s.items.At(ItemIndex(i));
    if (place == nullptr) return;
    const pstn_item& item = *place;
    uint32_t next = LoadRelaxed(item.ep_next), set_idx = LoadRelaxed(item.epoll_idx);
    pstn_epoll* const set = s.epolls.At(SetIndex(set_idx));
    if (set == nullptr) return;
    const int epfd = NumberOf(fam, set_idx, static_cast<int>(LoadRelaxed(item.epfd)));
    const bool ours = FdEntry(fam, static_cast<int>(LoadRelaxed(item.fd))) == entry ||
                      LoadRelaxed(item.owner_slot) == fam.slot;
    if (epfd < 0 || !ours || !HandOver(fam, epfd, *set, ep, fd, item, prev)) prev = i;
    i = next;
  }
}

// The endpoint, registered before, listens from now on: the kernel's half of it has to be watched,
// too.
void WatchListener(Family& fam, int fd, pstn_ep& ep) {
  StackMap& s = Stack(fam);
  Guard g(ep.item_lock);
  for (uint32_t next = ep.item_head, guard = 0; guard < s.items.count(); guard++) {
    const uint32_t i = next;
    pstn_item* const place = s.items.At(ItemIndex(i));
    if (place == nullptr) return;
    pstn_item& item = *place;
    next = LoadRelaxed(item.ep_next);
    const uint32_t set_idx = LoadRelaxed(item.epoll_idx);
    pstn_epoll* const member_of = s.epolls.At(SetIndex(set_idx));
    if (member_of == nullptr) return;
    pstn_epoll& set = *member_of;
    {
      SetGuard h(s, set);
      int epfd = NumberOf(fam, set_idx, static_cast<int>(item.epfd));
      int item_fd = FdEntry(fam, static_cast<int>(item.fd)) == FdEntry(fam, fd)
                        ? static_cast<int>(item.fd)
                        : fd;
      if ((item.flags & PSTN_IT_KERNEL) != 0 ||
          KernelAdd(epfd, item_fd, ListenerKernelEvents(item.events), set.magic | i) < 0)
        continue;
      item.flags |= PSTN_IT_KERNEL;
      StoreRelaxed(set.listeners, set.listeners + 1);
      StoreRelaxed(set.unclaimed, 1u);
    }
    PostWaiter(fam.bells, s, set.waiter_idx);  // its sleepers have not asked for SYNs
  }
}

namespace {

// Takes the first item out of a set that no number means any more. False: it is empty.
bool DropFirstItem(Family& fam, StackMap& s, pstn_epoll& set, uint32_t set_idx) {
  uint32_t i;
  pstn_ep* ep;
  int fd;
  {
    SetGuard h(s, set);
    i = set.all_head;
    const pstn_item* const item = s.items.At(ItemIndex(i));
    if (item == nullptr) return false;
    if (LoadRelaxed(item->epoll_idx) != set_idx) {  // a list in a circle: dropped already
      set.all_head = PSTN_NONE;
      return false;
    }
    ep = EpAt(s, item->ep_idx);
    fd = static_cast<int>(item->fd);
    if (ep == nullptr) RemoveOrphan(s, set, i);
  }
  if (ep == nullptr) return true;
  uint32_t prev;
  Guard g(ep->item_lock);
  uint32_t found = FindItem(s, *ep, set_idx, fd, &prev);
  SetGuard h(s, set);
  if (found != PSTN_NONE) {
    RemoveItem(s, *ep, set, found, prev);
    RenotifyLocked(fam, *ep);
  } else if (const pstn_item* const item = s.items.At(ItemIndex(i));
             set.all_head == i && item != nullptr && EpAt(s, item->ep_idx) == ep) {
    RemoveOrphan(s, set, i);  // the thread that added or removed it died on the way
  }
  return true;
}

}  // namespace

void DropEpoll(Family& fam, uint32_t idx) {
  StackMap& s = Stack(fam);
  pstn_epoll* const place = s.epolls.At(SetIndex(idx));
  if (place == nullptr) return;
  pstn_epoll& set = *place;
  for (uint32_t guard = 0; guard < s.items.count() && DropFirstItem(fam, s, set, idx); guard++) {
  }
  SetLocal& l = fam.sets->local[idx];
  if (l.gen == set.gen && l.bell > 0) CloseBell(fam, l.bell);
  l = {};
  uint32_t w = set.waiter_idx;
  if (pstn_waiter* const waiter = s.waiters.At(WaiterIndex(w)); waiter != nullptr) {
    TakeInHands(*waiter, s.hdr.waiters.lock);
    StoreRelease(set.waiter_idx, PSTN_NONE);  // [S1]
    MarkWaiter(fam, w, 0);
    StoreRelease(waiter->state, 0u);  // [S3]
    GiveWaiter(s, w);
  }
  StoreRelease(set.state, 0u);  // [S1]
  GiveEpoll(s, idx);
}

}  // namespace postern
