// SPDX-License-Identifier: Apache-2.0
// holder.cc - whether the owner of a lock of the stack still lives (base/lock.h).
//
// A thread id of another PID namespace means somebody else here, or nobody. There the slot decides:
// posternd watches its process by a pidfd, which works across namespaces, and the reaper calls the
// slot dead before it touches anything else.
#include <sys/stat.h>

#include <cerrno>

#include "base/sys.h"
#include "family/family.h"
#include "family/holder.h"

namespace postern {
namespace {

uint32_t pidns;  // 0: not asked yet
const pstn_stack* marked;

// A thread of that process; the leader may be a zombie, which holds nothing.
bool ThreadLives(uint32_t pid, uint32_t tid) {
  if (pid == tid || pid == 0) return sys::ThreadIsAlive(tid);
  return sys::Call(SYS_tgkill, static_cast<long>(pid), static_cast<long>(tid), 0L) != -ESRCH;
}

bool OwnerLives(uint32_t word) {
  const uint32_t tid = word & PSTN_LOCK_TID;
  const uint32_t mark = word >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER;
  if (mark == 0 || marked == nullptr) return sys::ThreadIsAlive(tid);
  const pstn_stack& s = *marked;
  if (mark == PSTN_LOCK_REAPER) {
    const uint32_t there = LoadAcquire(s.hdr.reaper_pidns);
    return there != 0 && (there != OwnPidns() || sys::ThreadIsAlive(tid));
  }
  if (mark > PSTN_SLOTS) return false;  // nobody ever wrote that
  const pstn_slot& slot = s.slots[mark - 1];
  const uint32_t state = LoadAcquire(slot.state);
  // A child that has not come yet bears the id of the thread that forked; posternd says when it
  // never will come.
  if (state == PSTN_SL_EMBRYO) return true;
  if (state != PSTN_SL_LIVE) return false;
  if (LoadRelaxed(slot.pidns) != OwnPidns()) return true;
  return ThreadLives(LoadRelaxed(slot.pid), tid);
}

// A reaper needs no lock that a process takes before it has a slot: such a word is a lie.
bool MemberLives(uint32_t word) {
  return (word >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER) != 0 && OwnerLives(word);
}

}  // namespace

uint32_t OwnPidns() {
  if (LoadRelaxed(pidns) != 0) return LoadRelaxed(pidns);
  struct stat st;
  long r = sys::Call(SYS_newfstatat, static_cast<long>(AT_FDCWD), "/proc/self/ns/pid", &st, 0L);
  StoreRelaxed(pidns, r == 0 ? static_cast<uint32_t>(st.st_ino) : PSTN_NONE);
  return LoadRelaxed(pidns);
}

void UseLockSlot(Family& fam, uint32_t slot) {
  marked = fam.view.s;
  g_lock_slot = slot < PSTN_SLOTS ? (slot + 1) << PSTN_LOCK_SLOT_SHIFT : 0;
  g_lock_owner_lives = OwnerLives;
}

void UseReaperLocks(Family& fam) {
  marked = fam.view.s;
  g_lock_slot = PSTN_LOCK_REAPER << PSTN_LOCK_SLOT_SHIFT;
  g_lock_owner_lives = MemberLives;
}

void ForgetPidns() { StoreRelaxed(pidns, 0u); }

}  // namespace postern
