// SPDX-License-Identifier: Apache-2.0
// epoll_nest.cc - sets in other sets, and sets that are polled.
//
// The kernel's epoll fd is readable when its own members are, or the doorbell. So for a set that is
// itself waited for, the bell is kept as if a thread slept on it, and rung while a member is ready.
// The call that gives the event to the program looks again here: what the bell said may be over.
#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "event/ask_for_room.h"
#include "event/epoll.h"
#include "event/epoll_set.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"
#include "family/verbs.h"

namespace postern {

namespace {

PSTN_LOCK_ENTRY(nested_lock, fam.sets->nested_lock, nullptr);

// `moved`: an endpoint was met that has become the kernel's. `unmapped`: or one of that link group;
// null: such a one has failed.
bool AnyOnList(Family& fam, pstn_epoll& set, bool* moved, uint32_t* unmapped) {
  StackMap& s = Stack(fam);
  SetGuard g(s, set);
  const pstn_item* next = s.items.At(ItemIndex(set.ready_head));
  for (uint32_t guard = 0; next != nullptr && guard < s.items.count(); guard++) {
    const pstn_item& item = *next;
    next = s.items.At(ItemIndex(item.ready_next));
    pstn_ep* ep = EpAt(s, item.ep_idx);
    if (ep == nullptr) continue;
    if (IsKernels(*ep)) {
      *moved = true;
      continue;
    }
    if ((item.flags & PSTN_IT_KREADY) != 0) return true;
    uint32_t got = Readiness(fam, *ep);
    if (got == kNotMapped && unmapped != nullptr) {
      *unmapped = LoadRelaxed(ep->lgr_idx);
      continue;
    }
    if (got == kNotMapped) got = kConnectionLost;
    got = AskForRoom(fam, *ep, item.events, got);
    if ((got & ((item.events & kEventMask) | EPOLLERR | EPOLLHUP)) != 0) return true;
  }
  return false;
}

bool AnyReady(Family& fam, int epfd, pstn_epoll& set, uint32_t idx) {
  if (LoadRelaxed(set.listeners) != 0) kVerbs.admit_syns(fam, 1);
  SpreadPosts(fam);
  TakePosts(fam.view, set, idx);
  bool moved = false;
  bool any = false, failed = false;
  uint32_t unmapped;
  do {
    unmapped = PSTN_NONE;
    any = AnyOnList(fam, set, &moved, failed ? nullptr : &unmapped);
    failed = unmapped != PSTN_NONE && AwaitLgr(fam, unmapped) == nullptr;
  } while (!any && unmapped != PSTN_NONE);
  if (moved) MoveMembers(fam, epfd, set, idx);  // the kernel's set tells of these from now on
  return any;
}

}  // namespace

bool Rearm(Family& fam, int epfd, pstn_epoll& set, uint32_t idx) {
  if (EnsureBell(fam, epfd, set, idx) < 0) return false;
  SetLocal& l = fam.sets->local[idx];
  StoreRelaxed(l.watched, 1u);
  DrainSet(fam, epfd, l);
  MarkWaiter(fam, set.waiter_idx,
             PSTN_EV_USED | (LoadRelaxed(set.listeners) != 0 ? PSTN_EV_SYN : 0u));
  pstn_waiter* const waiter = Stack(fam).waiters.At(WaiterIndex(set.waiter_idx));
  if (waiter == nullptr) return false;
  StoreRelaxed(waiter->wants_syn, LoadRelaxed(set.listeners) != 0 ? 1u : 0u);
  AnnounceSleep(fam, set.waiter_idx, true);
  if (!AnyReady(fam, epfd, set, idx)) return false;
  RingOwn(fam, set.waiter_idx);
  return true;
}

namespace {

constexpr int kDeepest = 5;  // as the kernel's EP_MAX_NESTS: it has refused what is deeper

// The n-th set that is a member of `outer`. False: there are no more.
bool MemberSet(Family& fam, int outer, uint32_t n, Nested& out) {
  Guard g(fam.sets->nested_lock);
  for (uint32_t i = 0; i < fam.sets->nested_count; i++) {
    if (fam.sets->nested[i].outer != outer || n-- != 0) continue;
    out = fam.sets->nested[i];
    return true;
  }
  return false;
}

// Whether an event that a kernel's set reports for the inner set is still true. Its own members may
// be sets, with bells that tell of what is over.
bool StillReady(Family& fam, const Nested& n, int depth = 0) {
  const Call call(fam, n.inner);
  uint32_t idx;
  pstn_epoll* set = SetOf(fam, call, &idx);
  if (set == nullptr || idx != n.idx || AnyReady(fam, n.inner, *set, idx)) return true;
  Nested member;
  for (uint32_t i = 0; depth < kDeepest && MemberSet(fam, n.inner, i, member); i++)
    (void)StillReady(fam, member, depth + 1);
  const ByNumber asks(call);
  (void)Rearm(fam, call.fd(), *set, idx);
  pollfd p = {call.fd(), POLLIN, 0};
  return sys::Call(SYS_poll, &p, 1L, 0L) != 0;
}

}  // namespace

namespace {

void NoteMade(Family& fam, int fd) {
  const uint32_t word = static_cast<uint32_t>(fd) / 64;
  FetchOr(fam.epolls_made[word], 1ull << (fd & 63));
  for (uint32_t hw = LoadRelaxed(fam.sets->made_hw);
       hw <= word && !CompareExchange(fam.sets->made_hw, hw, word + 1);) {
  }
  if (LoadRelaxed(fam.sets->nested_count) == 0) return;
  Guard g(fam.sets->nested_lock);  // what the number was before
  for (uint32_t i = 0; i < fam.sets->nested_count;) {
    if (fam.sets->nested[i].outer == fd || fam.sets->nested[i].inner == fd) {
      fam.sets->nested[i] = fam.sets->nested[fam.sets->nested_count - 1];
      StoreRelaxed(fam.sets->nested_count, fam.sets->nested_count - 1);
    } else {
      i++;
    }
  }
}

}  // namespace

void SockEpollMade(Family& fam, int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  FetchAnd(fam.epolls_duped[fd / 64], ~(1ull << (fd & 63)));
  NoteMade(fam, fd);
}

void SockEpollDups(Family& fam, int fd) {
  FetchOr(fam.epolls_duped[fd / 64], 1ull << (fd & 63));
  FullFence();  // [F1] against AdoptDups
}

void SockEpollDuped(Family& fam, int to) {
  if (static_cast<uint32_t>(to) >= kFdMax) return;
  FetchOr(fam.epolls_duped[to / 64], 1ull << (to & 63));
  NoteMade(fam, to);
}

void SockEpollGone(Family& fam, int fd) {
  FetchAnd(fam.epolls_made[fd / 64], ~(1ull << (fd & 63)));
}

// A set that a child shares has to be ours before the fork: made ours by one of the two later, its
// doorbell would be an event of no member's to the other. In a TableFreeze: no other thread makes a
// set or closes one. Half of the waiters are left to sets that need them for certain.
void AdoptBeforeFork(Family& fam) {
  const pstn_pool& waiters = Stack(fam).hdr.waiters;
  for (uint32_t w = 0, end = LoadRelaxed(fam.sets->made_hw); w < end; w++) {
    for (uint64_t bits = LoadRelaxed(fam.epolls_made[w]); bits != 0; bits &= bits - 1) {
      const int fd = static_cast<int>(w * 64) + __builtin_ctzll(bits);
      if (FdEntry(fam, fd) != 0 || PoolUsed(waiters) > PSTN_WAITERS / 2) continue;
      const long r = Adopt(fam, fd);
      if (r < 0 && r != -ENOSPC)
        FetchAnd(fam.epolls_made[w], ~(bits & -bits));  // closed long since
    }
  }
}

namespace {

// A set with nothing of ours in it, yet: that can change, and the outer one must hear of it then.
void AdoptInner(Family& fam, int inner) {
  uint64_t bit = 1ull << (inner & 63);
  if (static_cast<uint32_t>(inner) >= kFdMax ||
      (LoadRelaxed(fam.epolls_made[inner / 64]) & bit) == 0)
    return;
  FetchAnd(fam.epolls_made[inner / 64], ~bit);
  if (fam.enabled && EnsureStack(fam)) (void)Adopt(fam, inner);
}

}  // namespace

void SockEpollNest(Family& fam, int outer, int op, int inner, const epoll_event* ev) {
  if (op == EPOLL_CTL_ADD && (FdMeans(fam, inner) & PSTN_FD_KIND) != PSTN_FD_EPOLL)
    AdoptInner(fam, inner);
  const Call call(fam, inner);
  uint32_t idx;
  pstn_epoll* set = SetOf(fam, call, &idx);
  if (set == nullptr) return;
  {
    Guard g(fam.sets->nested_lock);
    uint32_t i = 0;
    while (i < fam.sets->nested_count &&
           (fam.sets->nested[i].outer != outer || fam.sets->nested[i].idx != idx))
      i++;
    if (op == EPOLL_CTL_DEL) {
      if (i < fam.sets->nested_count) {
        fam.sets->nested[i] = fam.sets->nested[fam.sets->nested_count - 1];
        StoreRelaxed(fam.sets->nested_count, fam.sets->nested_count - 1);
      }
      return;
    }
    if (ev == nullptr || i == kNestedMax)
      return;  // not in the table: an event may then be one too many
    fam.sets->nested[i] = {outer, inner, idx, ev->data.u64};
    if (i == fam.sets->nested_count) StoreRelease(fam.sets->nested_count, i + 1);  // [S6]
  }
  const ByNumber asks(call);
  (void)Rearm(fam, call.fd(), *set, idx);
}

long DropStale(Family& fam, int epfd, epoll_event* events, long count) {
  long kept = 0;
  for (long i = 0; i < count; i++) {
    Nested found = {-1, -1, 0, 0};
    {
      Guard g(fam.sets->nested_lock);
      for (uint32_t k = 0; k < fam.sets->nested_count; k++) {
        if (fam.sets->nested[k].outer == epfd && fam.sets->nested[k].data == events[i].data.u64)
          found = fam.sets->nested[k];
      }
    }
    if (found.inner < 0 || StillReady(fam, found)) events[kept++] = events[i];
  }
  return kept;
}

long SockEpollFilter(Family& fam, int epfd, epoll_event* events, long count) {
  const uint64_t left = fam.left_magic;
  if (!fam.attached && left == 0) return count;
  const uint64_t magic = fam.attached ? SetMagic(fam) : left;
  long kept = 0;
  for (long i = 0; i < count; i++) {
    const uint64_t data = events[i].data.u64 & kMagicMask;
    if (data != magic && (left == 0 || data != left)) events[kept++] = events[i];
  }
  if (!fam.attached) return kept;
  return LoadRelaxed(fam.sets->nested_count) != 0 ? DropStale(fam, epfd, events, kept) : kept;
}

void SockEpollWatch(Family& fam, int epfd) {
  const Call call(fam, epfd);
  uint32_t idx;
  pstn_epoll* set = SetOf(fam, call, &idx);
  const ByNumber asks(call);
  if (set != nullptr) (void)Rearm(fam, call.fd(), *set, idx);
}

}  // namespace postern
