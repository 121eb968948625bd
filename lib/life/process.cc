// SPDX-License-Identifier: Apache-2.0
// process.cc - a process joins a stack: at its first socket, as a child of fork, or after exec.
//
// Fork: before the kernel copies the process, an embryo slot takes a reference on everything that
// the fd table means, so that no close in the parent can end what the child inherits. The child
// makes the slot its own; if it never comes, posternd reaps the slot.
//
// Exec: the slot stays, the memory goes. The stack's memfd and those of the link groups are left
// open over the exec and named in POSTERN_ATTACH; the new image takes the slot over and drops what
// close-on-exec has closed.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/sys.h"
#include "control/named_stack.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/refs.h"
#include "event/epoll.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/holder.h"
#include "family/local_lock.h"
#include "family/open_fds.h"
#include "family/turn.h"
#include "life/process.h"
#include "life/reap.h"
#include "peer/export.h"

namespace postern {

// What it held is released before the parent goes on, as with the kernel's descriptors.
void ChildEnded(Family& fam, int pid) {
  if (!fam.attached || pid <= 0) return;
  StackMap& s = Stack(fam);
  for (const pstn_slot& slot : s.slots.Before(LoadRelaxed(s.hdr.slots_hw))) {
    if (LoadAcquire(slot.state) != PSTN_SL_FREE &&  // [P1]
        LoadRelaxed(slot.pid) == static_cast<uint32_t>(pid))
      CtlReap(fam, s.slots.IndexOf(slot).word(), static_cast<uint32_t>(pid));
  }
}

namespace {

// Another thread of the parent was about to join or make a stack: the child begins anew.
void RenewJoining(Family& fam) {
  if (fam.attached) return;
  if (fam.view.s != nullptr) UnmapStack(fam.view.s);
  fam.view.s = nullptr;
  CloseInternal(fam, fam.stack_fd);
  fam.stack_fd = -1;
  fam.slot = PSTN_NONE;
}
PSTN_LOCK_ENTRY(init_lock, fam.init_lock, RenewJoining);

// Made by this thread's last SpawnPrepare, for each of its families.
struct Embryo {
  const Family* fam;  // null: none
  uint32_t slot;
};
constexpr uint32_t kEmbryos = 4;
constinit thread_local Embryo t_embryos[kEmbryos] __attribute__((tls_model("initial-exec"))) = {};

void KeepEmbryo(const Family& fam, uint32_t slot) {
  for (Embryo& e : t_embryos) {
    if (e.fam != &fam && e.fam != nullptr) continue;
    e = {slot != PSTN_NONE ? &fam : nullptr, slot};
    return;
  }
}

// Decimal number at `p`, which moves behind it. strtoul would look at the locale.
uint64_t Number(const char*& p) {
  uint64_t v = 0;
  for (; *p >= '0' && *p <= '9'; p++) v = v * 10 + static_cast<uint64_t>(*p - '0');
  return v;
}

// Field 22 of /proc/self/stat: when this process started, in ticks. 0 if unknown.
uint64_t StartTime() {
  char text[1024];
  int fd = static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), "/proc/self/stat",
                                      static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return 0;
  long n = sys::Call(SYS_read, fd, &text[0], sizeof text - 1);
  sys::Close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char* p = strrchr(text, ')');  // the name may hold anything, so count from its end
  for (int field = 2; p != nullptr && field < 22; field++) p = strchr(p + 1, ' ');
  return p != nullptr ? Number(++p) : 0;
}

// Of this process's network namespace; 0: unknown.
uint64_t NetnsIno() {
  struct stat st;
  long r = sys::Call(SYS_newfstatat, static_cast<long>(AT_FDCWD), "/proc/self/ns/net", &st, 0L);
  return r == 0 ? st.st_ino : 0;
}

// The slot of `fam` becomes LIVE, and only then do this process's locks bear it: a thread that
// meets a lock in the name of an embryo's slot takes it over (holder.cc). False: the slot has been
// given up as dead meanwhile.
bool FillSlot(Family& fam) {
  pstn_slot& slot = Stack(fam).slots.Own(ProcIndex(fam.slot));
  const auto taken = [](uint32_t state) {
    return state == PSTN_SL_EMBRYO || state == PSTN_SL_LIVE;
  };
  uint32_t state = LoadAcquire(slot.state);  // [P1]
  if (!taken(state)) return false;
  slot.parent_pid = static_cast<uint32_t>(sys::Call(SYS_getppid));
  slot.start_time = StartTime();
  StoreRelaxed(slot.pidns, OwnPidns(fam));
  slot.exec_pending = PSTN_EXEC_NONE;
  slot.lost_ns = 0;
  (void)sys::Call(SYS_prctl, 16L /* PR_GET_NAME */, &slot.comm[0]);
  StoreRelease(slot.pid, static_cast<uint32_t>(sys::Pid()));  // [P2]
  while (taken(state)) {  // against ClaimDead: one of the two has it
    if (!CompareExchange(slot.state, state, uint32_t{PSTN_SL_LIVE})) continue;
    UseLockSlot(fam, fam.slot);
    return true;
  }
  return false;
}

uint32_t TakeSlot(Family& fam, uint32_t state) {
  StackMap& s = Stack(fam);
  Guard g(s.hdr.slot_lock);
  for (pstn_slot& slot : s.slots.Before(Share(fam.whom, s.slots.count(), kKeeperSlots))) {
    const uint32_t i = s.slots.IndexOf(slot).word();
    if (LoadRelaxed(slot.state) != PSTN_SL_FREE) continue;
    for (uint32_t& c : slot.chunk) StoreRelaxed(c, PSTN_NONE);
    StoreRelaxed(slot.told, 0u);
    StoreRelaxed(slot.pidns, OwnPidns(fam));
    // The thread's: two threads that fork at once must not take each other's child for theirs
    // (Adopted).
    StoreRelease(slot.pid, SelfTid());                                          // [P2]
    StoreRelease(slot.state, state);                                            // [P1]
    if (i >= LoadRelaxed(s.hdr.slots_hw)) StoreRelease(s.hdr.slots_hw, i + 1);  // [P5]
    return i;
  }
  return PSTN_NONE;
}

void Ref(Family& fam, uint32_t entry) {
  uint32_t idx = entry & PSTN_FD_IDX;
  const uint32_t kind = entry & PSTN_FD_KIND;
  pstn_ep* const ep = kind == PSTN_FD_EP ? EpAt(Stack(fam), idx) : nullptr;
  pstn_epoll* const set = kind == PSTN_FD_EPOLL ? Stack(fam).epolls.At(SetIndex(idx)) : nullptr;
  if (ep != nullptr) {
    FetchAdd(ep->refs, 1u);
    FetchOr(ep->flags, PSTN_EPF_DUPPED);
  } else if (set != nullptr) {
    FetchAdd(set->refs, 1u);
  }
}

// Calls fn(fd, entry) for each entry of a slot's fd table.
template <typename Fn>
void EachFd(Family& fam, const pstn_slot& slot, Fn fn) {
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; c++) {
    const ChunkIndex place(LoadAcquire(slot.chunk[c]));  // [P3]
    const pstn_fdchunk* const chunk = Stack(fam).fdchunks.At(place);
    if (chunk == nullptr) continue;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; i++) {
      uint32_t entry = LoadAcquire(chunk->fd[i]);  // [P4]
      if (entry != 0) fn(static_cast<int>(c * PSTN_FDCHUNK_FDS + i), entry);
    }
  }
}

bool CopyTable(Family& fam, uint32_t to) {
  StackMap& s = Stack(fam);
  const pstn_slot& from = s.slots.Own(ProcIndex(fam.slot));
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; c++) {
    // [P3]
    const pstn_fdchunk* const chunk = s.fdchunks.At(ChunkIndex(LoadAcquire(from.chunk[c])));
    if (chunk == nullptr) continue;
    uint32_t fresh = TakeFdChunk(s, fam.whom);
    if (fresh == PSTN_NONE) return false;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; i++) {
      uint32_t entry = LoadAcquire(chunk->fd[i]);  // [P4]
      Ref(fam, entry);
      StoreRelaxed(s.fdchunks.Own(ChunkIndex(fresh)).fd[i], entry);
    }
    StoreRelease(s.slots.Own(ProcIndex(to)).chunk[c], fresh);  // [P3]
  }
  return true;
}

void UseOptions(Family& fam) {
  auto cls = [](int64_t bytes) {
    return bytes <= PSTN_RING0_BYTES ? 0u : bytes <= PSTN_RING1_BYTES ? 1u : 2u;
  };
  fam.limits.class_min = cls(fam.opt.ring_min);
  fam.limits.class_max = cls(fam.opt.ring_max);
}

bool Join(Family& fam, int stack_fd, uint32_t slot) {
  StackMap* s = MapStack(stack_fd);
  if (s == nullptr) return false;
  fam.view.s = s;
  fam.stack_fd = stack_fd;
  fam.slot = slot != PSTN_NONE ? slot : TakeSlot(fam, PSTN_SL_EMBRYO);
  if (s->slots.At(ProcIndex(fam.slot)) == nullptr) {
    UnmapStack(s);
    fam.view.s = nullptr;
    fam.slot = PSTN_NONE;
    return false;
  }
  fam.bells.counters = s->hdr.counters;
  fam.bells.told = &s->slots.Own(ProcIndex(fam.slot)).told;
  WatchLocks(fam);
  MarkPrivate(fam, BellSender(fam.bells), PSTN_FD_INTERNAL);
  return true;
}

// Undoes Join: nothing points into the mapping any more.
void Unjoin(Family& fam) {
  CountChecksIn(nullptr);
#if defined(PSTN_CHECKS)
  g_forbids_waits = ForbidsNone;
#endif
  LeaveLocks(fam);
  fam.bells.counters = nullptr;
  fam.bells.told = nullptr;
  UnmapStack(fam.view.s);
  fam.view.s = nullptr;
  fam.slot = PSTN_NONE;
  fam.stack_fd = -1;
}

const char* EnvValue(const char* const* envp, const char* name) {
  size_t len = strlen(name);
  for (; envp != nullptr && *envp != nullptr; envp++) {
    if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=') return *envp + len + 1;
  }
  return nullptr;
}

// The segment's fd that was left open for us. A spawned child whose file actions closed it
// (closefrom) takes it from its parent, which still has it. -1 if it can't be had.
int PassedFd(Family& fam, int fd, bool spawned) {
  int seals = sys::Fcntl(fd, F_GET_SEALS, 0);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return fd;
  if (!spawned) return -1;
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/fd/%d", sys::Call(SYS_getppid), fd);
  long r = sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), &path[0],
                     static_cast<long>(O_RDWR | O_CLOEXEC));
  return r < 0 ? -1 : MoveHigh(fam, static_cast<int>(r));
}

// After an exec each number means what it meant, or is closed. The slot's table becomes that.
void TakeStayed(Family& fam, const pstn_slot& mine) {
  EachFd(fam, mine, [&](int i, uint32_t entry) {
    if (sys::Fcntl(i, F_GETFD, 0) >= 0) {
      MarkPrivate(fam, i, entry);
    } else {
      SetFd(fam, i, 0);
      DropFdRef(fam, entry);
    }
  });
}

// The kernel's number for a socket's life; 0: `fd` is no socket.
uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t len = sizeof cookie;
  long r = sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), 57L /* SO_COOKIE */,
                     &cookie, &len);
  return r < 0 ? 0 : cookie;
}

pstn_ep* EpOfEntry(Family& fam, uint32_t entry) {
  return (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), entry & PSTN_FD_IDX) : nullptr;
}

// Whether a cookie may be that of a socket of the table: the kernel's own sockets, of which there
// may be many, are not looked for in it.
class CookieHints {
 public:
  explicit CookieHints(Family& fam, const pstn_slot& slot) {
    EachFd(fam, slot, [&](int, uint32_t e) {
      const pstn_ep* ep = EpOfEntry(fam, e);
      if (ep != nullptr) bits_[Word(ep->cookie)] |= Bit(ep->cookie);
    });
  }
  bool May(uint64_t cookie) const { return (bits_[Word(cookie)] & Bit(cookie)) != 0; }

 private:
  static constexpr size_t kWords = 1024;
  static size_t Word(uint64_t cookie) { return cookie / 64 % kWords; }
  static uint64_t Bit(uint64_t cookie) { return 1ull << cookie % 64; }
  uint64_t bits_[kWords] = {};
};

// The entry of slot `mine` for a socket that is open as `fd` now. Few have been moved.
uint32_t EntryOfCookie(Family& fam, const pstn_slot& mine, int fd, uint64_t cookie) {
  const uint32_t here = SharedEntry(fam, fd);
  const pstn_ep* ep = EpOfEntry(fam, here);
  if (ep != nullptr && ep->cookie == cookie) return here;
  uint32_t found = 0;
  EachFd(fam, mine, [&](int, uint32_t e) {
    const pstn_ep* other = EpOfEntry(fam, e);
    if (other != nullptr && other->cookie == cookie) found = e;
  });
  return found;
}

// After a spawn file actions may have moved descriptors: the sockets themselves say which they are.
// The slot's table becomes what is really open: first take, then drop, so that nothing ends
// between.
void TakeMoved(Family& fam, const pstn_slot& mine) {
  const CookieHints hints(fam, mine);
  EachOpen([&](int fd) {
    const uint64_t cookie = CookieOf(fd);
    const uint32_t entry =
        cookie != 0 && hints.May(cookie) ? EntryOfCookie(fam, mine, fd, cookie) : 0;
    if (entry == 0) return;
    MarkPrivate(fam, fd, entry);
    Ref(fam, entry);
  });
  EachFd(fam, mine, [&](int i, uint32_t entry) {
    const uint32_t keep = FdEntry(fam, i);
    SetFd(fam, i, 0);
    MarkPrivate(fam, i, keep);
    DropFdRef(fam, entry);
  });
  for (uint32_t fd = 0; fd < LoadRelaxed(fam.fd_hw); fd++) {
    if ((fam.fd[fd] & PSTN_FD_KIND) == PSTN_FD_EP) SetFd(fam, static_cast<int>(fd), fam.fd[fd]);
  }
}

// POSTERN_ATTACH=<stack fd>:<slot>:<mode>[:<lgr>=<fd>]...   mode: e after exec, s after spawn
void AttachAfterExec(Family& fam, const char* text) {
  const char* end = text;
  int fd = static_cast<int>(Number(end));
  if (*end != ':') return;
  uint64_t slot = Number(++end);
  if (*end != ':' || slot >= kProcesses.most) return;
  bool spawned = end[1] == 's';
  end += 2;
  fd = PassedFd(fam, fd, spawned);
  if (fd < 0) return;
  if (!Join(fam, fd, static_cast<uint32_t>(slot))) return;
  pstn_slot& mine = Stack(fam).slots.Own(ProcIndex(fam.slot));
  uint32_t state = LoadAcquire(mine.state);  // [P1]
  bool fits =
      spawned ? state == PSTN_SL_EMBRYO
              // [P2]
              : state == PSTN_SL_LIVE && LoadAcquire(mine.pid) == static_cast<uint32_t>(sys::Pid());
  if (!fits || !FillSlot(fam)) {  // a process that it was not meant for has inherited the variable
    Unjoin(fam);
    sys::Close(fd);
    return;
  }
  (void)sys::Fcntl(fd, F_SETFD, FD_CLOEXEC);
  MarkPrivate(fam, fd, PSTN_FD_INTERNAL);
  if (!spawned) {  // the last image's threads ended where they were, in the middle of calls
    fam.holder.arrives = true;
    TakeOverLocksOf(fam, static_cast<uint32_t>(slot));
    fam.holder.arrives = false;
  }
  while (*end == ':') {
    uint64_t idx = Number(++end);
    if (*end != '=') break;
    int lgr_fd = PassedFd(fam, static_cast<int>(Number(++end)), spawned);
    if (lgr_fd < 0) continue;
    const pstn_lgr_ref* const ref = Stack(fam).lgrs.At(LgrIndex(static_cast<uint32_t>(idx)));
    uint8_t* base = ref != nullptr ? MapLgr(lgr_fd, &ref->id) : nullptr;
    if (base == nullptr) continue;
    (void)sys::Fcntl(lgr_fd, F_SETFD, FD_CLOEXEC);
    MarkPrivate(fam, lgr_fd, PSTN_FD_INTERNAL);
    SetLgrMapping(fam.view, static_cast<uint32_t>(idx), base, lgr_fd);
  }
  fam.attached = true;
  LearnNetns(fam);
  Count(Stack(fam).hdr, kCounterExecs);
  if (!spawned) ReleaseWaitersOf(fam, static_cast<uint32_t>(slot));  // the last image's threads
  if (spawned) {
    TakeMoved(fam, mine);
  } else {
    TakeStayed(fam, mine);
  }
  CtlReconnect(fam);
}

void ReportNothing(void*, const char*) {}

}  // namespace

void ProcessInit(Family& fam, const char* const* envp) {
  fam.opt = OptionsDefault();
  (void)OptionsLoadEnv(fam.opt, envp, ReportNothing, nullptr);
  UseOptions(fam);
  const char* dir = EnvValue(envp, "POSTERN_RUNTIME_DIR");
  if (dir != nullptr && dir[0] == '/') {
    int n = snprintf(fam.socket_path, sizeof fam.socket_path, "%s/posternd.sock", dir);
    if (n < 0 || static_cast<size_t>(n) >= sizeof fam.socket_path) fam.socket_path[0] = 0;
  }
  const char* daemon = EnvValue(envp, "POSTERN_DAEMON");
  if (daemon != nullptr && daemon[0] == '/' && strlen(daemon) < sizeof fam.daemon_path) {
    memcpy(fam.daemon_path, daemon, strlen(daemon) + 1);
  }
  fam.pid = static_cast<uint32_t>(sys::Pid());
  if (fam.opt.accel != 0) UsesInit(fam);
  // Without a posternd to ask there is nobody to meet: everything is the kernel's, at no cost.
  fam.enabled = fam.opt.accel != 0 && fam.socket_path[0] != 0;
  const char* attach = EnvValue(envp, "POSTERN_ATTACH");
  if (attach == nullptr || attach[0] == 0) return;
  if (fam.enabled) AttachAfterExec(fam, attach);
  // posternd reads it in /proc: an image that does not take its slot over takes that back.
  if (!fam.attached) const_cast<char*>(attach)[0] = 0;
}

namespace {

StackSizes SizesIn(const Options& opt) {
  const auto entries = [](int64_t n) { return static_cast<uint32_t>(n); };
  return {entries(opt.stack_processes), entries(opt.stack_sockets), entries(opt.stack_groups),
          entries(opt.stack_sets), entries(opt.stack_registrations)};
}

// Joins the stack of our name, if there is one that has room for us. The descriptor to go on with.
int JoinNamed(Family& fam, int own) {
  int fd = FindNamedStack(fam, own);
  if (fd < 0) return own;
  fd = MoveHigh(fam, fd);
  const bool joined = Join(fam, fd, PSTN_NONE);
  CloseInternal(fam, joined ? own : fd);
  return joined ? fd : own;
}

}  // namespace

bool MakeStack(Family& fam) {
  if (!fam.enabled) return false;
  Guard g(fam.init_lock);
  if (fam.attached) return true;
  const pstn_uuid id = NewUuid();
  int fd = CreateStack(id, SizesIn(fam.opt));
  if (fd < 0) {
    fam.enabled = false;
    return false;
  }
  fd = MoveHigh(fam, fd);
  if (fam.opt.stack_name[0] != 0) fd = JoinNamed(fam, fd);
  if (!fam.view.s && !Join(fam, fd, PSTN_NONE)) {
    CloseInternal(fam, fd);
    fam.enabled = false;
    return false;
  }
  static_assert(sizeof(Options) <= PSTN_OPTIONS_BYTES);
  if (SameUuid(Stack(fam).hdr.id, id)) {
    memcpy(Stack(fam).hdr.options, &fam.opt, sizeof fam.opt);
    Stack(fam).hdr.netns_ino = NetnsIno();
  }
  (void)FillSlot(fam);
  fam.attached = true;
  CtlReconnect(fam);
  return true;
}

bool JoinStack(Family& fam, int stack_fd) {
  stack_fd = MoveHigh(fam, stack_fd);
  fam.whom = For::kKeeper;
  if (!fam.enabled || !Join(fam, stack_fd, PSTN_NONE)) return false;
  (void)FillSlot(fam);
  fam.attached = true;
  CtlReconnect(fam);
  return true;
}

void LearnNetns(Family& fam) {
  if (!fam.attached) return;  // the stack will belong where it is made
  uint64_t ino = NetnsIno();
  fam.elsewhere = ino != 0 && ino != Stack(fam).hdr.netns_ino;
}

namespace {

// A child that there is no slot for has the kernel's sockets and nothing else.
void LeaveAllToKernel(Family& fam) {
  for (uint32_t fd = 0; fd < LoadAcquire(fam.fd_hw); fd++) {  // [T1]
    if ((FdMeans(fam, static_cast<int>(fd)) & PSTN_FD_KIND) == PSTN_FD_EP)
      (void)SockExport(fam, static_cast<int>(fd));
  }
}

// Such a child: the tables and what they count are its parent's.
void ForkedWithoutSlot(Family& fam) {
  fam.slot = PSTN_NONE;
  fam.enabled = fam.attached = false;
  LeaveLocks(fam);
  StoreRelease(fam.wire_on, 0u);  // [T3]
  UsesForget(fam);
  for (uint32_t fd = 0; fd < fam.fd_hw; fd++) {
    const uint32_t kind = fam.fd[fd] & PSTN_FD_KIND;
    if (kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) MarkPrivate(fam, static_cast<int>(fd), 0);
  }
  CacheForget(fam);
  BedsAfterFork(fam);
  CloseInternal(fam, fam.ctl_fd);
  StoreRelaxed(fam.ctl_fd, -1);
}

}  // namespace

void SpawnPrepare(Family& fam, void (*leave_to_kernel)(Family& fam)) {
  uint32_t slot = fam.attached ? TakeSlot(fam, PSTN_SL_EMBRYO) : PSTN_NONE;
  if (fam.attached && slot == PSTN_NONE) leave_to_kernel(fam);
  TableFreeze(fam);
  if (slot != PSTN_NONE) {
    AdoptBeforeFork(fam);
    if (!CopyTable(fam, slot)) {  // no room for its table, either
      TableThaw(fam);
      ReapSlot(fam, slot);
      slot = PSTN_NONE;
      leave_to_kernel(fam);
      TableFreeze(fam);
    }
  }
  KeepEmbryo(fam, slot);
}

void SpawnDone(Family& fam) { TableThaw(fam); }

void ForkPrepare(Family& fam) {
  SpawnPrepare(fam, LeaveAllToKernel);
  LocalLocksTake(fam);
}

void ForkParent(Family& fam) {
  LocalLocksGive(fam);
  SpawnDone(fam);
}

void ForkChild(Family& fam) {
  TableForked(fam);
  ForgetTid();
  ForgetLockSlot(fam);
  ForgetPidns(fam);
  fam.pid = static_cast<uint32_t>(sys::Pid());
  LocalLocksForked(fam);
  if (!fam.attached) return;
  CtlForked(fam);  // first: on its parent's line it would take answers that the parent waits for
  uint32_t slot = EmbryoSlot(fam);
  KeepEmbryo(fam, PSTN_NONE);
  if (slot == PSTN_NONE) {  // a fork that went past our handlers, or no slot was free
    slot = TakeSlot(fam, PSTN_SL_EMBRYO);
    if (slot == PSTN_NONE) return ForkedWithoutSlot(fam);
    if (!CopyTable(fam, slot)) {
      ReapSlot(fam, slot);
      return ForkedWithoutSlot(fam);
    }
  }
  fam.slot = slot;
  fam.bells.told = &Stack(fam).slots.Own(ProcIndex(slot)).told;
  fam.bells.noted = 0;
  if (!FillSlot(fam)) return ForkedWithoutSlot(fam);
  Count(Stack(fam).hdr, kCounterForks);
  // What the parent's other threads are in calls on is not the child's.
  UsesAfterFork(fam);
  CtlAfterFork(fam);  // the last reference to a listener may be among those that follow
  EachFd(fam, Stack(fam).slots.Own(ProcIndex(slot)), [&fam](int fd, uint32_t entry) {
    if ((FdEntry(fam, fd) & PSTN_FD_KIND) != PSTN_FD_INTERNAL || IsParkedHere(fam, fd)) return;
    (void)CloseNumberOf(fam, fd, entry);
    DropFdRef(fam, entry);
  });
  CacheForget(fam);
  BedsAfterFork(fam);
}

uint32_t EmbryoSlot(const Family& fam) {
  for (const Embryo& e : t_embryos) {
    if (e.fam == &fam) return e.slot;
  }
  return PSTN_NONE;
}

size_t ExecPrepare(Family& fam, char* variable, size_t bytes, uint32_t slot, bool spawn) {
  if (bytes != 0) variable[0] = 0;
  if (!fam.attached || Stack(fam).slots.At(ProcIndex(slot)) == nullptr) return 0;
  int n =
      snprintf(variable, bytes, "POSTERN_ATTACH=%d:%u:%c", fam.stack_fd, slot, spawn ? 's' : 'e');
  if (n < 0 || static_cast<size_t>(n) >= bytes) return 0;
  size_t at = static_cast<size_t>(n);
  (void)sys::Fcntl(fam.stack_fd, F_SETFD, 0);
  for (uint32_t i = 0; i < Stack(fam).lgrs.count() && i < LoadRelaxed(Stack(fam).hdr.lgrs_hw);
       i++) {
    if (LgrBase(fam.view, i) == nullptr || fam.view.lgr_fd[i] <= 0 ||
        LoadRelaxed(Stack(fam).lgrs.Own(LgrIndex(i)).state) == 0)
      continue;
    n = snprintf(variable + at, bytes - at, ":%u=%d", i, fam.view.lgr_fd[i]);
    if (n < 0 || static_cast<size_t>(n) >= bytes - at) break;
    at += static_cast<size_t>(n);
    (void)sys::Fcntl(fam.view.lgr_fd[i], F_SETFD, 0);
  }
  if (spawn) {
    EachFd(fam, Stack(fam).slots.Own(ProcIndex(slot)), [&](int fd, uint32_t e) {
      pstn_ep* ep = (e & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), e & PSTN_FD_IDX) : nullptr;
      socklen_t len = sizeof(uint64_t);
      if (ep != nullptr)
        (void)sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), 57L, &ep->cookie, &len);
    });
  } else {
    StoreRelease(Stack(fam).slots.Own(ProcIndex(slot)).exec_pending, PSTN_EXEC_WITH);  // [P6]
  }
  CacheMarkCloexec(fam);
  return at;
}

void ExecWithout(Family& fam) {
  if (!fam.attached) return;
  StoreRelease(Stack(fam).slots.Own(ProcIndex(fam.slot)).exec_pending, PSTN_EXEC_WITHOUT);  // [P6]
}

void ExecFailed(Family& fam) {
  if (!fam.attached) return;
  StoreRelease(Stack(fam).slots.Own(ProcIndex(fam.slot)).exec_pending, PSTN_EXEC_NONE);  // [P6]
  (void)sys::Fcntl(fam.stack_fd, F_SETFD, FD_CLOEXEC);
  for (uint32_t i = 0; i < kGroups.most; i++) {
    if (fam.view.lgr_fd[i] > 0) (void)sys::Fcntl(fam.view.lgr_fd[i], F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace postern
