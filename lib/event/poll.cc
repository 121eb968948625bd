// SPDX-License-Identifier: Apache-2.0
// poll.cc - poll and select over the kernel's descriptors and ours.
//
// Ours are looked at in place; the kernel's are asked with a zero timeout. When nothing is ready
// the call sleeps in the kernel on the kernel's descriptors and the doorbell of a waiter, to which
// all of ours are told to post meanwhile.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/sys.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/cancel.h"
#include "endpoint/endpoint.h"
#include "endpoint/posts.h"
#include "event/epoll.h"
#include "event/poll.h"
#include "event/spin.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "family/verbs.h"

namespace postern {
namespace {

constexpr size_t kInline = 128;  // descriptors for which no memory is asked of the kernel
constexpr size_t kMaxPoll = kFdMax;

// Kernel poll set of a call: the entries that the kernel has to watch, and the doorbell behind
// them.
struct KernelSet {
  Family& fam;
  pollfd inline_fds[kInline + 2];  // two more: the doorbell, and posternd's line
  uint64_t inline_ours[kInline];
  uint32_t inline_at[kInline + 2];
  pollfd* fds = inline_fds;
  uint64_t* ours = inline_ours;  // by position in the caller's array: endpoint that posts to us, or
                                 // 0; see Register
  uint32_t* at = inline_at;      // position in the caller's array
  size_t count = 0;
  size_t mapped_bytes = 0;
  bool sets = false;       // event sets of ours are among them
  const Call* const held;  // accept()'s and recv()'s own poll(), of the one that they wait for
  ManyCalls calls;         // what is slept on
  bool by_number = false;  // see Left()

  KernelSet(Family& f, const Call* of) : fam(f), held(of), calls(f) {}

  // The endpoint that entry `i` still waits for though another thread has taken its number away.
  // Null: there is none, or the number alone counts (LookByNumber).
  pstn_ep* Left(size_t i, int fd) const {
    const uint32_t e = calls.entry(i);
    return e == 0 || by_number || AwaitUnclaimed(fam, fd) == e ? nullptr
                                                               : EpAt(Stack(fam), e & PSTN_FD_IDX);
  }
  bool AnyLeft(const pollfd* all, size_t n) const {
    for (size_t i = 0; i < n; i++) {
      if (Left(i, all[i].fd) != nullptr) return true;
    }
    return false;
  }

  // Listeners and UDP sockets are with both. True if a listener of ours is among `all`.
  bool Fill(pollfd* all, size_t n);
  bool Reserve(size_t n) {
    if (n <= kInline) return true;
    mapped_bytes = (n + 2) * (sizeof(pollfd) + sizeof(uint64_t) + sizeof(uint32_t));
    long r = sys::Call(SYS_mmap, 0L, mapped_bytes, static_cast<long>(PROT_READ | PROT_WRITE),
                       static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
    if (r < 0 && r > -4096) return false;
    fds = reinterpret_cast<pollfd*>(r);
    ours = reinterpret_cast<uint64_t*>(fds + n + 2);
    at = reinterpret_cast<uint32_t*>(ours + n + 2);
    return true;
  }
  // Before each system call with `fds`: the number of what is held may be another by now.
  void Renumber() {
    if (held != nullptr && count != 0) fds[0].fd = held->fd();
  }
  void Release() {
    if (mapped_bytes != 0) sys::Unmap(fds, mapped_bytes);
    mapped_bytes = 0;
  }
  ~KernelSet() { Release(); }
};

bool IsSetFd(Family& fam, int fd) { return (FdMeans(fam, fd) & PSTN_FD_KIND) == PSTN_FD_EPOLL; }

// Closed, for the program.
bool IsHidden(const Call& call) { return (call.entry() & PSTN_FD_KIND) == PSTN_FD_CACHED; }

bool AnswersFor(const pstn_ep& ep) {
  const uint32_t st = LoadAcquire(ep.state);  // [E1]
  return st == PSTN_EP_ESTABLISHED || st == PSTN_EP_LISTEN || st == PSTN_EP_NEW ||
         st == PSTN_EP_CONNECTING || (st == PSTN_EP_KERNEL && IsDatagram(ep));
}

// The endpoint of entry `i` if it is one that we answer for.
pstn_ep* OursForPoll(const KernelSet& k, const Call& call, pstn_ep* left) {
  pstn_ep* ep = left != nullptr ? left : k.held != nullptr ? k.held->ep() : call.ep();
  return ep != nullptr && AnswersFor(*ep) ? ep : nullptr;
}

bool KernelSet::Fill(pollfd* all, size_t n) {
  bool listeners = false;
  count = 0;
  for (size_t i = 0; i < n; i++) {
    pstn_ep* const left = Left(i, all[i].fd);
    const int fd = left != nullptr ? calls.parked(i) : held != nullptr ? held->fd() : all[i].fd;
    const Call call(fam, fd);
    pstn_ep* ep = OursForPoll(*this, call, left);
    bool listens = ep != nullptr && LoadRelaxed(ep->state) == PSTN_EP_LISTEN;
    listeners = listeners || listens;
    if (listens && held == nullptr && (LoadRelaxed(ep->flags) & PSTN_EPF_POLLED) == 0)
      FetchOr(ep->flags, PSTN_EPF_POLLED);
    const bool datagrams = ep != nullptr && LoadRelaxed(ep->state) == PSTN_EP_KERNEL;
    if (datagrams) kVerbs.datagram_touch(fam, *ep);
    const bool hidden = left == nullptr && IsHidden(call);
    if (fd < 0 || (ep != nullptr && !listens && !datagrams) || hidden) continue;
    sets = sets || IsSetFd(fam, fd);
    fds[count] = {fd, all[i].events, 0};
    at[count++] = static_cast<uint32_t>(i);
  }
  return listeners;
}

short Answer(Family& fam, pstn_ep& ep, short events) {
  uint32_t mask = Readiness(fam, ep);
  if (mask == kNotMapped) {
    (void)EnsureLgr(fam, LoadRelaxed(ep.lgr_idx));
    mask = Readiness(fam, ep);
    if (mask == kNotMapped) mask = kConnectionLost;
  }
  // EPOLL* and POLL* have the same values on Linux.
  return static_cast<short>(
      mask & (static_cast<uint32_t>(static_cast<uint16_t>(events)) | POLLERR | POLLHUP));
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
    if (LoadRelaxed(ep->state) == PSTN_EP_LISTEN && !listeners) {
      kVerbs.admit_syns(fam, 1);
      listeners = true;
    }
    fds[i].revents = Answer(fam, *ep, fds[i].events);
    if (fds[i].revents != 0) ready++;
    if ((fds[i].events & POLLOUT) != 0 && (fds[i].revents & POLLOUT) == 0 &&
        LoadRelaxed(ep->state) == PSTN_EP_ESTABLISHED) {
      ConnEnd e;
      if (Resolve(fam, *ep, e)) FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
    }
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
    pstn_ep& ep = Stack(fam).eps[static_cast<uint32_t>(k.ours[i]) - 1];
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
  StoreRelaxed(Stack(fam).waiters[bed.waiter].wants_syn, 0u);
  MarkWaiter(fam, bed.waiter, 0);
  GiveBed(fam, bed);
  k.calls.End();
  k.Release();
}

// Sleeps until something may have happened, or the time is up. 0, or -errno of the kernel's call.
long Sleep(Family& fam, const Bed& bed, pollfd* fds, size_t n, KernelSet& k, bool listeners,
           const Deadline& until, const sigset_t* mask, uint32_t interrupts) {
  AnnounceSleep(fam, bed.waiter, true);
  long r = 0;
  if (!WaiterHasNews(fam, bed.waiter, listeners) && LookAgain(fam, fds, n, k, false) == 0) {
    Count(Stack(fam).hdr, kCounterSleeps);
    k.fds[k.count] = {bed.bell, POLLIN, 0};
    // A listener also hears from posternd: a first contact, or that it has to be reached again.
    k.fds[k.count + 1] = {LoadRelaxed(fam.ctl_fd), POLLIN, 0};
    bool retry = listeners && LoadRelaxed(fam.ctl_fd) < 0;
    const Deadline sleep = SleepUntil(fam, until);
    timespec left = sleep.LeftTimespec(retry ? kDaemonRetryNs : UINT64_MAX);
    const WireSleep wire(fam);
    const ByNumber asks(k.held);
    k.Renumber();
    r = Cancellable(
        fam,
        [&] {
          return SleepUnlessInterrupted(interrupts, {fam, bed.waiter}, [&] {
            return sys::Call(SYS_ppoll, k.fds, k.count + (listeners ? 2u : 1u),
                             sleep.never() && !retry ? nullptr : &left, mask, 8L);
          });
        },
        [&] { GetUp(fam, bed, n, k); });
    if (retry) CtlReconnect(fam);
    if (r > 0 && k.fds[k.count].revents != 0) DrainBell(bed.bell);
  }
  AnnounceSleep(fam, bed.waiter, false);
  StoreRelaxed(Stack(fam).waiters[bed.waiter].posted, 0u);
  return r < 0 ? r : 0;
}

constexpr uint64_t kNapOfEachNs = 200'000, kLongestNapNs = 50'000'000;

// The stack has no waiter left whom peers could wake: looks again and again, and sleeps in between.
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
  for (uint32_t i = 0; i < PSTN_LGRS && i < LoadRelaxed(Stack(fam).hdr.lgrs_hw); i++) {
    uint8_t* lgr = LgrBase(fam.view, i);
    if (lgr == nullptr || LoadAcquire(Stack(fam).lgrs[i].state) == 0) continue;  // [L1]
    pstn_evmap& map = LgrEvmap(lgr, Stack(fam).lgrs[i].side, waiter);
    if (LoadRelaxed(map.summary) == 0) continue;
    uint64_t words = Exchange(map.summary, 0u);
    for (; words != 0; words &= words - 1) Exchange(map.leaf[__builtin_ctzll(words)], 0u);
  }
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
  bool listeners = k.Fill(fds, n);
  if (LoadRelaxed(fam.ctl_fd) >= 0 && !DaemonAlive(fam)) CtlReconnect(fam);
  WireTurn(fam);
  long ready = LookOnce(fam, fds, n, k, true);
  if (ready != 0) return ready;
  if (until.left_ns() == 0) return mask != nullptr ? LetIn(mask) : 0;
  uint32_t interrupts = t_interrupts;
  uint64_t kernel_ns = static_cast<uint64_t>(fam.opt.epoll_kernel_usec) * 1000u,
           last = MonotonicNs();
  auto look = [&] {
    bool ask = k.count != 0 && MonotonicNs() - last >= kernel_ns;
    if (ask) last = MonotonicNs();
    ready = LookAgain(fam, fds, n, k, ask);
    return ready != 0;
  };
  // Held from before it waits, as by the kernel's poll().
  if (held == nullptr) (void)k.calls.Begin(n, [&](size_t i) { return fds[i].fd; });
  if (Spin(fam, look, until)) return ready;
  if (t_interrupts != interrupts) return Last(fam, fds, n, k, -EINTR);
  if (slept != nullptr) *slept = true;

  Bed bed = TakeBed(fam);
  if (bed.waiter == PSTN_NONE)
    return Last(fam, fds, n, k, PollByNaps(fam, fds, n, k, until, mask, interrupts));
  StoreRelaxed(Stack(fam).waiters[bed.waiter].wants_syn, 1u);
  Register(fam, bed.waiter, fds, n,
           k);  // which may bring link groups that this process had not mapped
  MarkWaiter(fam, bed.waiter, PSTN_EV_USED | (listeners ? PSTN_EV_SYN : 0u));
  for (;;) {
    ClearNews(fam, bed.waiter);
    ready = LookAgain(fam, fds, n, k, true);
    if (ready != 0 || until.left_ns() == 0) break;
    if (t_interrupts != interrupts) {
      ready = -EINTR;
      break;
    }
    long r = Sleep(fam, bed, fds, n, k, listeners, until, mask, interrupts);
    CtlDrain(fam);
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

long SockSelect(Family& fam, int n, fd_set* r, fd_set* w, fd_set* x, Deadline until,
                const sigset_t* mask) {
  if (n < 0) return -EINVAL;
  constexpr short kIn =
      POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR | POLLNVAL;  // as the kernel's select
  constexpr short kOut = POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR | POLLNVAL;
  constexpr short kPri = POLLPRI | POLLNVAL;
  auto has = [](const fd_set* s, int fd) {
    return s != nullptr && (reinterpret_cast<const uint64_t*>(s)[fd / 64] >> (fd % 64) & 1u) != 0;
  };
  auto put = [](fd_set* s, int fd, bool on) {
    if (s == nullptr) return;
    uint64_t bit = 1ull << (fd % 64);
    uint64_t& word = reinterpret_cast<uint64_t*>(s)[fd / 64];
    word = on ? word | bit : word & ~bit;
  };
  size_t count = 0;
  for (int fd = 0; fd < n; fd++) count += has(r, fd) || has(w, fd) || has(x, fd) ? 1u : 0u;
  size_t bytes = (count + 1) * sizeof(pollfd);
  pollfd few[kInline];
  pollfd* fds = few;
  if (count > kInline) {
    long m = sys::Call(SYS_mmap, 0L, bytes, static_cast<long>(PROT_READ | PROT_WRITE),
                       static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
    if (m < 0 && m > -4096) return -ENOMEM;
    fds = reinterpret_cast<pollfd*>(m);
  }
  size_t at = 0;
  for (int fd = 0; fd < n; fd++) {
    if (!has(r, fd) && !has(w, fd) && !has(x, fd)) continue;
    int events =
        (has(r, fd) ? POLLIN : 0) | (has(w, fd) ? POLLOUT : 0) | (has(x, fd) ? POLLPRI : 0);
    fds[at++] = {fd, static_cast<short>(events), 0};
  }
  bool slept = false;
  long ready = WireEvents(fam, SockPoll(fam, fds, count, until, mask, nullptr, &slept));
  long result = ready;
  // A number that is closed while select() sleeps is ready for all.
  for (size_t i = 0; i < count && ready >= 0 && !slept; i++) {
    if ((fds[i].revents & POLLNVAL) != 0) result = -EBADF;
  }
  if (result >= 0) {
    result = 0;
    for (size_t i = 0; i < count; i++) {
      int fd = fds[i].fd;
      bool in = has(r, fd) && (fds[i].revents & kIn) != 0;
      bool out = has(w, fd) && (fds[i].revents & kOut) != 0;
      bool pri = has(x, fd) && (fds[i].revents & kPri) != 0;
      put(r, fd, in);
      put(w, fd, out);
      put(x, fd, pri);
      result += (in ? 1 : 0) + (out ? 1 : 0) + (pri ? 1 : 0);
    }
  }
  if (count > kInline) sys::Unmap(fds, bytes);
  return result;
}

}  // namespace postern
