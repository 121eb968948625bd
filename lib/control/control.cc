// SPDX-License-Identifier: Apache-2.0
// control.cc - the process's line to posternd.
//
// posternd is needed to be found, not to be connected: when it is gone, existing connections go on,
// and new ones are the kernel's until it is back. How it is found is in reach.cc.
#include <poll.h>

#include <cerrno>
#include <initializer_list>

#include "base/clock.h"
#include "base/cut_short.h"
#include "base/sys.h"
#include "control/control.h"
#include "control/line.h"
#include "control/posternd.h"
#include "ctl/msg_packet.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"
#include "family/module.h"
#include "family/verbs.h"
#include "state/address_limit.h"

namespace postern {
namespace {

using ctl::Msg;
using ctl::Type;

// The child has no line yet (CtlAfterFork), and a link group that was being taken is asked for
// anew.
void RenewLine(Family&) {}
PSTN_LOCK_ENTRY(ctl_lock, fam.ctl_lock, RenewLine);

constexpr uint32_t kReplyMs = 3000;
// A posternd that lives and does not answer (stopped, or at its limits) may come to at any time. So
// it is asked again, but threads wait for no more than a 25th of their time.
constexpr uint32_t kSilentMs = 50, kSilentMaxMs = 800, kSilentShare = 25;

// A process that steps aside waits for as long as this: what posternd has not taken by then stays
// ours, where it can't be served; and sandboxes allow themselves no descriptor for another line.
constexpr uint64_t kAsideNs = 20'000'000'000;

uint32_t PatienceMs(const Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  return fam.ctl_silent_ms != 0 ? fam.ctl_silent_ms : kReplyMs;
}
uint64_t PatienceNs(const Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  constexpr uint64_t kMsNs = 1'000'000;
  return LoadRelaxed(fam.aside) != 0 ? kAsideNs : PatienceMs(fam) * kMsNs;
}

}  // namespace

void SetPatience(const Family& fam, int line) {
  const uint32_t ms = PatienceMs(fam);
  const timeval tv = {static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
  for (const long which : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)sys::Call(SYS_setsockopt, line, static_cast<long>(SOL_SOCKET), which, &tv, sizeof tv);
}

// It has not answered in time: the next time it gets less, or, being so short, twice as much.
void NoteSilence(Family& fam) {
  const uint32_t ms = fam.ctl_silent_ms;
  fam.ctl_silent_ms = ms == 0 ? kSilentMs : ms < kSilentMaxMs ? 2 * ms : kSilentMaxMs;
}

void RetryLater(Family& fam) {
  constexpr uint64_t kMsNs = 1'000'000;
  const uint64_t pause_ns = fam.ctl_silent_ms * kMsNs * kSilentShare;
  StoreRelaxed(fam.ctl_retry_ns, MonotonicNs() + (pause_ns != 0 ? pause_ns : kRetryNs));
}

namespace {

// Sends one message, with an fd beside it if `fd` >= 0. 0 or -errno.
int SendMsg(Family& fam, const Msg& m, int fd, int flags = 0) PSTN_REQUIRES(fam.ctl_lock) {
  constexpr uint64_t kTakenNs = 1'000'000;
  ctl::Packet packet(m, fd);
  for (const Deadline until = Deadline::AfterNs(PatienceNs(fam));;) {
    long r =
        sys::Call(SYS_sendmsg, fam.ctl_fd, &packet.header, static_cast<long>(flags | MSG_NOSIGNAL));
    // More of its user's descriptors are under way than RLIMIT_NOFILE, which a sandbox makes 1:
    // until they have been taken.
    const bool may_wait = (flags & MSG_DONTWAIT) == 0 && until.left_ns() != 0;
    if (r == -ETOOMANYREFS && may_wait) {
      sys::Nap(kTakenNs);
      continue;
    }
    if (r != -EINTR) return r < 0 ? static_cast<int>(r) : 0;
  }
}

// Receives one message; `fd` becomes what came with it, or -1. 0 or -errno (EPIPE: end). The line
// has a time-out, which each signal begins anew: together they end it, too.
int RecvMsg(Family& fam, Msg& m, int& fd, int flags) PSTN_REQUIRES(fam.ctl_lock) {
  fd = -1;
  for (const Deadline until = Deadline::AfterMs(PatienceMs(fam));;) {
    ctl::Packet packet(m);
    long r = sys::Call(SYS_recvmsg, fam.ctl_fd, &packet.header,
                       static_cast<long>(flags | MSG_CMSG_CLOEXEC));
    if (r == -EINTR && until.left_ns() != 0) continue;
    if (r < 0) return static_cast<int>(r);
    if (r == 0) return -EPIPE;
    fd = packet.TakeFd(sys::Close);
    if (r != static_cast<long>(sizeof m)) return -EPROTO;
    if (fd < 0 && packet.LostFd() && m.status == 0) m.status = EMFILE;
    return 0;
  }
}

}  // namespace

void TakeLgr(Family& fam, uint32_t idx, int fd) {
  if (fd < 0) return;
  const LgrHere at = LgrAt(fam.view, LgrIndex(idx));
  const bool known = at.ref != nullptr && LoadAcquire(at.ref->state) != 0;  // [L1]
  uint8_t* base = known && at.base == nullptr ? MapLgr(fd, &at.ref->id) : nullptr;
  if (base != nullptr && !ModuleLink(fam, *at.ref, fd)) {
    UnmapLgr(base);
    base = nullptr;
  }
  if (base == nullptr) {
    sys::Close(fd);
    return;
  }
  int before = fam.view.lgr_fd[idx];
  SetLgrMapping(fam.view, idx, base, MoveHigh(fam, fd));
  if (before > 0) CloseInternal(fam, before);
  SayChunks(fam.view, idx);
  (void)NoteRoom(Stack(fam), fam.slot);
  // Threads that sleep on listeners have not asked this link group for its SYNs: they could not.
  // The message that would wake them may be taken by another thread, here, before they look.
  StackMap& s = Stack(fam);
  if (at.ref->side != 1) return;
  for (const pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.wants_syn) != 0) PostWaiter(fam.bells, s, s.waiters.IndexOf(w).word());
  }
}

namespace {

// What posternd sends unasked. Takes `fd`.
void TakePushed(Family& fam, const Msg& in, int fd) PSTN_REQUIRES(fam.ctl_lock) {
  if (in.type == Type::kLgr) return TakeLgr(fam, in.a, fd);
  if (in.type == Type::kHeld)
    FetchOr(fam.attend, in.a == PSTN_NONE ? kAttendAgain | kAttendHeld : kAttendHeld);
  if (in.type == Type::kVi) FetchOr(fam.attend, kAttendVi);
  if (fd >= 0) sys::Close(fd);
}

}  // namespace

// What posternd has sent before its end counts: no other process has the link group to give.
void Disconnect(Family& fam) {
  Msg in;
  for (int fd = -1; LoadRelaxed(fam.ctl_fd) >= 0 && RecvMsg(fam, in, fd, MSG_DONTWAIT) == 0;) {
    if (in.seq == 0)
      TakePushed(fam, in, fd);
    else if (fd >= 0)
      sys::Close(fd);
  }
  const int fd = fam.ctl_fd;
  const uint32_t line = FetchAdd(fam.ctl_line, 1u);  // [S7]
  StoreRelaxed(fam.ctl_fd, -1);
  kVerbs.line_lost(fam, line, fd);
  CloseInternal(fam, fd);
  // Where it has died, the next one may be there already, and have made link groups that this
  // process is to serve. It is given some time to come before this process starts one: its keeper
  // may start it anew. One that lives, and has ended the line, is not asked at once.
  if (fam.ctl_silent_ms != 0 || DaemonAlive(fam)) RetryLater(fam);
  const uint64_t spawn_ns = MonotonicNs() + kRetryNs;
  if (fam.spawn_not_before_ns < spawn_ns) fam.spawn_not_before_ns = spawn_ns;
}

namespace {

// An answer that no thread waited for. What it has brought is given back; a link group is of use.
void DropLate(Family& fam, const Msg& in, int fd) PSTN_REQUIRES(fam.ctl_lock) {
  if (in.type == Type::kIntroduce && in.status == 0) return TakeLgr(fam, in.a, fd);
  if (fd >= 0) sys::Close(fd);
  if (in.type != Type::kRegister || in.status != 0) return;
  Msg m;
  m.type = Type::kRelease;
  m.cookie = in.cookie;
  (void)SendMsg(fam, m, -1);
}

uint32_t NextSeq(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  if (++fam.ctl_seq == 0) ++fam.ctl_seq;
  return fam.ctl_seq;
}

// False: nothing came in time.
bool ComesBefore(Family& fam, CutShort* limit) {
  if (limit == nullptr) return true;
  long r = -EINTR;
  do {
    pollfd p = {LoadRelaxed(fam.ctl_fd), POLLIN, 0};
    const timespec ts = limit->Slice(UINT64_MAX);
    r = sys::Call(SYS_ppoll, &p, 1L, &ts, nullptr, 0L);
  } while ((r == -EINTR || r == 0) && MonotonicNs() < limit->end_ns());
  return r > 0;
}

}  // namespace

int Ask(Family& fam, Msg& m, int fd, int* reply_fd, CutShort* limit) {
  CheckMayWait();
  if (LoadRelaxed(fam.ctl_fd) < 0 || InVfork()) return -ENOTCONN;
  m.seq = NextSeq(fam);
  uint32_t seq = m.seq;
  const uint64_t aside_ns = LoadRelaxed(fam.aside) != 0 ? MonotonicNs() + kAsideNs : 0;
  int r = SendMsg(fam, m, fd);
  while (r == 0) {
    Msg in;
    int in_fd = -1;
    if (!ComesBefore(fam, limit)) return -ETIMEDOUT;
    r = RecvMsg(fam, in, in_fd, 0);
    if (r == -EAGAIN && MonotonicNs() < aside_ns && DaemonAlive(fam)) {
      r = 0;
      continue;
    }
    if (r != 0) break;
    if (in.seq == 0) {
      TakePushed(fam, in, in_fd);
      continue;
    }
    if (in.seq == seq) {
      m = in;
      if (reply_fd != nullptr) {
        *reply_fd = in_fd;
      } else if (in_fd >= 0) {
        sys::Close(in_fd);
      }
      return -in.status;
    }
    DropLate(fam, in, in_fd);
  }
  if (r == -ETOOMANYREFS) return r;  // it was not sent, and the line is as it was
  if (r == -EAGAIN) NoteSilence(fam);
  Disconnect(fam);
  return r;
}

void CtlReconnect(Family& fam) {
  if (!fam.attached || (LoadRelaxed(fam.ctl_fd) >= 0 && DaemonAlive(fam))) return;
  if (fam.bells.confined || InVfork())
    return;  // a filter (seccomp) may end the process for socket()
  // While another thread is at it, this one waits for what comes of that: its socket would be the
  // kernel's for good.
  const bool under_way = LoadAcquire(fam.ctl_lock.word) != 0;  // [E6]
  if (!under_way && MonotonicNs() < LoadRelaxed(fam.ctl_retry_ns)) return;
  const LineGuard line(fam);  // the second thread finds it connected
  if (LoadRelaxed(fam.ctl_fd) >= 0 && !DaemonAlive(fam))
    Disconnect(fam), StoreRelaxed(fam.ctl_retry_ns, 0);
  (void)ConnectLocked(fam);
}

int CtlAsk(Family& fam, Msg& m, int fd, int* reply_fd, CutShort* limit) {
  const LineGuard line(fam);
  return ConnectLocked(fam) ? Ask(fam, m, fd, reply_fd, limit) : -ENOTCONN;
}

int CtlTell(Family& fam, const Msg& m, int fd) {
  const LineGuard line(fam);
  if (!ConnectLocked(fam)) return -ENOTCONN;
  const int r = SendMsg(fam, m, fd);
  if (r != -EPIPE && r != -ECONNRESET) return r;
  // The end of a posternd that has been replaced while we were asleep: the next one takes it.
  Disconnect(fam);
  StoreRelaxed(fam.ctl_retry_ns, 0);
  return ConnectLocked(fam) ? SendMsg(fam, m, fd) : -ENOTCONN;
}

void CtlTakeLgr(Family& fam, uint32_t idx, int fd) {
  const LineGuard line(fam);
  TakeLgr(fam, idx, fd);
}

namespace {

// What has come, without a wait. With the line.
void DrainLocked(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  for (;;) {
    if (LoadRelaxed(fam.ctl_fd) < 0) return;
    Msg in;
    int fd = -1;
    const int r = RecvMsg(fam, in, fd, MSG_DONTWAIT);
    if (r == -EAGAIN) return;
    if (r != 0) return Disconnect(fam);
    if (in.seq == 0)
      TakePushed(fam, in, fd);
    else
      DropLate(fam, in, fd);
  }
}

}  // namespace

void CtlDrain(Family& fam) {
  if (LoadRelaxed(fam.ctl_fd) < 0 || InVfork()) return;
  if (!TryLock(fam.ctl_lock)) return;
  DrainLocked(fam);
  CtlLeaveLine(fam);
  FenceAfterLocked();  // [F1]
  kVerbs.wire_errands(fam);
}

bool CtlTryLine(Family& fam) {
  if (LoadRelaxed(fam.ctl_fd) < 0 || InVfork()) return false;
  if (!TryLock(fam.ctl_lock)) return false;
  DrainLocked(fam);  // posternd cuts off a process that does not read its answers
  if (LoadRelaxed(fam.ctl_fd) >= 0) return true;
  CtlLeaveLine(fam);
  return false;
}

void CtlLeaveLine(Family& fam) { Unlock(fam.ctl_lock); }

int CtlPost(Family& fam, Msg& m) {
  m.seq = NextSeq(fam);
  return SendMsg(fam, m, -1, MSG_DONTWAIT);
}

#if defined(PSTN_CHECKS)
namespace {

// Locks in the stack, but for those whose holders may wait for posternd (docs/concurrency.md).
bool ForbidsWaits(const pstn_lock& lock) {
  const StackMap* stack = LockOwnerAt(lock).s;
  if (stack == nullptr || stack->OffOf(&lock) >= stack->layout.bytes) return false;
  const pstn_ep* const ep = stack->eps.At(stack->eps.IndexAt(&lock));
  if (&lock == &stack->hdr.reap_lock) return false;
  return ep == nullptr || &ep->setup_lock != &lock;
}

}  // namespace
#endif

void WatchLocks(Family& fam) {
  CountChecksIn(&Stack(fam).hdr);
#if defined(PSTN_CHECKS)
  g_forbids_waits = ForbidsWaits;
#endif
}

void CtlForked(Family& fam) {
  const pstn_dir* const dir = LoadAcquire(fam.dir);  // [T4]
  fam.ctl_introduced = LoadRelaxed(fam.ctl_fd) >= 0 && dir != nullptr ? dir->id.lo : 0;
  CloseInternal(fam, fam.ctl_fd);  // what sets have of it is the parent's
  StoreRelaxed(fam.ctl_fd, -1);
  FetchAdd(fam.ctl_line, 1u);  // [S7]
  StoreRelaxed(fam.ctl_retry_ns, 0);
}

void CtlLeave(Family& fam) {
  const LineGuard line(fam);
  if (LoadRelaxed(fam.ctl_fd) >= 0) Disconnect(fam);
  fam.ctl_silent_ms = 0;
  StoreRelaxed(fam.ctl_retry_ns, 0);
}

void CtlAfterFork(Family& fam) {
  const LineGuard line(fam);
  (void)ConnectLocked(fam);
}

}  // namespace postern
