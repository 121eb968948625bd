// SPDX-License-Identifier: Apache-2.0
// epoll_wait.cc - waiting on a set: the walk that epoll.cc describes.
#include <cerrno>

#include "base/clock.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "control/acceptor.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "event/ask_for_room.h"
#include "event/epoll.h"
#include "event/epoll_set.h"
#include "event/held.h"
#include "event/line_watch.h"
#include "event/spin.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "family/verbs.h"

namespace postern {
namespace {

constexpr int kKernelBatch = 64;
constexpr uint64_t kSpinForNs = 2'000'000;  // spin while accelerated events are no rarer than this
constexpr uint64_t kWarmIdle = 256u
                               << 10;  // bytes of free rings that may stay through a long sleep
constexpr uint64_t kIdleSweepNs = 20'000'000;  // first sleep, after which idle rings are given back
// 3. One walk over the ready list. Level-triggered items that are ready go to the tail again.
// `moved`: an endpoint was met that has become the kernel's. `unmapped`: so was one of that link
// group, and stays on the list; null: such a one has failed. -EFAULT: the first event can't be
// told, and stays on the list, as any that can't.
int Harvest(Family& fam, pstn_epoll& set, epoll_event* out, int max, bool* moved,
            uint32_t* unmapped) PSTN_REQUIRES(set.lock) {
  StackMap& s = Stack(fam);
  int n = 0;
  uint32_t rounds = set.ready_count;
  while (n < max && rounds-- != 0) {
    uint32_t idx = PopReady(s, set);
    if (idx == PSTN_NONE) break;
    pstn_item& item = s.items.Own(ItemIndex(idx));  // PopReady has looked
    pstn_ep* ep = EpAt(s, item.ep_idx);
    if (ep == nullptr) continue;
    if (IsKernels(*ep)) {
      *moved = true;
      continue;
    }
    uint32_t got = Readiness(fam, *ep);
    if (got == kNotMapped && unmapped != nullptr) {
      *unmapped = LoadRelaxed(ep->lgr_idx);
      PushReady(s, set, idx);
      continue;
    }
    if (got == kNotMapped) got = kConnectionLost;
    const bool by_kernel = (item.flags & PSTN_IT_KREADY) != 0;
    if (by_kernel) {
      got |= EPOLLIN | EPOLLRDNORM;
      item.flags &= ~PSTN_IT_KREADY;
    }
    got = AskForRoom(fam, *ep, item.events, got);
    got &= (item.events & kEventMask) | EPOLLERR | EPOLLHUP;
    if (got == 0) continue;
    epoll_event event = {};
    event.events = got;
    event.data.u64 = item.data;
    if (!PutUser(&out[n], event)) [[unlikely]] {
      if (by_kernel) item.flags |= PSTN_IT_KREADY;
      PushReady(s, set, idx);
      return n != 0 ? n : -EFAULT;
    }
    n++;
    if ((item.events & EPOLLONESHOT) != 0) {
      item.flags |= PSTN_IT_DISABLED;
    } else if ((item.events & EPOLLET) == 0) {
      PushReady(s, set, idx);
    }
  }
  return n;
}

// 2. What the kernel's set has. Events of the program's own fds go to `out`; ours are acted upon.
long LookAtKernel(Family& fam, const Call& call, pstn_epoll& set, uint32_t idx, epoll_event* out,
                  int max, const Deadline& until, bool sleep, const sigset_t* mask,
                  uint32_t interrupts) {
  SetLocal& local = fam.sets->local[idx];
  const ByNumber asks(call);
  const int epfd = call.fd();
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
    r = Cancellable(
        fam,
        [&] {
          return SleepUnlessInterrupted(interrupts, {fam, set.waiter_idx}, wait);
        },
        [&] {
          AnnounceSleep(fam, set.waiter_idx, FetchSub(set.sleepers, 1u) != 1);
          SpreadPosts(fam);
        });
  } else {
    r = sys::Call(SYS_epoll_wait, epfd, &got[0], batch, 0L);
  }
  StoreRelaxed(local.kernel_look_ns, MonotonicNs());
  if (r <= 0) return r;
  if (LoadRelaxed(fam.sets->nested_count) != 0) r = DropStale(fam, epfd, &got[0], r);
  int n = 0;
  bool told = true;
  for (long i = 0; i < r; i++) {
    if ((got[i].data.u64 & kMagicMask) != set.magic) {
      told = told && PutUser(&out[n], got[i]);
      if (told) n++;
      continue;
    }
    uint32_t tag = static_cast<uint32_t>(got[i].data.u64 & ~kMagicMask);
    if (tag == kTagBell) {
      DrainSet(fam, epfd, local);
    } else if (tag == kTagControl) {
      CtlDrain(fam);
      if (LoadRelaxed(fam.ctl_fd) < 0) {
        StoreRelaxed(local.control, 0u);
        CtlReconnect(fam);
      }
    } else if (pstn_item* const item = Stack(fam).items.At(ItemIndex(tag)); item != nullptr) {
      StackMap& s = Stack(fam);
      SetGuard g(s, set);
      bool member = s.epolls.At(SetIndex(item->epoll_idx)) == &set;
      if (member &&
          (item->flags & PSTN_IT_KERNEL) != 0) {  // another thread may just have removed it
        item->flags |= PSTN_IT_KREADY;
        PushReady(s, set, tag);
      }
    }
  }
  return n != 0 || told ? n : -EFAULT;
}

// A member of this set of which `is(endpoint, registration)`, and its fd in this process; null:
// none.
template <typename Is>
pstn_ep* FindMember(Family& fam, pstn_epoll& set, int* fd, Is is) {
  StackMap& s = Stack(fam);
  SetGuard g(s, set);
  const pstn_item* next = s.items.At(ItemIndex(set.all_head));
  for (uint32_t guard = 0; next != nullptr && guard < s.items.count(); guard++) {
    const pstn_item& item = *next;
    next = s.items.At(ItemIndex(item.all_next));
    pstn_ep* const ep = EpAt(s, item.ep_idx);
    if (ep == nullptr || !is(*ep, item)) continue;
    *fd = static_cast<int>(item.fd);
    if (FdEntry(fam, *fd) == (PSTN_FD_EP | EpIdx(s, *ep))) return ep;
  }
  return nullptr;
}

}  // namespace

void MoveMembers(Family& fam, int epfd, pstn_epoll& set, uint32_t idx) {
  const auto is_moved = [](const pstn_ep& ep, const pstn_item& item) {
    return IsKernels(ep) && !StaysHere(item);
  };
  int fd;
  for (pstn_ep* ep; (ep = FindMember(fam, set, &fd, is_moved)) != nullptr;)
    MoveItemOf(fam, epfd, set, idx, *ep, fd);
}

namespace {

// At its listeners at which no process waits yet.
void WaitsAtMembers(Family& fam, pstn_epoll& set) {
  const auto is_unclaimed = [](const pstn_ep& ep, const pstn_item&) {
    return LoadAcquire(ep.state) == PSTN_EP_LISTEN && LoadRelaxed(ep.acceptor) == 0;  // [E1]
  };
  StoreRelaxed(set.unclaimed, 0u);
  int fd;
  for (pstn_ep* ep; (ep = FindMember(fam, set, &fd, is_unclaimed)) != nullptr;) {
    const Call call(fam, fd);
    if (call.ep() == ep) BecomeAcceptor(fam, fd, *ep);
    if (LoadRelaxed(ep->acceptor) != 0) continue;
    StoreRelaxed(set.unclaimed, 1u);  // there is no posternd: once more with the next look
    return;
  }
}

int LookAtOurs(Family& fam, const Call& call, pstn_epoll& set, uint32_t idx, epoll_event* out,
               int max) {
  if (LoadRelaxed(set.listeners) != 0) {
    if (LoadRelaxed(set.unclaimed) != 0) [[unlikely]]
      WaitsAtMembers(fam, set);
    kVerbs.admit_syns(fam, 1);
  }
  if (!WaiterHasNews(fam, set.waiter_idx, false) && LoadRelaxed(set.ready_count) == 0) return 0;
  SpreadPosts(fam);
  TakePosts(fam.view, set, idx);
  bool moved = false;
  int n = 0;
  uint32_t unmapped;
  bool failed = false;
  do {
    unmapped = PSTN_NONE;
    {
      SetGuard g(Stack(fam), set);
      n = Harvest(fam, set, out, max, &moved, failed ? nullptr : &unmapped);
    }
    // posternd is asked for it, for which no thread is to wait.
    failed = unmapped != PSTN_NONE && AwaitLgr(fam, unmapped) == nullptr;
  } while (n == 0 && unmapped != PSTN_NONE);
  if (n > 0) {
    StoreRelaxed(fam.sets->local[idx].ours_ns, MonotonicNs());
    SpinEarned(static_cast<uint32_t>(n));
  }
  if (moved) {
    const ByNumber asks(call);
    MoveMembers(fam, call.fd(), set, idx);
  }
  return n;
}

// One look at both halves. More than 0: that many events.
long LookOnce(Family& fam, const Call& call, pstn_epoll& set, uint32_t idx, epoll_event* out,
              int max, bool ask_kernel) {
  SetLocal& local = fam.sets->local[idx];
  // When one half fills `out`, the other half is first the next time. Else the kernel's is where it
  // may tell of listeners, which are ours.
  const First first = LoadRelaxed(local.first);
  bool kernel_first =
      first == kKernelFirst || (first == kNobodyFirst && LoadRelaxed(set.listeners) != 0);
  if (!ask_kernel) return LookAtOurs(fam, call, set, idx, out, max);
  StoreRelaxed(local.first, kNobodyFirst);
  int ours = kernel_first ? 0 : LookAtOurs(fam, call, set, idx, out, max);
  if (ours < 0) return ours;
  if (ours == max) {
    StoreRelaxed(local.first, kKernelFirst);
    return ours;
  }
  long n =
      LookAtKernel(fam, call, set, idx, out + ours, max - ours, Deadline{0}, false, nullptr, 0);
  if (n < 0) return ours != 0 ? ours : n;
  n += ours;
  if (n == max && ours == 0) StoreRelaxed(local.first, kOursFirst);
  if (ours == 0 && n < max) {  // the look may have brought some
    const int more = LookAtOurs(fam, call, set, idx, out + n, max - static_cast<int>(n));
    if (more > 0 || n == 0) n += more;
  }
  return n;
}

// 4. Sleeps until something may have happened. Events of the kernel's fds that end the sleep go to
// `out`.
long Sleep(Family& fam, const Call& call, pstn_epoll& set, uint32_t idx, epoll_event* out, int max,
           Deadline until, const sigset_t* mask, uint32_t interrupts, LineWatch& line) {
  long r;
  {
    const ByNumber asks(call);
    r = EnsureBell(fam, call.fd(), set, idx);
  }
  if (r < 0) return r;
  uint32_t w = set.waiter_idx;
  bool listens = LoadRelaxed(set.listeners) != 0;
  MarkWaiter(fam, w, PSTN_EV_USED | (listens ? PSTN_EV_SYN : 0u));
  pstn_waiter* const waiter = Stack(fam).waiters.At(WaiterIndex(w));
  if (waiter != nullptr) StoreRelaxed(waiter->wants_syn, listens ? 1u : 0u);
  FetchAdd(set.sleepers, 1u);
  AnnounceSleep(fam, w, true);
  if (!WaiterHasNews(fam, w, listens) && LoadRelaxed(set.ready_count) == 0) {
    Count(Stack(fam).hdr, kCounterSleeps);
    PSTN_TRACE2(set_sleeps, w, listens);
    const Deadline look = Deadline::AfterNs(line.left_ns());
    if (look.at_ns < until.at_ns) until = look;
    const WireSleep wire(fam);
    r = LookAtKernel(fam, call, set, idx, out, max, SleepUntil(fam, until), true, mask, interrupts);
    PSTN_TRACE2(set_wakes, w, r);
    line.Look(listens);
  }
  AnnounceSleep(fam, w, FetchSub(set.sleepers, 1u) != 1);  // others may sleep on
  SpreadPosts(fam);                                        // it may have been rung for all
  return r;
}

// Enough to be worth a sweep before a long sleep.
bool HasRings(const pstn_lgr_ref& ref) {
  return LoadRelaxed(ref.rings) > 32 || LoadRelaxed(ref.zombies) > 32 || WarmBytes(ref) > kWarmIdle;
}
bool HasRings(Family& fam) {
  for (const pstn_lgr_ref& ref : Stack(fam).lgrs.Before(LoadRelaxed(Stack(fam).hdr.lgrs_hw))) {
    if (LoadRelaxed(ref.state) != 0 && HasRings(ref)) return true;
  }
  return false;
}

}  // namespace

namespace {

long WaitOnSet(Family& fam, const Call& call, pstn_epoll& set, uint32_t idx, epoll_event* out,
               int max, Deadline until, const sigset_t* mask) {
  SetLocal& local = LocalOf(fam, set, idx);
  const uint64_t kernel_ns = static_cast<uint64_t>(fam.opt.epoll_kernel_usec) * 1000u;
  const uint32_t interrupts = t_interrupts;
  long n = 0;
  auto news = [&] {
    if (!WaiterHasNews(fam, set.waiter_idx, LoadRelaxed(set.listeners) != 0) &&
        LoadRelaxed(set.ready_count) == 0)
      return false;
    n = LookOnce(fam, call, set, idx, out, max, false);
    return n != 0;
  };
  // Where accelerated events flow, the kernel's half is asked now and then; where none do, it is
  // asked once, by the sleep.
  WireTurn(fam);
  uint64_t now = MonotonicNs();
  bool flows = now - LoadRelaxed(local.ours_ns) < kSpinForNs;
  if (until.left_ns() == 0 || (flows && now - LoadRelaxed(local.kernel_look_ns) >= kernel_ns)) {
    (void)HeldUntil(fam);  // this call may not come to a sleep
    if ((n = LookOnce(fam, call, set, idx, out, max, true)) != 0) return n;
  } else if (news()) {
    return n;
  }
  if (until.left_ns() == 0) return 0;
  bool swept = false;
  using Sleeps = LineWatch::Sleeps;
  LineWatch line(fam, LoadRelaxed(set.listeners) != 0 ? Sleeps::kAtLine : Sleeps::kElsewhere);
  for (;;) {
    if (flows && Spin(fam, news, until)) return n;
    flows = false;
    if (t_interrupts != interrupts) return -EINTR;
    Deadline end = until;
    bool sweep = !swept && HasRings(fam) && until.left_ns() > kIdleSweepNs;
    if (sweep) end = Deadline::AfterNs(kIdleSweepNs);
    n = Sleep(fam, call, set, idx, out, max, end, mask, interrupts, line);
    if (n != 0) return n;
    n = LookOnce(fam, call, set, idx, out, max, false);
    if (n != 0) return n;
    if (until.left_ns() == 0) return 0;
    if (sweep && end.left_ns() == 0) {
      GiveBackIdleRings(fam);
      swept = true;
    }
  }
}

// Before a call returns. Others may sleep on the set: the doorbell that this call has answered was
// for all, and what it leaves on the list is for them.
void WakeOthers(Family& fam, const pstn_epoll& set) {
  if (LoadRelaxed(set.sleepers) == 0) return;
  uint32_t w = set.waiter_idx;
  AnnounceSleep(fam, w, true);
  if (!WaiterHasNews(fam, w, LoadRelaxed(set.listeners) != 0) && LoadRelaxed(set.ready_count) == 0)
    return;
  RingOwn(fam, w);
}

}  // namespace

long SockEpollWait(Family& fam, int epfd, epoll_event* out, int max, Deadline until,
                   const sigset_t* mask) {
  const Call call(fam, epfd);  // the wait goes on though another thread closes the number
  uint32_t idx;
  pstn_epoll* set = SetOf(fam, call, &idx);
  if (set == nullptr) return kPass;
  if (max <= 0) return -EINVAL;
  // Memory that a program could have is not looked at before there is an event to tell.
  if (IsBeyond(out)) return -EFAULT;
  const long n = WireEvents(fam, WaitOnSet(fam, call, *set, idx, out, max, until, mask));
  WakeOthers(fam, *set);
  if (LoadRelaxed(fam.sets->local[idx].watched) != 0) {
    const ByNumber asks(call);
    (void)Rearm(fam, call.fd(), *set, idx);
  }
  return n;
}

}  // namespace postern
