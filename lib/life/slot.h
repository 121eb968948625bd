// SPDX-License-Identifier: Apache-2.0
// slot.h - a process's slot in its stack: taken, filled, its table of descriptors.
#pragma once
#include "base/atomic.h"
#include "family/family.h"

namespace postern {

// A free slot in that state, of this thread; PSTN_NONE: there is none.
uint32_t TakeSlot(Family& fam, uint32_t state);
// The slot of `fam` becomes LIVE, and only then do this process's locks bear it: a thread that
// meets a lock in the name of an embryo's slot takes it over (holder.cc). False: the slot has been
// given up as dead meanwhile.
bool FillSlot(Family& fam);
// This process's table, each entry with a reference of its own. False: no room.
bool CopyTable(Family& fam, uint32_t to);
// Maps the stack and takes a slot, or `slot`. False: it can't be had, or there is no room.
bool Join(Family& fam, int stack_fd, uint32_t slot);
// The same at the stack's level, for which `module` may be a descriptor that was inherited.
bool JoinAs(Family& fam, int stack_fd, uint32_t slot, int module = -1);
// Undoes Join: nothing points into the mapping any more.
void Unjoin(Family& fam);

// POSTERN_ATTACH=<stack fd>:<slot>:<mode>[:<lgr>=<fd>]...   mode: e after exec, s after spawn
// (exec.cc)
void AttachAfterExec(Family& fam, const char* text);

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

// The endpoint that an entry of a table (PSTN_FD_*) means; null: none.
inline pstn_ep* EpOfEntry(Family& fam, uint32_t entry) {
  return (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), entry & PSTN_FD_IDX) : nullptr;
}
// The kernel's number for a socket's life; 0: `fd` is no socket.
uint64_t CookieOf(int fd);
// Whether `fd` is the socket of that entry, of which ExecPrepare has learnt the cookie for a spawn.
bool IsSocketOf(Family& fam, int fd, uint32_t entry);

// Decimal number at `p`, which moves behind it. strtoul would look at the locale.
inline uint64_t Number(const char*& p) {
  uint64_t v = 0;
  for (; *p >= '0' && *p <= '9'; p++) v = v * 10 + static_cast<uint64_t>(*p - '0');
  return v;
}

}  // namespace postern
