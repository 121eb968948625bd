// SPDX-License-Identifier: Apache-2.0
// fdtab.cc - which fd means what: the process's own table, mirrored in its slot for others.
#include <sys/single_threaded.h>

#include "base/lock.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/turn.h"

namespace postern {

uint32_t g_wire_on;
uint32_t g_fd[kFdMax];
uint32_t g_fd_hw;

namespace {

constexpr uint64_t kFreezeNapNs = 20'000;

// The readers' side of a lock whose writers fork. All of this is the process's own.
uint32_t changing;    // threads in a TableChange
uint32_t frozen;      // futex: 1 while a thread forks
pstn_lock fork_lock;  // tidy-allow: the forking thread's own; TableForked makes it anew
constinit thread_local uint32_t t_changing __attribute__((tls_model("initial-exec"))) = 0;
constinit thread_local bool t_counted __attribute__((tls_model("initial-exec"))) = false;
constinit thread_local bool t_froze __attribute__((tls_model("initial-exec"))) = false;

}  // namespace

TableChange::TableChange() {
  EnterLocked();
  if (t_changing++ != 0) return;
  // Alone, nobody can fork meanwhile: a handler that could begin a thread waits (EnterLocked).
  if (__libc_single_threaded != 0) return;
  t_counted = true;
  for (;;) {
    FetchAdd(changing, 1u);
    FenceAfterLocked();  // [F1] against TableFreeze: it sees this, or we see `frozen`
    if (LoadAcquire(frozen) == 0 || t_froze) return;
    FetchSub(changing, 1u);
    timespec patience = {0, 10'000'000};
    (void)sys::FutexWait(&frozen, 1, &patience);
  }
}

TableChange::~TableChange() {
  if (--t_changing == 0 && t_counted) {
    t_counted = false;
    FetchSub(changing, 1u);
  }
  LeaveLocked();
}

void TableFreeze() {
  Lock(fork_lock);
  t_froze = true;
  StoreRelease(frozen, 1u);
  FullFence();  // [F1]
  while (LoadAcquire(changing) != (t_counted ? 1u : 0u)) sys::Nap(kFreezeNapNs);
}

void TableThaw() {
  if (!t_froze) return;
  t_froze = false;
  StoreRelease(frozen, 0u);
  (void)sys::FutexWake(&frozen, INT32_MAX);
  Unlock(fork_lock);
}

// The other threads, and what they waited for, are the parent's.
void TableForked() {
  changing = t_counted ? 1 : 0;
  frozen = 0;
  fork_lock.word = 0;
  if (t_froze) LeaveLocked();
  t_froze = false;
}

namespace {

// The chunk of the slot's table for `fd`, made if need be. Null: the stack has no more.
pstn_fdchunk* ChunkFor(Family& fam, uint32_t fd, bool make) {
  pstn_stack& s = Stack(fam);
  uint32_t& place = s.slots[fam.slot].chunk[fd / PSTN_FDCHUNK_FDS];
  uint32_t idx = LoadAcquire(place);
  if (idx == PSTN_NONE && make) {
    uint32_t fresh = TakeFdChunk(s, fam.whom);
    if (fresh == PSTN_NONE) return nullptr;
    for (uint32_t& e : s.fdchunks[fresh].fd) StoreRelaxed(e, 0u);
    if (CompareExchange(place, idx, fresh)) {
      idx = fresh;
    } else {
      GiveFdChunk(s, fresh);
    }
  }
  return idx < PSTN_FDCHUNKS ? &s.fdchunks[idx] : nullptr;
}

}  // namespace

void SetSharedFd(Family& fam, int fd, uint32_t entry) {
  if (!fam.attached || static_cast<uint32_t>(fd) >= kFdMax) return;
  uint32_t n = static_cast<uint32_t>(fd);
  pstn_fdchunk* c = ChunkFor(fam, n, entry != 0);
  if (c != nullptr) StoreRelease(c->fd[n % PSTN_FDCHUNK_FDS], entry);
}

uint32_t SharedEntry(Family& fam, int fd) {
  if (!fam.attached || static_cast<uint32_t>(fd) >= kFdMax) return 0;
  const pstn_fdchunk* c = ChunkFor(fam, static_cast<uint32_t>(fd), false);
  return c != nullptr ? LoadAcquire(c->fd[static_cast<uint32_t>(fd) % PSTN_FDCHUNK_FDS]) : 0;
}

void SetFd(Family& fam, int fd, uint32_t entry) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  SetSharedFd(fam, fd, entry);
  MarkPrivate(fd, entry);  // last: another thread may claim the number now
}

bool ClaimFd(int fd, uint32_t entry, uint32_t meanwhile) {
  return static_cast<uint32_t>(fd) < kFdMax && CompareExchange(g_fd[fd], entry, meanwhile);
}

long CloseClaimed(Family& fam, int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return sys::Close(fd);
  SetSharedFd(fam, fd, 0);
  const uint32_t mine = kFdReplaced | (SelfTid() & 0xffffffu);
  MarkPrivate(fd, mine);
  const long r = sys::Close(fd);
  uint32_t seen = mine;
  (void)CompareExchange(g_fd[fd], seen, 0u);
  return r;
}

void ForgetFd(Family& fam, int fd) { SetSharedFd(fam, fd, 0); }

int MoveHigh(int fd) {
  if (fd < 0) return fd;
  int high = sys::DupHigh(fd);
  if (high >= 0) {
    sys::Close(fd);
    fd = high;
  }
  MarkPrivate(fd, PSTN_FD_INTERNAL);
  return fd;
}

void CloseInternal(int fd) {
  if (fd < 0) return;
  MarkPrivate(fd, 0);
  sys::Close(fd);
}

void MarkPrivate(int fd, uint32_t entry) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  StoreRelease(g_fd[fd], entry);
  uint32_t hw = LoadRelaxed(g_fd_hw);
  while (hw <= static_cast<uint32_t>(fd) &&
         !CompareExchange(g_fd_hw, hw, static_cast<uint32_t>(fd) + 1)) {
  }
}

}  // namespace postern
