// SPDX-License-Identifier: Apache-2.0
// epoll_nest.cc - sets in other sets, and sets that are polled.
//
// The kernel's epoll fd is readable when its own members are, or the doorbell. So for a set that is
// itself waited for, the bell is kept as if somebody slept on it, and rung while a member is ready.
// Whoever gives the event to the program looks again here: what the bell said may be over.
#include "base/local_lock.h"
#include "base/sys.h"
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

PSTN_LOCK_WHOLE(nested_lock);
uint32_t nested_count;
uint64_t g_epolls_made[kFdMax / 64];

namespace {

uint32_t epolls_hw;  // no bit of g_epolls_made was ever set in a word from here on

// Sets that are members of another set of this process. Few programs have any.
constexpr uint32_t kNestedMax = 64;
struct Nested {
  int outer, inner;
  uint32_t idx;   // of the inner set
  uint64_t data;  // of the registration
};
Nested nested[kNestedMax];

// `moved`: an endpoint was met that has become the kernel's.
bool AnyOnList(pstn_epoll& set, bool* moved) {
  pstn_stack& s = Stack();
  SetGuard g(s, set);
  for (uint32_t i = set.ready_head, guard = 0; i < PSTN_ITEMS && guard < PSTN_ITEMS; guard++) {
    const pstn_item& item = s.items[i];
    i = item.ready_next;
    pstn_ep* ep = EpAt(s, item.ep_idx);
    if (ep == nullptr) continue;
    if (IsKernels(*ep)) {
      *moved = true;
      continue;
    }
    if ((item.flags & PSTN_IT_KREADY) != 0) return true;
    if ((Readiness(*ep) & ((item.events & kEventMask) | EPOLLERR | EPOLLHUP)) != 0) return true;
  }
  return false;
}

bool AnyReady(int epfd, pstn_epoll& set, uint32_t idx) {
  if (LoadRelaxed(set.listeners) != 0) kVerbs.admit_syns(1);
  SpreadPosts();
  TakePosts(g_proc.view, set, idx);
  bool moved = false;
  const bool any = AnyOnList(set, &moved);
  if (moved) MoveMembers(epfd, set, idx);  // the kernel's set tells of these from now on
  return any;
}

}  // namespace

bool Rearm(int epfd, pstn_epoll& set, uint32_t idx) {
  if (EnsureBell(epfd, set, idx) < 0) return false;
  SetLocal& l = set_local[idx];
  StoreRelaxed(l.watched, 1u);
  if (const int bell = LoadAcquire(l.bell); bell > 0) DrainBell(bell);
  MarkWaiter(set.waiter_idx, PSTN_EV_USED | (LoadRelaxed(set.listeners) != 0 ? PSTN_EV_SYN : 0u));
  StoreRelaxed(Stack().waiters[set.waiter_idx].wants_syn,
               LoadRelaxed(set.listeners) != 0 ? 1u : 0u);
  AnnounceSleep(set.waiter_idx, true);
  if (!AnyReady(epfd, set, idx)) return false;
  (void)RingBell(g_proc.bells, BellOf(Stack(), set.waiter_idx));
  return true;
}

namespace {

constexpr int kDeepest = 5;  // as the kernel's EP_MAX_NESTS: it has refused what is deeper

// The n-th set that is a member of `outer`. False: there are no more.
bool MemberSet(int outer, uint32_t n, Nested& out) {
  Guard g(nested_lock);
  for (uint32_t i = 0; i < nested_count; i++) {
    if (nested[i].outer != outer || n-- != 0) continue;
    out = nested[i];
    return true;
  }
  return false;
}

// Whether an event that a kernel's set reports for the inner set is still true. Its own members may
// be sets, with bells that tell of what is over.
bool StillReady(const Nested& n, int depth = 0) {
  const Call call(n.inner);
  uint32_t idx;
  pstn_epoll* set = SetOf(call, &idx);
  if (set == nullptr || idx != n.idx || AnyReady(n.inner, *set, idx)) return true;
  Nested member;
  for (uint32_t i = 0; depth < kDeepest && MemberSet(n.inner, i, member); i++)
    (void)StillReady(member, depth + 1);
  const ByNumber asks(call);
  (void)Rearm(call.fd(), *set, idx);
  pollfd p = {call.fd(), POLLIN, 0};
  return sys::Call(SYS_poll, &p, 1L, 0L) != 0;
}

}  // namespace

void SockEpollMade(int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  const uint32_t word = static_cast<uint32_t>(fd) / 64;
  FetchOr(g_epolls_made[word], 1ull << (fd & 63));
  for (uint32_t hw = LoadRelaxed(epolls_hw);
       hw <= word && !CompareExchange(epolls_hw, hw, word + 1);) {
  }
  if (LoadRelaxed(nested_count) == 0) return;
  Guard g(nested_lock);  // what the number was before
  for (uint32_t i = 0; i < nested_count;) {
    if (nested[i].outer == fd || nested[i].inner == fd) {
      nested[i] = nested[nested_count - 1];
      StoreRelaxed(nested_count, nested_count - 1);
    } else {
      i++;
    }
  }
}

void SockEpollGone(int fd) { FetchAnd(g_epolls_made[fd / 64], ~(1ull << (fd & 63))); }

// A set that a child shares has to be ours before the fork: made ours by one of the two later, its
// doorbell would be news of nobody's to the other. In a TableFreeze: no other thread makes a set or
// closes one. Half of the waiters are left to those who need them for certain.
void AdoptBeforeFork() {
  const uint32_t& waiters = Stack().hdr.waiters.used;
  for (uint32_t w = 0, end = LoadRelaxed(epolls_hw); w < end; w++) {
    for (uint64_t bits = LoadRelaxed(g_epolls_made[w]); bits != 0; bits &= bits - 1) {
      const int fd = static_cast<int>(w * 64) + __builtin_ctzll(bits);
      if (FdEntry(fd) != 0 || LoadRelaxed(waiters) > PSTN_WAITERS / 2) continue;
      const long r = Adopt(fd);
      if (r < 0 && r != -ENOSPC) FetchAnd(g_epolls_made[w], ~(bits & -bits));  // closed long since
    }
  }
}

namespace {

// A set with nothing of ours in it, yet: that can change, and the outer one must hear of it then.
void AdoptInner(int inner) {
  uint64_t bit = 1ull << (inner & 63);
  if (static_cast<uint32_t>(inner) >= kFdMax || (LoadRelaxed(g_epolls_made[inner / 64]) & bit) == 0)
    return;
  FetchAnd(g_epolls_made[inner / 64], ~bit);
  if (g_proc.enabled && EnsureStack()) (void)Adopt(inner);
}

}  // namespace

void SockEpollNest(int outer, int op, int inner, const epoll_event* ev) {
  if (op == EPOLL_CTL_ADD && (FdMeans(inner) & PSTN_FD_KIND) != PSTN_FD_EPOLL) AdoptInner(inner);
  const Call call(inner);
  uint32_t idx;
  pstn_epoll* set = SetOf(call, &idx);
  if (set == nullptr) return;
  {
    Guard g(nested_lock);
    uint32_t i = 0;
    while (i < nested_count && (nested[i].outer != outer || nested[i].idx != idx)) i++;
    if (op == EPOLL_CTL_DEL) {
      if (i < nested_count) {
        nested[i] = nested[nested_count - 1];
        StoreRelaxed(nested_count, nested_count - 1);
      }
      return;
    }
    if (ev == nullptr || i == kNestedMax)
      return;  // not in the table: an event may then be one too many
    nested[i] = {outer, inner, idx, ev->data.u64};
    if (i == nested_count) StoreRelease(nested_count, i + 1);
  }
  const ByNumber asks(call);
  (void)Rearm(call.fd(), *set, idx);
}

long DropStale(int epfd, epoll_event* events, long count) {
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

long SockEpollFilter(int epfd, epoll_event* events, long count) {
  if (!g_proc.attached) return count;
  const uint64_t magic = SetMagic();
  long kept = 0;
  for (long i = 0; i < count; i++) {
    if ((events[i].data.u64 & kMagicMask) != magic) events[kept++] = events[i];
  }
  return LoadRelaxed(nested_count) != 0 ? DropStale(epfd, events, kept) : kept;
}

void SockEpollWatch(int epfd) {
  const Call call(epfd);
  uint32_t idx;
  pstn_epoll* set = SetOf(call, &idx);
  const ByNumber asks(call);
  if (set != nullptr) (void)Rearm(call.fd(), *set, idx);
}

}  // namespace postern
