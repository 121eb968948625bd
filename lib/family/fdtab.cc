// SPDX-License-Identifier: Apache-2.0
// fdtab.cc - which fd means what: the process's own table, mirrored in its slot for others.
#include <sys/single_threaded.h>

#include "base/lock.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/turn.h"
#include "state/in_hands.h"

namespace postern {

constinit thread_local uint32_t t_vforked __attribute__((tls_model("initial-exec"))) = 0;

namespace {

constexpr uint64_t kFreezeNapNs = 20'000;

constinit thread_local uint32_t t_changing __attribute__((tls_model("initial-exec"))) = 0;
// Whose `changing` counts this thread; null: none's.
constinit thread_local const Family* t_counted __attribute__((tls_model("initial-exec"))) = nullptr;

bool Froze(const Family& fam) { return LoadRelaxed(fam.gate.freezer) == SelfTid(); }

}  // namespace

TableChange::TableChange(Family& fam) : fam_(fam) {
  EnterLocked();
  if (t_changing++ != 0) return;
  // Alone, no thread can fork meanwhile: a handler that could begin a thread waits (EnterLocked).
  if (__libc_single_threaded != 0) return;
  t_counted = &fam;
  for (;;) {
    FetchAdd(fam.gate.changing, 1u);
    FenceAfterLocked();  // [F1] against TableFreeze: it sees this, or we see `frozen`
    if (LoadAcquire(fam.gate.frozen) == 0 || Froze(fam)) return;  // [T2]
    FetchSub(fam.gate.changing, 1u);                              // [T2]
    timespec patience = {0, 10'000'000};
    (void)sys::FutexWait(&fam.gate.frozen, 1, &patience);
  }
}

TableChange::~TableChange() {
  if (--t_changing == 0 && t_counted == &fam_) {
    t_counted = nullptr;
    FetchSub(fam_.gate.changing, 1u);
  }
  LeaveLocked();
}

// From before a fork to after it, which are functions of their own: no analysis.
void TableFreeze(Family& fam) PSTN_NO_THREAD_SAFETY_ANALYSIS {
  Lock(fam.gate.lock);
  StoreRelaxed(fam.gate.freezer, SelfTid());
  StoreRelease(fam.gate.frozen, 1u);  // [T2]
  FullFence();                        // [F1]
  // [T2]
  while (LoadAcquire(fam.gate.changing) != (t_counted == &fam ? 1u : 0u)) sys::Nap(kFreezeNapNs);
}

void TableThaw(Family& fam) PSTN_NO_THREAD_SAFETY_ANALYSIS {
  if (!Froze(fam)) return;
  StoreRelaxed(fam.gate.freezer, 0u);
  StoreRelease(fam.gate.frozen, 0u);  // [T2]
  (void)sys::FutexWake(&fam.gate.frozen, INT32_MAX);
  Unlock(fam.gate.lock);
}

// The other threads, and what they waited for, are the parent's.
void TableForked(Family& fam) {
  const bool froze = Froze(fam);
  fam.gate = {};
  fam.gate.changing = t_counted == &fam ? 1 : 0;
  if (froze) LeaveLocked();
}

namespace {

// The chunk of the slot's table for `fd`, made if need be. Null: the stack has no more.
pstn_fdchunk* ChunkFor(Family& fam, uint32_t fd, bool make) {
  StackMap& s = Stack(fam);
  uint32_t& place = s.slots.Own(ProcIndex(fam.slot)).chunk[fd / PSTN_FDCHUNK_FDS];
  uint32_t idx = LoadAcquire(place);  // [P3]
  if (idx == PSTN_NONE && make) {
    uint32_t fresh = TakeFdChunk(s, fam.whom);
    if (fresh == PSTN_NONE) return nullptr;
    for (uint32_t& e : s.fdchunks.Own(ChunkIndex(fresh)).fd) StoreRelaxed(e, 0u);
    if (CompareExchange(place, idx, fresh)) {  // [P3]
      idx = fresh;
      LeaveHands(s.fdchunks.Own(ChunkIndex(fresh)));
    } else {
      GiveFdChunk(s, fresh);
    }
  }
  return s.fdchunks.At(ChunkIndex(idx));
}

}  // namespace

uint32_t PlaceOf(Family& fam, int fd, bool make) {
  if (!fam.attached || static_cast<uint32_t>(fd) >= kFdMax) return PSTN_NONE;
  const uint32_t n = static_cast<uint32_t>(fd);
  const pstn_fdchunk* const c = ChunkFor(fam, n, make);
  if (c == nullptr) return PSTN_NONE;
  return Stack(fam).fdchunks.IndexOf(*c).word() * PSTN_FDCHUNK_FDS + n % PSTN_FDCHUNK_FDS;
}

uint32_t* EntryAt(StackMap& s, uint32_t place) {
  if (place == PSTN_NONE) return nullptr;
  pstn_fdchunk* const c = s.fdchunks.At(ChunkIndex(place / PSTN_FDCHUNK_FDS));
  return c != nullptr ? &c->fd[place % PSTN_FDCHUNK_FDS] : nullptr;
}

void SetSharedFd(Family& fam, int fd, uint32_t entry) {
  if (!fam.attached || static_cast<uint32_t>(fd) >= kFdMax) return;
  StackMap& s = Stack(fam);
  uint32_t n = static_cast<uint32_t>(fd);
  pstn_fdchunk* c = ChunkFor(fam, n, entry != 0);
  if (c != nullptr) StoreRelease(c->fd[n % PSTN_FDCHUNK_FDS], entry);  // [P4]
  // The table has what was in this process's hands alone. (Or there is no room in it: then a fork's
  // child has the number and no reference, and no death of ours may end what it means.)
  const uint32_t idx = entry & PSTN_FD_IDX, kind = entry & PSTN_FD_KIND;
  pstn_ep* const ep = kind == PSTN_FD_EP ? s.eps.At(EpIndex(idx)) : nullptr;
  pstn_epoll* const set = kind == PSTN_FD_EPOLL ? s.epolls.At(SetIndex(idx)) : nullptr;
  if (ep != nullptr) LeaveHands(*ep);
  if (set != nullptr) LeaveHands(*set);
}

uint32_t SharedEntry(Family& fam, int fd) {
  if (!fam.attached || static_cast<uint32_t>(fd) >= kFdMax) return 0;
  const pstn_fdchunk* c = ChunkFor(fam, static_cast<uint32_t>(fd), false);
  // [P4]
  return c != nullptr ? LoadAcquire(c->fd[static_cast<uint32_t>(fd) % PSTN_FDCHUNK_FDS]) : 0;
}

void SetFd(Family& fam, int fd, uint32_t entry) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  SetSharedFd(fam, fd, entry);
  MarkPrivate(fam, fd, entry);  // last: another thread may claim the number now
}

bool ClaimFd(Family& fam, int fd, uint32_t entry, uint32_t meanwhile) {
  return static_cast<uint32_t>(fd) < kFdMax && CompareExchange(fam.fd[fd], entry, meanwhile);
}

long CloseClaimed(Family& fam, int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return sys::Close(fd);
  SetSharedFd(fam, fd, 0);
  const uint32_t mine = kFdReplaced | (SelfTid() & 0xffffffu);
  MarkPrivate(fam, fd, mine);
  const long r = sys::Close(fd);
  uint32_t seen = mine;
  (void)CompareExchange(fam.fd[fd], seen, 0u);
  return r;
}

void ForgetFd(Family& fam, int fd) { SetSharedFd(fam, fd, 0); }

int MoveHigh(Family& fam, int fd) {
  if (fd < 0) return fd;
  int high = sys::DupHigh(fd);
  if (high >= 0) {
    sys::Close(fd);
    fd = high;
  }
  MarkPrivate(fam, fd, PSTN_FD_INTERNAL);
  return fd;
}

void CloseInternal(Family& fam, int fd) {
  if (fd < 0) return;
  MarkPrivate(fam, fd, 0);
  sys::Close(fd);
}

void MarkPrivate(Family& fam, int fd, uint32_t entry) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  StoreRelease(fam.fd[fd], entry);  // [T1]
  uint32_t hw = LoadRelaxed(fam.fd_hw);
  while (hw <= static_cast<uint32_t>(fd) &&
         !CompareExchange(fam.fd_hw, hw, static_cast<uint32_t>(fd) + 1)) {  // [T1]
  }
}

}  // namespace postern
