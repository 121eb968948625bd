// SPDX-License-Identifier: Apache-2.0
// exec.cc - what a process's next image, and a spawned child, take over.
//
// The slot stays, the memory goes. The stack's memfd and those of the link groups are left open
// over the exec and named in POSTERN_ATTACH; the new image takes the slot over and drops what
// close-on-exec has closed.
#include <sys/socket.h>

#include <cstdio>
#include <cstring>

#include "base/space/pages.h"
#include "base/sys.h"
#include "control/posternd.h"
#include "endpoint/refs.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/holder.h"
#include "family/module.h"
#include "family/open_fds.h"
#include "life/depart.h"
#include "life/hands.h"
#include "life/process.h"
#include "life/reap.h"
#include "life/slot.h"
#include "peer/connect.h"
#include "state/address_limit.h"

namespace postern {
namespace {

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

// The module's descriptor that was left open for us; -1: none is named.
int PassedModule(const char* end) {
  while (*end == ':') {
    const uint64_t idx = Number(++end);
    if (*end != '=') break;
    const auto fd = static_cast<int>(Number(++end));
    if (idx == kModuleInAttach) return fd;
  }
  return -1;
}

// After an exec each number means what it meant, or is closed. The slot's table becomes that.
void TakeStayed(Family& fam, const pstn_slot& mine) {
  EachFd(fam, mine, [&](int i, uint32_t entry) {
    if (sys::Fcntl(i, F_GETFD, 0) >= 0) {
      MarkPrivate(fam, i, entry);
    } else {
      DropNumber(fam, i, entry);
      MarkPrivate(fam, i, 0);
    }
  });
}

// Whether a cookie may be that of a socket of the table: the kernel's own sockets, of which there
// may be many, are not looked for in it.
class CookieHints {
 public:
  explicit CookieHints(Family& fam, const pstn_slot& slot) : bits_(kWords * sizeof(uint64_t)) {
    if (bits() == nullptr) return;
    EachFd(fam, slot, [&](int, uint32_t e) {
      const pstn_ep* ep = EpOfEntry(fam, e);
      if (ep != nullptr) bits()[Word(ep->cookie)] |= Bit(ep->cookie);
    });
  }
  bool May(uint64_t cookie) const {
    return bits() == nullptr || (bits()[Word(cookie)] & Bit(cookie)) != 0;
  }

 private:
  static constexpr size_t kWords = 1024;
  static size_t Word(uint64_t cookie) { return cookie / 64 % kWords; }
  static uint64_t Bit(uint64_t cookie) { return 1ull << cookie % 64; }
  uint64_t* bits() const { return bits_.As<uint64_t>(); }
  const OwnPages bits_;
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
    if (ShareRef(fam, entry, PSTN_NONE)) MarkPrivate(fam, fd, entry);
  });
  EachFd(fam, mine, [&](int i, uint32_t entry) { DropNumber(fam, i, entry); });
  for (uint32_t fd = 0; fd < LoadRelaxed(fam.fd_hw); fd++) {
    if ((fam.fd[fd] & PSTN_FD_KIND) == PSTN_FD_EP) SetFd(fam, static_cast<int>(fd), fam.fd[fd]);
  }
}

// What the last image's threads were in the middle of: to others they are as dead.
void EndLastImage(Family& fam, uint32_t slot) {
  const Hands hands(fam, slot);
  hands.Mend();
  RecoverConns(fam, slot);
  ReleaseWaitersOf(fam, slot);
  hands.End();
}

}  // namespace

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
  if (!JoinAs(fam, fd, static_cast<uint32_t>(slot), PassedModule(end))) return;
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
    const auto passed = static_cast<int>(Number(++end));
    if (idx == kModuleInAttach) continue;
    int lgr_fd = PassedFd(fam, passed, spawned);
    if (lgr_fd < 0) continue;
    pstn_lgr_ref* const ref = Stack(fam).lgrs.At(LgrIndex(static_cast<uint32_t>(idx)));
    if (ref == nullptr || !ModuleLink(fam, *ref, lgr_fd)) continue;
    uint8_t* base = MapLgr(lgr_fd, &ref->id);
    if (base == nullptr) continue;
    (void)sys::Fcntl(lgr_fd, F_SETFD, FD_CLOEXEC);
    MarkPrivate(fam, lgr_fd, PSTN_FD_INTERNAL);
    SetLgrMapping(fam.view, static_cast<uint32_t>(idx), base, lgr_fd);
    SayChunks(fam.view, static_cast<uint32_t>(idx));
  }
  fam.attached = true;
  LearnNetns(fam);
  Count(Stack(fam).hdr, kCounterExecs);
  if (spawned) {
    TakeMoved(fam, mine);
  } else {
    EndLastImage(fam, static_cast<uint32_t>(slot));
    TakeStayed(fam, mine);
  }
  CtlReconnect(fam);
  UserChanged(fam);
}

size_t ExecPrepare(Family& fam, char* variable, size_t bytes, uint32_t slot, bool spawn) {
  if (bytes != 0) variable[0] = 0;
  if (!fam.attached || Stack(fam).slots.At(ProcIndex(slot)) == nullptr) return 0;
  int n =
      snprintf(variable, bytes, "POSTERN_ATTACH=%d:%u:%c", fam.stack_fd, slot, spawn ? 's' : 'e');
  if (n < 0 || static_cast<size_t>(n) >= bytes) return 0;
  size_t at = static_cast<size_t>(n);
  (void)sys::Fcntl(fam.stack_fd, F_SETFD, 0);
  if (AtLevel2(fam)) {  // first: there may be no room for all
    n = snprintf(variable + at, bytes - at, ":%u=%d", kModuleInAttach, fam.bells.module);
    if (n < 0 || static_cast<size_t>(n) >= bytes - at) return 0;
    at += static_cast<size_t>(n);
    (void)sys::Fcntl(fam.bells.module, F_SETFD, 0);
  }
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
  if (AtLevel2(fam)) (void)sys::Fcntl(fam.bells.module, F_SETFD, FD_CLOEXEC);
  for (uint32_t i = 0; i < kGroups.most; i++) {
    if (fam.view.lgr_fd[i] > 0) (void)sys::Fcntl(fam.view.lgr_fd[i], F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace postern
