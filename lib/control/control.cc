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
#include <initializer_list>
#include <utility>

#include "base/clock.h"
#include "base/cut_short.h"
#include "base/sys.h"
#include "control/control.h"
#include "control/posternd.h"
#include "ctl/msg_packet.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"
#include "family/verbs.h"

namespace postern {
namespace {

using ctl::Msg;
using ctl::Type;

// The child has no line yet (CtlAfterFork), and a link group that was being taken is asked for
// anew.
void RenewLine(Family&) {}
PSTN_LOCK_ENTRY(ctl_lock, fam.ctl_lock, RenewLine);

constexpr uint64_t kRetryNs = 200'000'000;  // between attempts to reach a posternd that is gone
constexpr uint64_t kSpawnNs = 1'000'000'000;
constexpr uint32_t kReplyMs = 3000;
// A posternd that lives and does not answer (stopped, or at its limits) may come to at any time. So
// it is asked again, but threads wait for no more than a 25th of their time.
constexpr uint32_t kSilentMs = 50, kSilentMaxMs = 800, kSilentShare = 25;

// The line, to be waited for, and for posternd with it: nobody has a lock that others wait for.
class PSTN_SCOPED_CAPABILITY LineGuard {
 public:
  explicit LineGuard(Family& fam) PSTN_ACQUIRE(fam.ctl_lock) : fam_(fam) {
    CheckMayWait();
    Lock(fam.ctl_lock);
  }
  ~LineGuard() PSTN_RELEASE() {
    Unlock(fam_.ctl_lock);
    FenceAfterLocked();  // [F1] a thread that has found it taken has left an errand before that
    kVerbs.wire_errands(fam_);
  }
  LineGuard(const LineGuard&) = delete;
  LineGuard& operator=(const LineGuard&) = delete;

 private:
  Family& fam_;
};

uint32_t PatienceMs(const Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  return fam.ctl_silent_ms != 0 ? fam.ctl_silent_ms : kReplyMs;
}

void SetPatience(const Family& fam, int line) PSTN_REQUIRES(fam.ctl_lock) {
  const uint32_t ms = PatienceMs(fam);
  const timeval tv = {static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
  for (const long which : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)sys::Call(SYS_setsockopt, line, static_cast<long>(SOL_SOCKET), which, &tv, sizeof tv);
}

// It has not answered in time: the next time it gets less, or, being so short, twice as much.
void NoteSilence(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  const uint32_t ms = fam.ctl_silent_ms;
  fam.ctl_silent_ms = ms == 0 ? kSilentMs : ms < kSilentMaxMs ? 2 * ms : kSilentMaxMs;
}

void RetryLater(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  constexpr uint64_t kMsNs = 1'000'000;
  const uint64_t pause_ns = fam.ctl_silent_ms * kMsNs * kSilentShare;
  StoreRelaxed(fam.ctl_retry_ns, MonotonicNs() + (pause_ns != 0 ? pause_ns : kRetryNs));
}

// Sends one message, with an fd beside it if `fd` >= 0. 0 or -errno.
int SendMsg(Family& fam, const Msg& m, int fd, int flags = 0) PSTN_REQUIRES(fam.ctl_lock) {
  ctl::Packet packet(m, fd);
  for (;;) {
    long r =
        sys::Call(SYS_sendmsg, fam.ctl_fd, &packet.header, static_cast<long>(flags | MSG_NOSIGNAL));
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
    return 0;
  }
}

// The link group that posternd made for us (`idx` in our stack). Takes `fd`.
void TakeLgr(Family& fam, uint32_t idx, int fd) PSTN_REQUIRES(fam.ctl_lock) {
  if (fd < 0) return;
  const LgrHere at = LgrAt(fam.view, LgrIndex(idx));
  const bool known = at.ref != nullptr && LoadAcquire(at.ref->state) != 0;  // [L1]
  uint8_t* base = known && at.base == nullptr ? MapLgr(fd, &at.ref->id) : nullptr;
  if (base == nullptr) {
    sys::Close(fd);
    return;
  }
  int before = fam.view.lgr_fd[idx];
  SetLgrMapping(fam.view, idx, base, MoveHigh(fam, fd));
  if (before > 0) CloseInternal(fam, before);
  // Threads that sleep on listeners have not asked this link group for its SYNs: they could not.
  // The message that would wake them may be taken by another thread, here, before they look.
  StackMap& s = Stack(fam);
  if (at.ref->side != 1) return;
  for (const pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.wants_syn) != 0) PostWaiter(fam.bells, s, s.waiters.IndexOf(w).word());
  }
}

// What posternd sends unasked. Takes `fd`.
void TakePushed(Family& fam, const Msg& in, int fd) PSTN_REQUIRES(fam.ctl_lock) {
  if (in.type == Type::kLgr) return TakeLgr(fam, in.a, fd);
  if (in.type == Type::kHeld)
    FetchOr(fam.attend, in.a == PSTN_NONE ? kAttendAgain | kAttendHeld : kAttendHeld);
  if (in.type == Type::kVi) FetchOr(fam.attend, kAttendVi);
  if (fd >= 0) sys::Close(fd);
}

// What posternd has sent before its end counts: a link group may be had from nobody else.
void Disconnect(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
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
  RetryLater(fam);
}

// An answer that nobody waited for. What it has brought is given back; a link group is of use.
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

// Sends a request and waits for its reply; what is pushed meanwhile is taken. -ETIMEDOUT: no answer
// before `limit`, and the line is kept; a posternd that is silent for as long as the line waits is
// given up.
int Ask(Family& fam, Msg& m, int fd, int* reply_fd, CutShort* limit = nullptr)
    PSTN_REQUIRES(fam.ctl_lock) {
  CheckMayWait();
  if (LoadRelaxed(fam.ctl_fd) < 0) return -ENOTCONN;
  m.seq = NextSeq(fam);
  uint32_t seq = m.seq;
  int r = SendMsg(fam, m, fd);
  while (r == 0) {
    Msg in;
    int in_fd = -1;
    if (!ComesBefore(fam, limit)) return -ETIMEDOUT;
    r = RecvMsg(fam, in, in_fd, 0);
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
  if (r == -EAGAIN) NoteSilence(fam);
  Disconnect(fam);
  return r;
}

int ListenLocked(Family& fam, pstn_ep& ep, int fd) PSTN_REQUIRES(fam.ctl_lock) {
  Msg m;
  m.type = Type::kListen;
  m.a = EpIdx(Stack(fam), ep);
  m.b = ep.gen;
  m.c = LoadRelaxed(ep.backlog);
  return Ask(fam, m, fd, nullptr);
}

// What posternd must know again after it was away: our link groups and listeners.
void Reintroduce(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  StackMap& s = Stack(fam);
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadRelaxed(fam.ctl_fd) < 0) break;
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    if (LgrBase(fam.view, i) == nullptr || LoadRelaxed(ref.state) != 1) continue;
    Msg m;
    m.type = Type::kAddLgr;
    m.a = i;
    m.uuid = ref.peer;
    (void)Ask(fam, m, fam.view.lgr_fd[i], nullptr);
  }
  const LineAsk ask = [](Family& f, Msg& m, int fd, int* reply) {
    AssertHeld(f.ctl_lock);
    return Ask(f, m, fd, reply);
  };
  const bool wired = kVerbs.wire_reintroduce(fam, ask);
  const pstn_slot& slot = s.slots.Own(ProcIndex(fam.slot));
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; c++) {
    if (s.fdchunks.At(ChunkIndex(LoadRelaxed(slot.chunk[c]))) == nullptr) continue;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS && LoadRelaxed(fam.ctl_fd) >= 0; i++) {
      int fd = static_cast<int>(c * PSTN_FDCHUNK_FDS + i);
      if (FdEntry(fam, fd) == 0) continue;
      const Call call(fam, fd);
      pstn_ep* ep = call.ep();
      if (wired && ep != nullptr) kVerbs.wire_refilter(fam, ask, fd, *ep);
      if (ep == nullptr || LoadRelaxed(ep->state) != PSTN_EP_LISTEN ||
          (LoadRelaxed(ep->flags) & PSTN_EPF_EXPORTED) != 0)
        continue;
      (void)ListenLocked(fam, *ep, fd);
    }
  }
}

// Starts posternd as the wrapper does, when nobody answers: the process that notices may be the
// only one that is left to do it. Two forks, so that the program has no child that it does not
// know; plain system calls, so that no handler of the program runs.
void Spawn(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  if (fam.daemon_path[0] == 0 || fam.opt.daemon_spawn == 0 ||
      MonotonicNs() < fam.spawn_not_before_ns)
    return;
  fam.spawn_not_before_ns = MonotonicNs() + kSpawnNs;
  long child = sys::Call(SYS_clone, 0L, 0L, 0L, 0L, 0L);  // exit signal 0: no SIGCHLD
  if (child < 0) return;
  if (child == 0) {
    (void)sys::Call(SYS_setsid);
    if (sys::Call(SYS_clone, 0L, 0L, 0L, 0L, 0L) == 0) {
      char runtime_dir[sizeof fam.socket_path];
      memcpy(runtime_dir, fam.socket_path, sizeof runtime_dir);
      char* slash = strrchr(runtime_dir, '/');
      if (slash != nullptr) *slash = 0;
      char flag[] = "--runtime-dir";
      char* argv[] = {fam.daemon_path, flag, runtime_dir, nullptr};
      char* envp[] = {nullptr};
      uint64_t none = 0;
      (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), &none, nullptr, 8L);
      (void)sys::Call(SYS_close_range, 3L, ~0u, 0L);
      (void)sys::Call(SYS_execve, fam.daemon_path, &argv[0], &envp[0]);
      sys::Call(SYS_exit_group, 127L);
    }
    sys::Call(SYS_exit_group, 0L);
  }
  int status = 0;
  while (sys::Call(SYS_wait4, child, &status, 0x80000000L /* __WCLONE */, nullptr) == -EINTR) {
  }
}

}  // namespace

long CtlReach(Family& fam, int fd, uint32_t uid) {
  sockaddr_un a = {};
  a.sun_family = AF_UNIX;
  memcpy(a.sun_path, fam.socket_path, sizeof a.sun_path);
  long r = sys::Call(SYS_connect, fd, &a, sizeof a);
  if (r != -EACCES && r != -EPERM && r != -ENOENT) return r;
  socklen_t len = ctl::AbstractName(fam.socket_path, a);
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
void TakeWideSender(Family& fam, const pstn_dir& dir) PSTN_REQUIRES(fam.ctl_lock) {
  pstn_stack_hdr& hdr = Stack(fam).hdr;
  const bool first = LoadRelaxed(hdr.waiters.hw) <= PSTN_EVMAP_WIRE + 1;
  if (fam.bells.wide_sender >= 0 || (LoadRelaxed(dir.host.flags) & PSTN_HOST_BELLS) == 0 ||
      (!first && LoadRelaxed(hdr.wide_bells) == 0))
    return;
  Msg m;
  m.type = Type::kBell;
  m.a = PSTN_NONE;
  int fd = -1;
  if (Ask(fam, m, -1, &fd) != 0 || fd < 0) return;
  StoreRelaxed(fam.bells.wide_sender, MoveHigh(fam, fd));
  StoreRelaxed(hdr.wide_bells, 1u);
}

bool ConnectLocked(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  if (LoadRelaxed(fam.ctl_fd) >= 0) return true;
  if (MonotonicNs() < LoadRelaxed(fam.ctl_retry_ns) || fam.socket_path[0] == 0) return false;
  CheckMayWait();
  int fd = sys::Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  fd = MoveHigh(fam, fd);
  SetPatience(fam, fd);
  long r = CtlReach(fam, fd, Stack(fam).hdr.uid);
  if (r < 0) {
    StoreRelaxed(Stack(fam).slots.Own(ProcIndex(fam.slot)).lost_ns, MonotonicNs());
    CloseInternal(fam, fd);
    if (r == -EAGAIN) {  // its queue of connecting processes is full
      NoteSilence(fam);
    } else {
      fam.ctl_silent_ms = 0;  // it is gone, and the next one has not been silent
    }
    RetryLater(fam);
    if (r == -ECONNREFUSED || r == -ENOENT) Spawn(fam);
    return false;
  }
  StoreRelaxed(fam.ctl_fd, fd);
  Msg m;
  m.type = Type::kHello;
  m.uuid = Stack(fam).hdr.id;
  m.a = fam.slot;
  int dir_fd = -1;
  if (Ask(fam, m, fam.stack_fd, &dir_fd) != 0 || dir_fd < 0) {
    Disconnect(fam);
    return false;
  }
  if (std::exchange(fam.ctl_silent_ms, 0u) != 0) SetPatience(fam, fd);
  const pstn_dir* dir = MapDir(dir_fd);
  sys::Close(dir_fd);
  if (dir == nullptr) {
    Disconnect(fam);
    return false;
  }
  // The directory before stays mapped: another thread may be reading it. A restart of posternd
  // is rare enough for its 1 MiB.
  if (fam.dir != nullptr) Count(Stack(fam).hdr, kCounterDaemonReconnects);
  StoreRelease(fam.dir, dir);  // [T4]
  TakeWideSender(fam, *dir);
  Reintroduce(fam);
  return LoadRelaxed(fam.ctl_fd) >= 0;
}

}  // namespace

bool DaemonAlive(Family& fam) {
  const pstn_dir* d = LoadAcquire(fam.dir);  // [T4]
  if (d == nullptr) return false;
  uint32_t word = LoadAcquire(*reinterpret_cast<const uint32_t*>(d->alive_mutex));  // [T6]
  return word != 0 && (word & FUTEX_OWNER_DIED) == 0;
}

void CtlReconnect(Family& fam) {
  if (!fam.attached || (LoadRelaxed(fam.ctl_fd) >= 0 && DaemonAlive(fam))) return;
  if (MonotonicNs() < LoadRelaxed(fam.ctl_retry_ns)) return;
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

int CtlListen(Family& fam, pstn_ep& ep, int fd) {
  const LineGuard line(fam);
  if (!ConnectLocked(fam)) return -ENOTCONN;
  return ListenLocked(fam, ep, fd);
}

int CtlUnlisten(Family& fam, pstn_ep& ep) {
  const LineGuard line(fam);
  if (LoadRelaxed(fam.ctl_fd) < 0) return -ENOTCONN;
  Msg m;
  m.type = Type::kUnlisten;
  m.a = EpIdx(Stack(fam), ep);
  m.b = ep.gen;
  return Ask(fam, m, -1, nullptr);
}

namespace {

int ExportWith(Family& fam, uint32_t a, uint32_t b, uint32_t c, int fd) {
  constexpr int kTries = 20;
  constexpr timespec kPause = {0, 100'000'000};
  int r = -ENOTCONN;
  // A posternd that is gone is started again (ConnectLocked), and a keeper that was just leaving.
  for (int i = 0; i < kTries && (r == -ENOTCONN || r == -EIO); i++) {
    if (i != 0) (void)sys::Call(SYS_nanosleep, &kPause, nullptr);
    const LineGuard line(fam);
    if (LoadRelaxed(fam.ctl_fd) >= 0 && !DaemonAlive(fam)) Disconnect(fam);
    StoreRelaxed(fam.ctl_retry_ns, 0);
    if (!ConnectLocked(fam)) continue;
    Msg m;
    m.type = Type::kExport;
    m.a = a;
    m.b = b;
    m.c = c;
    r = Ask(fam, m, fd, nullptr);
    // No answer in time, on a busy machine: what was asked for may be done by now, and asking again
    // does no harm.
    if (r == -EPIPE || r == -ECONNRESET || r == -EAGAIN) r = -ENOTCONN;
  }
  return r;
}

}  // namespace

int CtlExport(Family& fam, const pstn_ep& ep, int fd) {
  return ExportWith(fam, EpIdx(Stack(fam), ep), LoadRelaxed(ep.gen), 0, fd);
}
int CtlExportOf(Family& fam, uint32_t pid, int target, int fd) {
  return ExportWith(fam, PSTN_NONE, pid, static_cast<uint32_t>(target), fd);
}

// From a handler, too (of SIGCHLD): not while another call is under way.
void CtlReap(Family& fam, uint32_t slot, uint32_t pid) {
  if (!TryLock(fam.ctl_lock)) return;
  if (fam.ctl_fd >= 0) {
    Msg m;
    m.type = Type::kReap;
    m.a = slot;
    m.b = pid;
    (void)Ask(fam, m, -1, nullptr);
  }
  Unlock(fam.ctl_lock);
}

int CtlIntroduce(Family& fam, const pstn_uuid& peer, uint32_t known, uint32_t* lgr_idx) {
  const LineGuard line(fam);
  if (!ConnectLocked(fam)) return -ENOTCONN;
  Msg m;
  m.type = Type::kIntroduce;
  m.uuid = peer;
  m.a = known;
  int fd = -1;
  int r = Ask(fam, m, -1, &fd);
  if (r == 0 && m.a >= Stack(fam).lgrs.count()) r = -EPROTO;
  if (r != 0) {
    if (fd >= 0) sys::Close(fd);
    return r;
  }
  Count(Stack(fam).hdr, kCounterIntroductions);
  TakeLgr(fam, m.a, fd);
  *lgr_idx = m.a;
  return LgrBase(fam.view, m.a) != nullptr ? 0 : -ENOMEM;
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
  if (LoadRelaxed(fam.ctl_fd) < 0) return;
  if (!TryLock(fam.ctl_lock)) return;
  DrainLocked(fam);
  CtlLeaveLine(fam);
  FenceAfterLocked();  // [F1]
  kVerbs.wire_errands(fam);
}

bool CtlTryLine(Family& fam) {
  if (LoadRelaxed(fam.ctl_fd) < 0) return false;
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

uint8_t* MapLgrOf(Family& fam, uint32_t idx) {
  uint8_t* base = LgrBase(fam.view, idx);
  if (base != nullptr || idx >= Stack(fam).lgrs.count()) return base;
  CtlDrain(fam);
  base = LgrBase(fam.view, idx);
  // Under the engine's lock nobody asks: Engine::Poll() comes back when it is here (Reaches).
  if (base != nullptr || HoldsEngine()) return base;
  const LineGuard line(fam);
  base = LgrBase(fam.view, idx);
  if (base != nullptr || !ConnectLocked(fam)) return base;
  Msg m;
  m.type = Type::kGetLgr;
  m.a = idx;
  int fd = -1;
  if (Ask(fam, m, -1, &fd) == 0) TakeLgr(fam, idx, fd);
  return LgrBase(fam.view, idx);
}

#if defined(PSTN_CHECKS)
namespace {

// Locks in the stack, but for those whose holders may wait for posternd (docs/concurrency.md).
bool ForbidsWaits(const pstn_lock& lock) {
  const StackMap* stack = LockOwnerAt(lock).s;
  if (stack == nullptr || stack->OffOf(&lock) >= stack->layout.bytes) return false;
  const pstn_ep* const ep = stack->eps.At(stack->eps.IndexAt(&lock));
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
  CloseInternal(fam, fam.ctl_fd);  // what sets have of it is the parent's
  StoreRelaxed(fam.ctl_fd, -1);
  FetchAdd(fam.ctl_line, 1u);  // [S7]
  StoreRelaxed(fam.ctl_retry_ns, 0);
}

void CtlAfterFork(Family& fam) {
  const LineGuard line(fam);
  (void)ConnectLocked(fam);
}

}  // namespace postern
