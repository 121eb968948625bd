// SPDX-License-Identifier: Apache-2.0
// slot.cc - see slot.h.
#include "life/slot.h"

#include <sys/socket.h>

#include <cstring>

#include "base/start_time.h"
#include "base/sys.h"
#include "control/posternd.h"
#include "endpoint/refs.h"
#include "family/fdtab.h"
#include "family/holder.h"
#include "family/module.h"
#include "life/reap.h"
#include "state/address_limit.h"

namespace postern {
uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t len = sizeof cookie;
  long r = sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), 57L /* SO_COOKIE */,
                     &cookie, &len);
  return r < 0 ? 0 : cookie;
}

bool IsSocketOf(Family& fam, int fd, uint32_t entry) {
  const pstn_ep* const ep = EpOfEntry(fam, entry);
  return ep != nullptr && ep->cookie == CookieOf(fd);
}

bool FillSlot(Family& fam) {
  pstn_slot& slot = Stack(fam).slots.Own(ProcIndex(fam.slot));
  const auto taken = [](uint32_t state) {
    return state == PSTN_SL_EMBRYO || state == PSTN_SL_LIVE;
  };
  uint32_t state = LoadAcquire(slot.state);  // [P1]
  if (!taken(state)) return false;
  slot.parent_pid = static_cast<uint32_t>(sys::Call(SYS_getppid));
  slot.start_time = StartTimeOf(static_cast<uint32_t>(sys::Pid()));
  StoreRelaxed(slot.pidns, OwnPidns(fam));
  slot.exec_pending = PSTN_EXEC_NONE;
  slot.lost_ns = 0;
  (void)sys::Call(SYS_prctl, 16L /* PR_GET_NAME */, &slot.comm[0]);
  StoreRelease(slot.pid, static_cast<uint32_t>(sys::Pid()));  // [P2]
  while (taken(state)) {  // against ClaimDead: one of the two has it
    if (!CompareExchange(slot.state, state, uint32_t{PSTN_SL_LIVE})) continue;
    UseLockSlot(fam, fam.slot);
    (void)NoteRoom(Stack(fam), fam.slot);
    return true;
  }
  return false;
}

uint32_t TakeSlot(Family& fam, uint32_t state) {
  StackMap& s = Stack(fam);
  const uint64_t start = fam.holder.mark == 0 ? StartTimeOf(SelfTid()) : 0;
  Guard g(s.hdr.slot_lock);
  const Joiner joiner(s, start);
  for (pstn_slot& slot : s.slots.Before(Share(fam.whom, s.slots.count(), kKeeperSlots))) {
    const uint32_t i = s.slots.IndexOf(slot).word();
    if (LoadRelaxed(slot.state) != PSTN_SL_FREE) continue;
    for (uint32_t& c : slot.chunk) StoreRelaxed(c, PSTN_NONE);
    StoreRelaxed(slot.told, 0u);
    StoreRelaxed(slot.pidns, OwnPidns(fam));
    // The thread's: two threads that fork at once must not take each other's child for theirs
    // (Adopted).
    StoreRelease(slot.pid, SelfTid());                                          // [P2]
    if (i >= LoadRelaxed(s.hdr.slots_hw)) StoreRelease(s.hdr.slots_hw, i + 1);  // [P5]
    DeathFence();                     // [Z1] the reaper looks below slots_hw
    StoreRelease(slot.state, state);  // [P1]
    return i;
  }
  return PSTN_NONE;
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
    pstn_fdchunk& copy = s.fdchunks.Own(ChunkIndex(fresh));
    for (uint32_t& e : copy.fd) StoreRelaxed(e, 0u);
    // First: the reaper of the embryo finds what it has got by then.
    StoreRelease(s.slots.Own(ProcIndex(to)).chunk[c], fresh);  // [P3]
    LeaveHands(copy);
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; i++) {
      const uint32_t entry = LoadAcquire(chunk->fd[i]);  // [P4]
      if (entry != 0) (void)ShareRef(fam, entry, fresh * PSTN_FDCHUNK_FDS + i);
    }
  }
  return true;
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

bool JoinAs(Family& fam, int stack_fd, uint32_t slot, int module) {
  if (!Join(fam, stack_fd, slot)) return false;
  if (ModuleJoin(fam, module)) return true;
  if (slot == PSTN_NONE) EndEmbryo(fam, fam.slot);
  Unjoin(fam);
  return false;
}

void Unjoin(Family& fam) {
  ModuleLeave(fam);
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

}  // namespace postern
