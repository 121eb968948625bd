// SPDX-License-Identifier: Apache-2.0
// control.cc - the process's line to posternd.
//
// posternd is needed to be found, not to be connected: when it is gone, existing connections go on,
// and new ones are the kernel's until it is back. Whether it lives is read from the directory,
// whose robust mutex the kernel marks when posternd dies (no system call). After a restart each
// process says hello again, with its link groups and the listeners it holds.
#include <poll.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/cut_short.h"
#include "base/local_lock.h"
#include "base/sys.h"
#include "control/control.h"
#include "control/posternd.h"
#include "ctl/packet.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/verbs.h"

namespace postern {
namespace {

using ctl::Msg;
using ctl::Type;

// The child has no line yet (CtlAfterFork), and a link group that was being taken is asked for
// anew.
void RenewLine() {}
PSTN_LOCK_ENTRY(ctl_lock, g_proc.ctl_lock, RenewLine);

constexpr uint64_t kRetryNs = 200'000'000;  // between attempts to reach a posternd that is gone
constexpr uint64_t kSpawnNs = 1'000'000'000;
constexpr time_t kReplySec = 3;

// The line, to be waited for, and for posternd with it: nobody has a lock that others wait for.
class LineGuard {
 public:
  LineGuard() {
    CheckMayWait();
    Lock(g_proc.ctl_lock);
  }
  ~LineGuard() {
    Unlock(g_proc.ctl_lock);
    FenceAfterLocked();  // [F1] who has found it taken has left an errand before that
    kVerbs.wire_errands();
  }
  LineGuard(const LineGuard&) = delete;
  LineGuard& operator=(const LineGuard&) = delete;
};

// Sends one message, with an fd beside it if `fd` >= 0. 0 or -errno.
int SendMsg(const Msg& m, int fd, int flags = 0) {
  ctl::Packet packet(m, fd);
  for (;;) {
    long r = sys::Call(SYS_sendmsg, g_proc.ctl_fd, &packet.header,
                       static_cast<long>(flags | MSG_NOSIGNAL));
    if (r != -EINTR) return r < 0 ? static_cast<int>(r) : 0;
  }
}

// Receives one message; `fd` becomes what came with it, or -1. 0 or -errno (EPIPE: end).
int RecvMsg(Msg& m, int& fd, int flags) {
  fd = -1;
  for (;;) {
    ctl::Packet packet(m);
    long r = sys::Call(SYS_recvmsg, g_proc.ctl_fd, &packet.header,
                       static_cast<long>(flags | MSG_CMSG_CLOEXEC));
    if (r == -EINTR) continue;
    if (r < 0) return static_cast<int>(r);
    if (r == 0) return -EPIPE;
    fd = packet.TakeFd(sys::Close);
    if (r != static_cast<long>(sizeof m)) return -EPROTO;
    return 0;
  }
}

// The link group that posternd made for us (`idx` in our stack). Takes `fd`.
void TakeLgr(uint32_t idx, int fd) {
  if (fd < 0) return;
  bool known = idx < PSTN_LGRS && LoadAcquire(Stack().lgrs[idx].state) != 0;
  uint8_t* base =
      known && LgrBase(g_proc.view, idx) == nullptr ? MapLgr(fd, &Stack().lgrs[idx].id) : nullptr;
  if (base == nullptr) {
    sys::Close(fd);
    return;
  }
  int before = g_proc.view.lgr_fd[idx];
  SetLgrMapping(g_proc.view, idx, base, MoveHigh(fd));
  if (before > 0) CloseInternal(before);
  // Threads that sleep on listeners have not asked this link group for its SYNs: they could not.
  // The message that would wake them may be taken by another thread, here, before they look.
  pstn_stack& s = Stack();
  uint32_t hw = LoadRelaxed(s.hdr.waiters.hw);
  for (uint32_t w = 1; s.lgrs[idx].side == 1 && w < hw && w < PSTN_WAITERS; w++) {
    if (LoadRelaxed(s.waiters[w].wants_syn) != 0) PostWaiter(g_proc.bells, s, w);
  }
}

// What posternd sends unasked. Takes `fd`.
void TakePushed(const Msg& in, int fd) {
  if (in.type == Type::kLgr) return TakeLgr(in.a, fd);
  if (in.type == Type::kHeld)
    FetchOr(g_proc.attend, in.a == PSTN_NONE ? kAttendAgain | kAttendHeld : kAttendHeld);
  if (in.type == Type::kVi) FetchOr(g_proc.attend, kAttendVi);
  if (fd >= 0) sys::Close(fd);
}

// What posternd has sent before its end counts: a link group may be had from nobody else.
void Disconnect() {
  Msg in;
  for (int fd = -1; LoadRelaxed(g_proc.ctl_fd) >= 0 && RecvMsg(in, fd, MSG_DONTWAIT) == 0;) {
    if (in.seq == 0)
      TakePushed(in, fd);
    else if (fd >= 0)
      sys::Close(fd);
  }
  const int fd = g_proc.ctl_fd;
  const uint32_t line = FetchAdd(g_proc.ctl_line, 1u);
  StoreRelaxed(g_proc.ctl_fd, -1);
  kVerbs.line_lost(line, fd);
  CloseInternal(fd);
  StoreRelaxed(g_proc.ctl_retry_ns, MonotonicNs() + kRetryNs);
}

// An answer that nobody waited for. What it has brought is given back; a link group is of use.
void DropLate(const Msg& in, int fd) {
  if (in.type == Type::kIntroduce && in.status == 0) return TakeLgr(in.a, fd);
  if (fd >= 0) sys::Close(fd);
  if (in.type != Type::kRegister || in.status != 0) return;
  Msg m;
  m.type = Type::kRelease;
  m.cookie = in.cookie;
  (void)SendMsg(m, -1);
}

uint32_t NextSeq() {
  if (++g_proc.ctl_seq == 0) ++g_proc.ctl_seq;
  return g_proc.ctl_seq;
}

// False: nothing came in time.
bool ComesBefore(CutShort* limit) {
  if (limit == nullptr) return true;
  long r = -EINTR;
  do {
    pollfd p = {LoadRelaxed(g_proc.ctl_fd), POLLIN, 0};
    const timespec ts = limit->Slice(UINT64_MAX);
    r = sys::Call(SYS_ppoll, &p, 1L, &ts, nullptr, 0L);
  } while ((r == -EINTR || r == 0) && MonotonicNs() < limit->end_ns());
  return r > 0;
}

// Sends a request and waits for its reply; what is pushed meanwhile is taken. -ETIMEDOUT: no answer
// before `limit`, and the line is kept; a posternd that is silent for kReplySec is given up.
int Ask(Msg& m, int fd, int* reply_fd, CutShort* limit = nullptr) {
  CheckMayWait();
  if (LoadRelaxed(g_proc.ctl_fd) < 0) return -ENOTCONN;
  m.seq = NextSeq();
  uint32_t seq = m.seq;
  int r = SendMsg(m, fd);
  while (r == 0) {
    Msg in;
    int in_fd = -1;
    if (!ComesBefore(limit)) return -ETIMEDOUT;
    r = RecvMsg(in, in_fd, 0);
    if (r != 0) break;
    if (in.seq == 0) {
      TakePushed(in, in_fd);
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
    DropLate(in, in_fd);
  }
  Disconnect();
  return r;
}

int ListenLocked(pstn_ep& ep, int fd) {
  Msg m;
  m.type = Type::kListen;
  m.a = EpIdx(Stack(), ep);
  m.b = ep.gen;
  m.c = LoadRelaxed(ep.backlog);
  return Ask(m, fd, nullptr);
}

// What posternd must know again after it was away: our link groups and listeners.
void Reintroduce() {
  pstn_stack& s = Stack();
  uint32_t hw = LoadRelaxed(s.hdr.lgrs_hw);
  for (uint32_t i = 0; i < hw && i < PSTN_LGRS && LoadRelaxed(g_proc.ctl_fd) >= 0; i++) {
    if (LgrBase(g_proc.view, i) == nullptr || LoadRelaxed(s.lgrs[i].state) != 1) continue;
    Msg m;
    m.type = Type::kAddLgr;
    m.a = i;
    m.uuid = s.lgrs[i].peer;
    (void)Ask(m, g_proc.view.lgr_fd[i], nullptr);
  }
  const LineAsk ask = [](Msg& m, int fd, int* reply) { return Ask(m, fd, reply); };
  const bool wired = kVerbs.wire_reintroduce(ask);
  const pstn_slot& slot = s.slots[g_proc.slot];
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; c++) {
    uint32_t chunk = LoadRelaxed(slot.chunk[c]);
    if (chunk >= PSTN_FDCHUNKS) continue;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS && LoadRelaxed(g_proc.ctl_fd) >= 0; i++) {
      int fd = static_cast<int>(c * PSTN_FDCHUNK_FDS + i);
      if (FdEntry(fd) == 0) continue;
      const Call call(fd);
      pstn_ep* ep = call.ep();
      if (wired && ep != nullptr) kVerbs.wire_refilter(ask, fd, *ep);
      if (ep == nullptr || LoadRelaxed(ep->state) != PSTN_EP_LISTEN ||
          (LoadRelaxed(ep->flags) & PSTN_EPF_EXPORTED) != 0)
        continue;
      (void)ListenLocked(*ep, fd);
    }
  }
}

// Starts posternd as the wrapper does, when nobody answers: the process that notices may be the
// only one that is left to do it. Two forks, so that the program has no child that it does not
// know; plain system calls, so that no handler of the program runs.
void Spawn() {
  static uint64_t not_before_ns = 0;
  if (g_proc.daemon_path[0] == 0 || g_proc.opt.daemon_spawn == 0 || MonotonicNs() < not_before_ns)
    return;
  not_before_ns = MonotonicNs() + kSpawnNs;
  long child = sys::Call(SYS_clone, 0L, 0L, 0L, 0L, 0L);  // exit signal 0: no SIGCHLD
  if (child < 0) return;
  if (child == 0) {
    (void)sys::Call(SYS_setsid);
    if (sys::Call(SYS_clone, 0L, 0L, 0L, 0L, 0L) == 0) {
      char runtime_dir[sizeof g_proc.socket_path];
      memcpy(runtime_dir, g_proc.socket_path, sizeof runtime_dir);
      char* slash = strrchr(runtime_dir, '/');
      if (slash != nullptr) *slash = 0;
      char flag[] = "--runtime-dir";
      char* argv[] = {g_proc.daemon_path, flag, runtime_dir, nullptr};
      char* envp[] = {nullptr};
      uint64_t none = 0;
      (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), &none, nullptr, 8L);
      (void)sys::Call(SYS_close_range, 3L, ~0u, 0L);
      (void)sys::Call(SYS_execve, g_proc.daemon_path, &argv[0], &envp[0]);
      sys::Call(SYS_exit_group, 127L);
    }
    sys::Call(SYS_exit_group, 0L);
  }
  int status = 0;
  while (sys::Call(SYS_wait4, child, &status, 0x80000000L /* __WCLONE */, nullptr) == -EINTR) {
  }
}

}  // namespace

long CtlReach(int fd, uint32_t uid) {
  sockaddr_un a = {};
  a.sun_family = AF_UNIX;
  memcpy(a.sun_path, g_proc.socket_path, sizeof a.sun_path);
  long r = sys::Call(SYS_connect, fd, &a, sizeof a);
  if (r != -EACCES && r != -EPERM && r != -ENOENT) return r;
  socklen_t len = ctl::AbstractName(g_proc.socket_path, a);
  if (sys::Call(SYS_connect, fd, &a, static_cast<long>(len)) < 0) return r;
  ucred peer = {};
  socklen_t size = sizeof peer;
  r = sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_PEERCRED),
                &peer, &size);
  return r < 0 || peer.uid == 0 || peer.uid == uid ? r : -EACCES;
}

namespace {

// A stack whose first process finds a broker has all its doorbells from there; one that was there
// before can't be rung from other network namespaces, and does without peers there.
void TakeWideSender(const pstn_dir& dir) {
  pstn_stack_hdr& hdr = Stack().hdr;
  const bool first = LoadRelaxed(hdr.waiters.hw) <= PSTN_EVMAP_WIRE + 1;
  if (g_proc.bells.wide_sender >= 0 || (LoadRelaxed(dir.host.flags) & PSTN_HOST_BELLS) == 0 ||
      (!first && LoadRelaxed(hdr.wide_bells) == 0))
    return;
  Msg m;
  m.type = Type::kBell;
  m.a = PSTN_NONE;
  int fd = -1;
  if (Ask(m, -1, &fd) != 0 || fd < 0) return;
  StoreRelaxed(g_proc.bells.wide_sender, MoveHigh(fd));
  StoreRelaxed(hdr.wide_bells, 1u);
}

bool ConnectLocked() {
  if (LoadRelaxed(g_proc.ctl_fd) >= 0) return true;
  if (MonotonicNs() < LoadRelaxed(g_proc.ctl_retry_ns) || g_proc.socket_path[0] == 0) return false;
  CheckMayWait();
  int fd = sys::Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  fd = MoveHigh(fd);
  timeval tv = {kReplySec, 0};
  (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_RCVTIMEO),
                  &tv, sizeof tv);
  (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_SNDTIMEO),
                  &tv, sizeof tv);
  long r = CtlReach(fd, Stack().hdr.uid);
  if (r < 0) {
    StoreRelaxed(Stack().slots[g_proc.slot].lost_ns, MonotonicNs());
    CloseInternal(fd);
    StoreRelaxed(g_proc.ctl_retry_ns, MonotonicNs() + kRetryNs);
    if (r == -ECONNREFUSED || r == -ENOENT) Spawn();
    return false;
  }
  StoreRelaxed(g_proc.ctl_fd, fd);
  Msg m;
  m.type = Type::kHello;
  m.uuid = Stack().hdr.id;
  m.a = g_proc.slot;
  int dir_fd = -1;
  if (Ask(m, g_proc.stack_fd, &dir_fd) != 0 || dir_fd < 0) {
    Disconnect();
    return false;
  }
  const pstn_dir* dir = MapDir(dir_fd);
  sys::Close(dir_fd);
  if (dir == nullptr) {
    Disconnect();
    return false;
  }
  // The directory before stays mapped: another thread may be reading it. A restart of posternd
  // is rare enough for its 1 MiB.
  if (g_proc.dir != nullptr) Count(Stack().hdr, kCounterDaemonReconnects);
  StoreRelease(g_proc.dir, dir);
  TakeWideSender(*dir);
  Reintroduce();
  return LoadRelaxed(g_proc.ctl_fd) >= 0;
}

}  // namespace

bool DaemonAlive() {
  const pstn_dir* d = LoadAcquire(g_proc.dir);
  if (d == nullptr) return false;
  uint32_t word = LoadAcquire(*reinterpret_cast<const uint32_t*>(d->alive_mutex));
  return word != 0 && (word & FUTEX_OWNER_DIED) == 0;
}

void CtlReconnect() {
  if (!g_proc.attached || (LoadRelaxed(g_proc.ctl_fd) >= 0 && DaemonAlive())) return;
  if (MonotonicNs() < LoadRelaxed(g_proc.ctl_retry_ns)) return;
  const LineGuard line;  // who comes second finds it connected
  if (LoadRelaxed(g_proc.ctl_fd) >= 0 && !DaemonAlive())
    Disconnect(), StoreRelaxed(g_proc.ctl_retry_ns, 0);
  (void)ConnectLocked();
}

int CtlAsk(Msg& m, int fd, int* reply_fd, CutShort* limit) {
  const LineGuard line;
  return ConnectLocked() ? Ask(m, fd, reply_fd, limit) : -ENOTCONN;
}

int CtlTell(const Msg& m, int fd) {
  const LineGuard line;
  if (!ConnectLocked()) return -ENOTCONN;
  const int r = SendMsg(m, fd);
  if (r != -EPIPE && r != -ECONNRESET) return r;
  // The end of a posternd that has been replaced while we were asleep: the next one takes it.
  Disconnect();
  StoreRelaxed(g_proc.ctl_retry_ns, 0);
  return ConnectLocked() ? SendMsg(m, fd) : -ENOTCONN;
}

void CtlTakeLgr(uint32_t idx, int fd) {
  const LineGuard line;
  TakeLgr(idx, fd);
}

int CtlListen(pstn_ep& ep, int fd) {
  const LineGuard line;
  if (!ConnectLocked()) return -ENOTCONN;
  return ListenLocked(ep, fd);
}

int CtlUnlisten(pstn_ep& ep) {
  const LineGuard line;
  if (LoadRelaxed(g_proc.ctl_fd) < 0) return -ENOTCONN;
  Msg m;
  m.type = Type::kUnlisten;
  m.a = EpIdx(Stack(), ep);
  m.b = ep.gen;
  return Ask(m, -1, nullptr);
}

namespace {

int ExportWith(uint32_t a, uint32_t b, uint32_t c, int fd) {
  constexpr int kTries = 20;
  constexpr timespec kPause = {0, 100'000'000};
  int r = -ENOTCONN;
  // A posternd that is gone is started again (ConnectLocked), and a keeper that was just leaving.
  for (int i = 0; i < kTries && (r == -ENOTCONN || r == -EIO); i++) {
    if (i != 0) (void)sys::Call(SYS_nanosleep, &kPause, nullptr);
    const LineGuard line;
    if (LoadRelaxed(g_proc.ctl_fd) >= 0 && !DaemonAlive()) Disconnect();
    StoreRelaxed(g_proc.ctl_retry_ns, 0);
    if (!ConnectLocked()) continue;
    Msg m;
    m.type = Type::kExport;
    m.a = a;
    m.b = b;
    m.c = c;
    r = Ask(m, fd, nullptr);
    // No answer in time, on a busy machine: what was asked for may be done by now, and asking again
    // does no harm.
    if (r == -EPIPE || r == -ECONNRESET || r == -EAGAIN) r = -ENOTCONN;
  }
  return r;
}

}  // namespace

int CtlExport(const pstn_ep& ep, int fd) {
  return ExportWith(EpIdx(Stack(), ep), LoadRelaxed(ep.gen), 0, fd);
}
int CtlExportOf(uint32_t pid, int target, int fd) {
  return ExportWith(PSTN_NONE, pid, static_cast<uint32_t>(target), fd);
}

// From a handler, too (of SIGCHLD): not while another call is under way.
void CtlReap(uint32_t slot, uint32_t pid) {
  if (!TryLock(g_proc.ctl_lock)) return;
  if (g_proc.ctl_fd >= 0) {
    Msg m;
    m.type = Type::kReap;
    m.a = slot;
    m.b = pid;
    (void)Ask(m, -1, nullptr);
  }
  Unlock(g_proc.ctl_lock);
}

int CtlIntroduce(const pstn_uuid& peer, uint32_t known, uint32_t* lgr_idx) {
  const LineGuard line;
  if (!ConnectLocked()) return -ENOTCONN;
  Msg m;
  m.type = Type::kIntroduce;
  m.uuid = peer;
  m.a = known;
  int fd = -1;
  int r = Ask(m, -1, &fd);
  if (r == 0 && m.a >= PSTN_LGRS) r = -EPROTO;
  if (r != 0) {
    if (fd >= 0) sys::Close(fd);
    return r;
  }
  Count(Stack().hdr, kCounterIntroductions);
  TakeLgr(m.a, fd);
  *lgr_idx = m.a;
  return LgrBase(g_proc.view, m.a) != nullptr ? 0 : -ENOMEM;
}

namespace {

// What has come, without a wait. With the line.
void DrainLocked() {
  for (;;) {
    if (LoadRelaxed(g_proc.ctl_fd) < 0) return;
    Msg in;
    int fd = -1;
    const int r = RecvMsg(in, fd, MSG_DONTWAIT);
    if (r == -EAGAIN) return;
    if (r != 0) return Disconnect();
    if (in.seq == 0)
      TakePushed(in, fd);
    else
      DropLate(in, fd);
  }
}

}  // namespace

void CtlDrain() {
  if (LoadRelaxed(g_proc.ctl_fd) < 0 || !TryLock(g_proc.ctl_lock)) return;
  DrainLocked();
  CtlLeaveLine();
  FenceAfterLocked();
  kVerbs.wire_errands();
}

bool CtlTryLine() {
  if (LoadRelaxed(g_proc.ctl_fd) < 0 || !TryLock(g_proc.ctl_lock)) return false;
  DrainLocked();  // posternd cuts off who does not read its answers
  if (LoadRelaxed(g_proc.ctl_fd) >= 0) return true;
  CtlLeaveLine();
  return false;
}

void CtlLeaveLine() { Unlock(g_proc.ctl_lock); }

int CtlPost(Msg& m) {
  m.seq = NextSeq();
  return SendMsg(m, -1, MSG_DONTWAIT);
}

uint8_t* MapLgrOf(uint32_t idx) {
  uint8_t* base = LgrBase(g_proc.view, idx);
  if (base != nullptr || idx >= PSTN_LGRS) return base;
  CtlDrain();
  base = LgrBase(g_proc.view, idx);
  // Under the engine's lock nobody asks: Engine::Poll() comes back when it is here (Reaches).
  if (base != nullptr || HoldsEngine()) return base;
  const LineGuard line;
  base = LgrBase(g_proc.view, idx);
  if (base != nullptr || !ConnectLocked()) return base;
  Msg m;
  m.type = Type::kGetLgr;
  m.a = idx;
  int fd = -1;
  if (Ask(m, -1, &fd) == 0) TakeLgr(idx, fd);
  return LgrBase(g_proc.view, idx);
}

#if defined(PSTN_CHECKS)
namespace {

// Locks in the stack, but for those whose holders may wait for posternd (docs/concurrency.md).
bool ForbidsWaits(const pstn_lock& lock) {
  const auto at = reinterpret_cast<uintptr_t>(&lock), s = reinterpret_cast<uintptr_t>(&Stack());
  if (at < s || at - s >= sizeof(pstn_stack)) return false;
  const uintptr_t eps = reinterpret_cast<uintptr_t>(&Stack().eps[0]);
  return at < eps || at - eps >= sizeof Stack().eps ||
         (at - eps) % sizeof(pstn_ep) != offsetof(pstn_ep, setup_lock);
}

}  // namespace
#endif

void WatchLocks() {
  g_checks_failed = &Stack().hdr.counters[kCounterChecksFailed];
#if defined(PSTN_CHECKS)
  g_forbids_waits = ForbidsWaits;
#endif
}

void CtlForked() {
  CloseInternal(g_proc.ctl_fd);  // what sets have of it is the parent's
  StoreRelaxed(g_proc.ctl_fd, -1);
  FetchAdd(g_proc.ctl_line, 1u);
  StoreRelaxed(g_proc.ctl_retry_ns, 0);
}

void CtlAfterFork() {
  const LineGuard line;
  (void)ConnectLocked();
}

}  // namespace postern
