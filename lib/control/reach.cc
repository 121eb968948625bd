// SPDX-License-Identifier: Apache-2.0
// reach.cc - comes to a posternd: the first time, and after its restart.
//
// Ports mean something in one network namespace. A posternd of another one says so (EXDEV), and the
// namespace has one of its own, in a directory below: the first process there starts it.
//
// Whether it lives is read from the directory, whose robust mutex the kernel marks when posternd
// dies (no system call). After a restart each process says hello again, with its link groups and
// the listeners it holds.
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/no_descriptors.h"
#include "base/sys.h"
#include "control/acceptor.h"
#include "control/line.h"
#include "control/posternd.h"
#include "ctl/msg_packet.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/verbs.h"

namespace postern {
namespace {

using ctl::Msg;
using ctl::Type;

constexpr uint64_t kSpawnNs = 1'000'000'000;

// What posternd must know again after it was away: our link groups and listeners; `introduced`: it
// was not, and our parent has told it. And what it has made meanwhile.
void Reintroduce(Family& fam, bool introduced) PSTN_REQUIRES(fam.ctl_lock) {
  StackMap& s = Stack(fam);
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadRelaxed(fam.ctl_fd) < 0) break;
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    if (LoadRelaxed(ref.state) != 1) continue;
    Msg m;
    m.a = i;
    if (LgrBase(fam.view, i) != nullptr) {
      m.type = Type::kAddLgr;
      m.uuid = ref.peer;
      if (!introduced) (void)Ask(fam, m, fam.view.lgr_fd[i], nullptr);
    } else if (LoadRelaxed(ref.side) == 1) {  // made while we had no line: its clients come to us
      m.type = Type::kGetLgr;
      int fd = -1;
      if (Ask(fam, m, -1, &fd) == 0) TakeLgr(fam, i, fd);
    }
  }
  const LineAsk ask = [](Family& f, Msg& m, int fd, int* reply) {
    AssertHeld(f.ctl_lock);
    return Ask(f, m, fd, reply);
  };
  if (introduced) return;
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
          (LoadRelaxed(ep->flags) & PSTN_EPF_EXPORTED) != 0 || !IsListedUnasked(*ep))
        continue;
      (void)ListenLocked(fam, *ep, fd);
    }
  }
}

// Starts posternd as the wrapper does, when none answers: the process that notices may be the
// only one that is left to do it. Two forks, so that the program has no child that it does not
// know; plain system calls, so that no handler of the program runs.
void Spawn(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  if (fam.daemon_path[0] == 0 || fam.opt.daemon_spawn == 0 ||
      LoadRelaxed(Stack(fam).hdr.ticket) != 0 ||  // that would be a guest's user's
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
  (void)RefuseDescriptors(fd);  // a stranger may have the name
  if (sys::Call(SYS_connect, fd, &a, static_cast<long>(len)) < 0) return r;
  ucred peer = {};
  socklen_t size = sizeof peer;
  r = sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_PEERCRED),
                &peer, &size);
  if (r >= 0 && peer.uid != 0 && peer.uid != uid) return -EACCES;
  AllowDescriptors(fd);
  return r;
}

bool GoToNamespace(Family& fam, uint64_t netns_ino) {
  if (netns_ino == 0 || fam.ctl_below) return false;
  char below[sizeof fam.socket_path];
  const char* const slash = strrchr(fam.socket_path, '/');
  const int dir = static_cast<int>(slash != nullptr ? slash - fam.socket_path : 0);
  const int n = snprintf(below, sizeof below, "%.*s/netns-%llu/posternd.sock", dir, fam.socket_path,
                         static_cast<unsigned long long>(netns_ino));
  if (n < 0 || static_cast<size_t>(n) >= sizeof below) return false;
  memcpy(fam.socket_path, below, sizeof below);
  fam.ctl_below = true;
  fam.ctl_await = true;
  return true;
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

}  // namespace

namespace {

bool ConnectOnce(Family& fam) PSTN_REQUIRES(fam.ctl_lock) {
  if (LoadRelaxed(fam.ctl_fd) >= 0) return true;
  if (MonotonicNs() < LoadRelaxed(fam.ctl_retry_ns) || fam.socket_path[0] == 0) return false;
  CheckMayWait();
  // One that ends at once is not asked again at once.
  StoreRelaxed(fam.ctl_retry_ns, MonotonicNs() + kRetryNs);
  int fd = static_cast<int>(
      sys::MakeOurs([] { return long{sys::Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)}; }));
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
    const bool nobody = r == -ECONNREFUSED || r == -ENOENT;
    if (nobody) Spawn(fam);
    fam.ctl_await = fam.ctl_await && nobody;
    return false;
  }
  StoreRelaxed(fam.ctl_fd, fd);
  Msg m;
  m.type = Type::kHello;
  m.uuid = Stack(fam).hdr.id;
  m.a = fam.slot;
  m.b = ctl::kHelloSeeks;
  m.cookie = LoadRelaxed(Stack(fam).hdr.ticket);
  int dir_fd = -1;
  const int said = Ask(fam, m, fam.stack_fd, &dir_fd);
  StoreRelaxed(fam.ctl_version, said == -EPROTONOSUPPORT ? 1u : 0u);
  if (said != 0 || dir_fd < 0) {
    Disconnect(fam);
    fam.ctl_await =
        fam.ctl_await && (said == -EPIPE || said == -ECONNRESET);  // it was just leaving
    if (said == -EXDEV) (void)GoToNamespace(fam, Stack(fam).hdr.netns_ino);
    return false;
  }
  if (std::exchange(fam.ctl_silent_ms, 0u) != 0) SetPatience(fam, fd);
  const pstn_dir* dir = MapDir(dir_fd);
  sys::Close(dir_fd);
  if (dir == nullptr) {
    StoreRelaxed(fam.ctl_version, 1u);
    Disconnect(fam);
    return false;
  }
  // The directory before stays mapped: another thread may be reading it. A restart of posternd
  // is rare enough for its 1 MiB.
  if (fam.dir != nullptr) Count(Stack(fam).hdr, kCounterDaemonReconnects);
  StoreRelease(fam.dir, dir);  // [T4]
  TakeWideSender(fam, *dir);
  // With a VI, a child has a part in what its line carries.
  const bool introduced = std::exchange(fam.ctl_introduced, 0u) == dir->id.lo;
  Reintroduce(fam, introduced && LoadRelaxed(fam.wire_on) == 0);
  if (LoadRelaxed(fam.ctl_fd) < 0) return false;
  StoreRelaxed(fam.ctl_retry_ns, 0);
  return true;
}

}  // namespace

bool ConnectLocked(Family& fam) {
  if (InVfork()) return false;
  if (ConnectOnce(fam)) return true;
  // The first sockets of a program, and of a network namespace, are to have a posternd that has to
  // be started first: the last one may have been leaving when the wrapper looked.
  constexpr uint64_t kStartsNs = 500'000'000, kLookNs = 2'000'000;
  const uint64_t end_ns = fam.ctl_await ? MonotonicNs() + kStartsNs : 0;
  for (; fam.ctl_await && MonotonicNs() < end_ns; sys::Nap(kLookNs)) {
    StoreRelaxed(fam.ctl_retry_ns, 0);
    if (ConnectOnce(fam)) break;
    if (fam.spawn_not_before_ns == 0) break;  // there is none, and none is started
  }
  fam.ctl_await = false;
  return LoadRelaxed(fam.ctl_fd) >= 0;
}

Reason WhyNoDaemon(const Family& fam) {
  return LoadRelaxed(fam.ctl_version) != 0 ? kReasonVersion : kReasonNoDaemon;
}

bool DaemonAlive(Family& fam) {
  const pstn_dir* d = LoadAcquire(fam.dir);  // [T4]
  if (d == nullptr) return false;
  uint32_t word = LoadAcquire(*reinterpret_cast<const uint32_t*>(d->alive_mutex));  // [T6]
  return word != 0 && (word & FUTEX_OWNER_DIED) == 0;
}

}  // namespace postern
