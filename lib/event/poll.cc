// SPDX-License-Identifier: Apache-2.0
// poll.cc - poll over the kernel's descriptors and ours.
//
// Ours are looked at in place; the kernel's are asked with a zero timeout. When nothing is ready
// the call sleeps in the kernel on the kernel's descriptors and the doorbell of a waiter, to which
// all of ours are told to post meanwhile.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "base/clock.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "control/acceptor.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "endpoint/posts.h"
#include "event/ask_for_room.h"
#include "event/epoll.h"
#include "event/line_watch.h"
#include "event/poll.h"
#include "event/poll_one.h"
#include "event/poll_set.h"
#include "event/spin.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "family/verbs.h"

namespace postern {
namespace {

constexpr size_t kMaxPoll = kFdMax;

short Answer(Family& fam, pstn_ep& ep, short events) {
  uint32_t mask = Readiness(fam, ep);
  if (mask == kNotMapped) {
    (void)AwaitLgr(fam, LoadRelaxed(ep.lgr_idx));
    mask = Readiness(fam, ep);
    if (mask == kNotMapped) mask = kConnectionLost;
  }
  // EPOLL* and POLL* have the same values on Linux.
  const uint32_t asked = static_cast<uint16_t>(events);
  mask = AskForRoom(fam, ep, asked, mask);
  return static_cast<short>(mask & (asked | POLLERR | POLLHUP));
}

// A set's doorbell may have rung for news that are no event, or for one that is over.
bool StillReadable(Family& fam, pollfd one) {
  SockEpollWatch(fam, one.fd);
  return sys::Call(SYS_poll, &one, 1L, 0L) != 0;
}

// One look at everything. Returns how many are ready; fills revents.
long LookOnce(Family& fam, pollfd* fds, size_t n, KernelSet& k, bool ask_kernel) {
  long ready = 0;
  bool listeners = false;
  for (size_t i = 0; i < n; i++) {
    fds[i].revents = 0;
    pstn_ep* const left = k.Left(i, fds[i].fd);
    const Call call(fam, left != nullptr ? -1 : fds[i].fd);
    pstn_ep* ep = OursForPoll(k, call, left);
    if (ep == nullptr) {
      if (left == nullptr && IsHidden(call))
        fds[i].revents = POLLNVAL, ready++;  // closed meanwhile
      continue;
    }
    if (LoadRelaxed(ep->state) == PSTN_EP_LISTEN) {
      if (left == nullptr) WaitsAt(fam, fds[i].fd, *ep);
      if (!listeners) kVerbs.admit_syns(fam, 1);
      listeners = true;
    }
    fds[i].revents = Answer(fam, *ep, fds[i].events);
    if (fds[i].revents != 0) ready++;
  }
  if (k.count == 0 || !ask_kernel) return ready;
  for (size_t i = 0; k.sets && i < k.count; i++) {
    if (IsSetFd(fam, k.fds[i].fd)) SockEpollWatch(fam, k.fds[i].fd);
  }
  const ByNumber asks(k.held);
  k.Renumber();
  long r = sys::Call(SYS_poll, k.fds, k.count, 0L);
  if (r < 0) return ready != 0 ? ready : r;
  for (size_t i = 0; i < k.count && r > 0; i++) {
    if (k.fds[i].revents == 0) continue;
    if (k.sets && IsSetFd(fam, k.fds[i].fd) && !StillReadable(fam, k.fds[i])) {
      r--;
      continue;
    }
    pollfd& p = fds[k.at[i]];
    // Another thread took the number away after Fill: the kernel has answered for nothing, or for
    // another file.
    if (k.fds[i].fd == p.fd && k.Left(k.at[i], p.fd) != nullptr) {
      r--;
      continue;
    }
    if (p.revents == 0) ready++;
    p.revents = static_cast<short>(p.revents | k.fds[i].revents);
    r--;
  }
  return ready;
}

// At what the numbers mean by now. As in the kernel, which looks so when poll() wakes: because of a
// file that it began to wait for, a signal, or the time.
long LookByNumber(Family& fam, pollfd* fds, size_t n, KernelSet& k) {
  k.by_number = true;  // from now on: if nothing is ready, what the numbers mean is waited for, too
  k.Fill(fds, n);
  return LookOnce(fam, fds, n, k, true);
}

// A look of a poll() that waits.
long LookAgain(Family& fam, pollfd* fds, size_t n, KernelSet& k, bool ask_kernel) {
  const long ready = LookOnce(fam, fds, n, k, ask_kernel);
  return ready != 0 && k.AnyLeft(fds, n) ? LookByNumber(fam, fds, n, k) : ready;
}

// Asks the endpoints to post, those that are held (SockPoll): another thread may have closed a
// number, and it may be another socket's.
void Register(Family& fam, uint32_t waiter, const pollfd* fds, size_t n, KernelSet& k) {
  for (size_t i = 0; i < n; i++) {
    k.ours[i] = 0;
    pstn_ep* const left = k.Left(i, fds[i].fd);
    const Call call(fam, left != nullptr ? -1 : fds[i].fd);
    pstn_ep* ep = OursForPoll(k, call, left);
    // Ours only since poll() began to wait: the next look finds it.
    if (ep == nullptr || (left == nullptr && k.calls.is_open() && k.calls.entry(i) != call.entry()))
      continue;
    MapForRenotify(fam, *ep);
    Guard g(ep->item_lock);
    k.ours[i] = static_cast<uint64_t>(LoadRelaxed(ep->gen)) << 32 | (EpIdx(Stack(fam), *ep) + 1);
    StoreRelaxed(ep->pollers, ep->pollers + 1);
    StoreRelaxed(ep->poller, ep->poller + waiter);
    RenotifyLocked(fam, *ep);
  }
}
void Unregister(Family& fam, uint32_t waiter, size_t n, const KernelSet& k) {
  for (size_t i = 0; i < n; i++) {
    if (k.ours[i] == 0) continue;
    pstn_ep& ep = Stack(fam).eps.Own(EpIndex(static_cast<uint32_t>(k.ours[i]) - 1));
    Guard g(ep.item_lock);
    if (LoadRelaxed(ep.gen) != k.ours[i] >> 32 || ep.pollers == 0) continue;
    StoreRelaxed(ep.pollers, ep.pollers - 1);
    StoreRelaxed(ep.poller, ep.poller - waiter);
    RenotifyLocked(fam, ep);
  }
}

// What a poll() that slept leaves behind, taken back.
void GetUp(Family& fam, const Bed& bed, size_t n, KernelSet& k) {
  AnnounceSleep(fam, bed.waiter, false);
  SpreadPosts(fam);  // it may have been rung for all
  Unregister(fam, bed.waiter, n, k);
  StoreRelaxed(Stack(fam).waiters.Own(WaiterIndex(bed.waiter)).wants_syn, 0u);
  MarkWaiter(fam, bed.waiter, 0);
  GiveBed(fam, bed);
  k.calls.End();
  k.Release();
}

// Sleeps until something may have happened, or the time is up. 0, or -errno of the kernel's call.
long Sleep(Family& fam, Bed& bed, pollfd* fds, size_t n, KernelSet& k, bool listeners,
           const Deadline& until, const sigset_t* mask, uint32_t interrupts, LineWatch& line) {
  AnnounceSleep(fam, bed.waiter, true);
  long r = 0;
  if (!WaiterHasNews(fam, bed.waiter, listeners) && LookAgain(fam, fds, n, k, false) == 0) {
    Count(Stack(fam).hdr, kCounterSleeps);
    PSTN_TRACE2(set_sleeps, bed.waiter, listeners);
    k.fds[k.count] = {bed.bell, POLLIN, 0};
    // What posternd has to say: a first contact, or that it has to be reached again.
    k.fds[k.count + 1] = {LoadRelaxed(fam.ctl_fd), POLLIN, 0};
    const Deadline sleep = SleepUntil(fam, until);
    const uint64_t look_ns = line.left_ns();
    timespec left = sleep.LeftTimespec(look_ns);
    const WireSleep wire(fam);
    const ByNumber asks(k.held);
    k.Renumber();
    r = CancellablePoll(
        fam,
        [&] {
          return SleepUnlessInterrupted(interrupts, {fam, bed.waiter}, [&] {
            return sys::Call(SYS_ppoll, k.fds, k.count + 2u,
                             sleep.never() && look_ns == UINT64_MAX ? nullptr : &left, mask, 8L);
          });
        },
        [&] { GetUp(fam, bed, n, k); }, [&] { return k.AnyLeft(fds, n); });
    PSTN_TRACE2(set_wakes, bed.waiter, r);
    if (r > 0 && k.fds[k.count].revents != 0 && !DrainBell(fam.bells, bed.bell)) {
      SpoiltBell(fam);
      bed.bell = -1;  // the kernel's poll() passes over it
    }
  }
  AnnounceSleep(fam, bed.waiter, false);
  StoreRelaxed(Stack(fam).waiters.Own(WaiterIndex(bed.waiter)).posted, 0u);
  return r < 0 ? r : 0;
}

constexpr uint64_t kNapOfEachNs = 200'000, kLongestNapNs = 50'000'000;

// The stack has no waiter left that peers could wake: looks again and again, and sleeps in between.
long PollByNaps(Family& fam, pollfd* fds, size_t n, KernelSet& k, const Deadline& until,
                const sigset_t* mask, uint32_t interrupts) {
  constexpr uint64_t kFirstNs = 50'000;
  for (uint64_t nap_ns = kFirstNs;; nap_ns *= 2) {
    const long ready = LookAgain(fam, fds, n, k, true);
    if (ready != 0 || until.left_ns() == 0) return ready;
    if (t_interrupts != interrupts) return -EINTR;
    nap_ns =
        std::min({nap_ns, (FetchAdd(fam.beds->nappers, 1u) + 1) * kNapOfEachNs, kLongestNapNs});
    timespec nap = until.LeftTimespec(nap_ns);
    long r;
    {
      const WireSleep wire(fam);
      const ByNumber asks(k.held);
      k.Renumber();
      r = Cancellable(
          fam, [&] { return sys::Call(SYS_ppoll, k.fds, k.count, &nap, mask, 8L); },
          [&] {
            FetchSub(fam.beds->nappers, 1u);
            k.calls.End();
            k.Release();
          });
    }
    FetchSub(fam.beds->nappers, 1u);
    CtlDrain(fam);
    (void)k.Fill(fds, n);
    if (r >= 0) continue;
    const long found = LookAgain(fam, fds, n, k, true);
    return found != 0 ? found : r;
  }
}

// What ends a poll() that has nothing: the time, or a signal. Numbers that were taken away
// meanwhile are looked at once more.
long Last(Family& fam, pollfd* fds, size_t n, KernelSet& k, long ready) {
  if (ready > 0 || !k.AnyLeft(fds, n)) return ready;
  const long found = LookByNumber(fam, fds, n, k);
  return found != 0 ? found : ready;
}

// Clears this waiter's bits: poll() looks at every descriptor anyway.
void ClearNews(Family& fam, uint32_t waiter) {
  SpreadPosts(fam);
  EachLgr(fam, [waiter](uint8_t* lgr, const pstn_lgr_ref& ref) {
    pstn_evmap& map = LgrEvmap(lgr, ref.side, waiter);
    if (LoadRelaxed(map.summary) == 0) return;
    uint64_t words = Exchange(map.summary, 0u);
    for (; words != 0; words &= words - 1) Exchange(map.leaf[__builtin_ctzll(words)], 0u);
  });
}

// Signals that wait, and that `mask` lets in, are taken though there is no time: -EINTR.
long LetIn(const sigset_t* mask) {
  const timespec none = {};
  long r = sys::Call(SYS_ppoll, nullptr, 0L, &none, mask, 8L);
  return r < 0 ? r : 0;
}

}  // namespace

bool AnyOurs(Family& fam, pollfd* fds, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const uint32_t entry = FdMeans(fam, fds[i].fd), kind = entry & PSTN_FD_KIND;
    // What is the kernel's is so for good; a guess that is wrong costs a look.
    const pstn_ep* ep = kind == PSTN_FD_EP ? EpAt(Stack(fam), entry & PSTN_FD_IDX) : nullptr;
    if (kind == PSTN_FD_EPOLL || (ep != nullptr && AnswersFor(*ep))) return true;
  }
  return false;
}

long SockPoll(Family& fam, pollfd* fds, size_t n, Deadline until, const sigset_t* mask,
              const Call* held, bool* slept) {
  if (n > kMaxPoll) return -EINVAL;
  KernelSet k(fam, held);
  if (!k.Reserve(n)) return -ENOMEM;
  // Held from the first look on, as by the kernel's poll(): another thread may close a number after
  // it, and what the number meant is waited for.
  const bool may_wait = held == nullptr && until.left_ns() != 0;
  if (may_wait) (void)k.calls.Begin(n, [&](size_t i) { return fds[i].fd; });
  bool listeners = k.Fill(fds, n);
  if (LoadRelaxed(fam.ctl_fd) >= 0 && !DaemonAlive(fam)) CtlReconnect(fam);
  WireTurn(fam);
  // A call that waits for its own descriptor has just asked the kernel for more than that.
  long ready = LookOnce(fam, fds, n, k, held == nullptr);
  if (ready != 0) return ready;
  if (until.left_ns() == 0) return mask != nullptr ? LetIn(mask) : 0;
  uint32_t interrupts = t_interrupts;
  // A call that waits for its own descriptor is as likely to hear of it from the kernel as from us.
  constexpr uint64_t kOwnNs = 4000;
  uint64_t kernel_ns = static_cast<uint64_t>(fam.opt.epoll_kernel_usec) * 1000u,
           last = MonotonicNs();
  if (held != nullptr && kernel_ns > kOwnNs) kernel_ns = kOwnNs;
  auto look = [&] {
    bool ask = k.count != 0 && MonotonicNs() - last >= kernel_ns;
    if (ask) last = MonotonicNs();
    ready = LookAgain(fam, fds, n, k, ask);
    return ready != 0;
  };
  if (Spin(fam, look, until)) return ready;
  if (t_interrupts != interrupts) return Last(fam, fds, n, k, -EINTR);
  if (slept != nullptr) *slept = true;

  uint32_t cancels = LoadRelaxed(fam.cancels);
  while (mask == nullptr && WaitsForOne(k, fds, n)) {
    const auto found = [&] { return LookAgain(fam, fds, n, k, false) != 0; };
    const Wait w = WaitForOne(fam, k, fds[0].fd, found, until, interrupts);
    if (w == Wait::kTimeout) return Last(fam, fds, n, k, 0);
    if (w == Wait::kInterrupted) return Last(fam, fds, n, k, -EINTR);
    listeners = k.Fill(fds, n);  // it may have become the kernel's
    ready = LookAgain(fam, fds, n, k, true);
    if (ready != 0) return ready;
    if (w == Wait::kRestarts) break;
  }

  Bed bed = TakeBed(fam);
  if (bed.waiter == PSTN_NONE)
    return Last(fam, fds, n, k, PollByNaps(fam, fds, n, k, until, mask, interrupts));
  StoreRelaxed(Stack(fam).waiters.Own(WaiterIndex(bed.waiter)).wants_syn, 1u);
  Register(fam, bed.waiter, fds, n,
           k);  // which may bring link groups that this process had not mapped
  MarkWaiter(fam, bed.waiter, PSTN_EV_USED | (listeners ? PSTN_EV_SYN : 0u));
  LineWatch line(fam, LineWatch::Sleeps::kAtLine);
  for (;;) {
    ClearNews(fam, bed.waiter);
    ready = LookAgain(fam, fds, n, k, true);
    if (ready != 0 || until.left_ns() == 0) break;
    if (t_interrupts != interrupts) {
      ready = -EINTR;
      break;
    }
    // Perhaps it is this thread's: what is found counts for more (CancellablePoll).
    if (const uint32_t now = LoadRelaxed(fam.cancels); now != cancels) {
      cancels = now;
      if (k.AnyLeft(fds, n)) ready = LookByNumber(fam, fds, n, k);
      if (ready != 0) break;
    }
    long r = Sleep(fam, bed, fds, n, k, listeners, until, mask, interrupts, line);
    CtlDrain(fam);
    line.Look(listeners);
    listeners = k.Fill(fds, n);  // one of ours may have become the kernel's
    MarkWaiter(fam, bed.waiter, PSTN_EV_USED | (listeners ? PSTN_EV_SYN : 0u));
    if (r == 0) continue;
    // As in the kernel: what a look finds counts for more than the signal that has ended the sleep.
    ready = LookAgain(fam, fds, n, k, true);
    if (ready == 0) ready = r;
    break;
  }
  ready = Last(fam, fds, n, k, ready);
  GetUp(fam, bed, n, k);
  return ready;
}

}  // namespace postern
