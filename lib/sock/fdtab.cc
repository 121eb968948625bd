// SPDX-License-Identifier: Apache-2.0
// fdtab.cc - which fd means what: the process's own table, mirrored in its slot for others.
#include "base/sys.h"
#include "sock/proc.h"

namespace postern {

Process g_proc;
uint32_t g_fd[kFdMax];
uint32_t g_fd_hw;

namespace {

// The chunk of the slot's table for `fd`, made if need be. Null: the stack has no more.
pstn_fdchunk* ChunkFor(uint32_t fd, bool make) {
  pstn_stack& s = Stack();
  uint32_t& place = s.slots[g_proc.slot].chunk[fd / PSTN_FDCHUNK_FDS];
  uint32_t idx = LoadAcquire(place);
  if (idx == PSTN_NONE && make) {
    uint32_t fresh = TakeFdChunk(s);
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

namespace {

void SetShared(int fd, uint32_t entry) {
  if (!g_proc.attached) return;
  uint32_t n = static_cast<uint32_t>(fd);
  pstn_fdchunk* c = ChunkFor(n, entry != 0);
  if (c != nullptr) StoreRelease(c->fd[n % PSTN_FDCHUNK_FDS], entry);
}

}  // namespace

void SetFd(int fd, uint32_t entry) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return;
  MarkPrivate(fd, entry);
  SetShared(fd, entry);
}

bool TakeFd(int fd, uint32_t entry) {
  if (static_cast<uint32_t>(fd) >= kFdMax || !CompareExchange(g_fd[fd], entry, PSTN_FD_INTERNAL))
    return false;
  SetShared(fd, 0);
  return true;
}

int MoveHigh(int fd) {
  if (fd < 0) return fd;
  int high = sys::Fcntl(fd, F_DUPFD_CLOEXEC, kFdInternal);
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
