// SPDX-License-Identifier: Apache-2.0
// holder.cc - whether the owner of a lock of the stack still lives (base/lock.h).
//
// A thread id of another PID namespace means another thread here, or none. There the slot decides:
// posternd watches its process by a pidfd, which works across namespaces, and the reaper calls the
// slot dead before it touches anything else.
#include <sys/stat.h>

#include <cerrno>

#include "base/clock.h"
#include "base/start_time.h"
#include "base/sys.h"
#include "family/family.h"
#include "family/holder.h"

namespace postern {
namespace {

// A thread that waits asks each 20 ms whether the owner lives, and there may be thousands of them:
// one in a while looks into /proc for all.
bool IsAnothers(const Holder& h, uint32_t tid, uint64_t start) {
  constexpr uint64_t kPauseNs = 100'000'000;
  uint64_t& next = h.next_ask_ns;
  uint64_t seen = LoadRelaxed(next);
  const uint64_t now = MonotonicNs();
  return now >= seen && CompareExchange(next, seen, now + kPauseNs) && IsLaterThread(tid, start);
}

// A thread of that process; the leader may be a zombie, which holds nothing. Where posternd is
// away, a slot stays LIVE behind its process, whose number another one gets.
bool ThreadLives(const Holder& h, const pstn_slot& slot, uint32_t tid, bool asks_proc) {
  const uint32_t pid = LoadRelaxed(slot.pid);
  const bool there = pid == tid || pid == 0 ? sys::ThreadIsAlive(tid)
                                            : sys::Call(SYS_tgkill, static_cast<long>(pid),
                                                        static_cast<long>(tid), 0L) != -ESRCH;
  return there && !(asks_proc && IsAnothers(h, pid, LoadRelaxed(slot.start_time)));
}

// No slot yet, and so no process that anything is known of, but what a Joiner has said.
bool JoinerLives(const Holder& h, uint32_t tid) {
  if (!sys::ThreadIsAlive(tid)) return false;
  return LoadAcquire(h.s->hdr.joiner) != tid ||  // [P9]
         !IsAnothers(h, tid, LoadRelaxed(h.s->hdr.joiner_start));
}

uint32_t PidnsOf(const Holder& h) {
  uint32_t& kept = h.pidns;
  if (LoadRelaxed(kept) != 0) return LoadRelaxed(kept);
  struct stat st;
  long r = sys::Call(SYS_newfstatat, static_cast<long>(AT_FDCWD), "/proc/self/ns/pid", &st, 0L);
  StoreRelaxed(kept, r == 0 ? static_cast<uint32_t>(st.st_ino) : PSTN_NONE);
  return LoadRelaxed(kept);
}

bool ReaperLives(const Holder& h, uint32_t tid, bool asks_proc) {
  const pstn_stack_hdr& hdr = h.s->hdr;
  const uint32_t there = LoadAcquire(hdr.reaper_pidns);  // [P8]
  if (there == 0) return false;
  if (there != PidnsOf(h)) return true;
  return sys::ThreadIsAlive(tid) &&
         !(asks_proc && IsAnothers(h, tid, LoadRelaxed(hdr.reaper_start)));
}

// `asks_proc`: a reaper may open nothing, and has a posternd.
bool OwnerLivesFor(const LockOwner& me, uint32_t word, bool asks_proc) {
  const auto& holder = static_cast<const Holder&>(me);
  const uint32_t tid = word & PSTN_LOCK_TID;
  const uint32_t mark = word >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER;
  const StackMap& s = *holder.s;
  // No thread waits for what it has itself: it has got the number of a dead one.
  if (mark != 0 && mark == holder.mark >> PSTN_LOCK_SLOT_SHIFT && tid == SelfTid()) return false;
  if (mark == 0) return JoinerLives(holder, tid);
  if (mark == PSTN_LOCK_REAPER && tid == 0) return true;  // PSTN_LOCK_MODULE
  if (mark == PSTN_LOCK_REAPER) return ReaperLives(holder, tid, asks_proc);
  const pstn_slot* const slot = s.slots.At(ProcIndex(mark - 1));
  if (slot == nullptr) return false;  // no process ever wrote that
  // A process takes locks in the name of its slot only when the slot is LIVE (FillSlot). So a word
  // that names an embryo's was written by a former owner of the slot, and that one is dead.
  if (LoadAcquire(slot->state) != PSTN_SL_LIVE) return false;  // [P1]
  if (holder.arrives && mark == holder.mark >> PSTN_LOCK_SLOT_SHIFT) return false;
  if (LoadRelaxed(slot->pidns) != PidnsOf(holder)) return true;
  return ThreadLives(holder, *slot, tid, asks_proc);
}

bool OwnerLives(const LockOwner& me, uint32_t word) { return OwnerLivesFor(me, word, true); }

// A reaper needs no lock that a process takes before it has a slot: such a word is a lie.
bool MemberLives(const LockOwner& me, uint32_t word) {
  return (word >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER) != 0 && OwnerLivesFor(me, word, false);
}

}  // namespace

Joiner::Joiner(StackMap& s, uint64_t start) : s_(s) {
  StoreRelaxed(s.hdr.joiner_start, start);
  StoreRelease(s.hdr.joiner, start != 0 ? SelfTid() : 0u);  // [P9]
}
Joiner::~Joiner() { StoreRelaxed(s_.hdr.joiner, 0u); }

uint32_t OwnPidns(Family& fam) { return PidnsOf(fam.holder); }

void ForgetPidns(Family& fam) { StoreRelaxed(fam.holder.pidns, 0u); }

static bool UseMark(Family& fam, uint32_t mark, bool (*lives)(const LockOwner&, uint32_t)) {
  Holder& h = fam.holder;
  const bool known = h.s == fam.view.s;
  if (!known && h.at != nullptr) DropLocksAt(h.at);
  h.s = fam.view.s;
  h.at = &h.s->hdr;
  h.lives = lives;
  h.taken_over = &fam.view.s->hdr.counters[kCounterLocksRecovered];
  MarkLocksOf(h, mark);
  return known || AddLocksOf(h, h.at, h.s->layout.bytes);
}

bool UseLockSlot(Family& fam, uint32_t slot) {
  return UseMark(fam, (slot + 1) << PSTN_LOCK_SLOT_SHIFT, OwnerLives);
}

bool UseReaperLocks(Family& fam) {
  ExpectLies();  // before the first look at what the family has written
  CountChecksIn(&fam.view.s->hdr);
  return UseMark(fam, PSTN_LOCK_REAPER << PSTN_LOCK_SLOT_SHIFT, MemberLives);
}

void ForgetLockSlot(Family& fam) { MarkLocksOf(fam.holder, 0); }

void LeaveLocks(Family& fam) {
  MarkLocksOf(fam.holder, 0);
  if (fam.holder.at != nullptr) DropLocksAt(fam.holder.at);
  fam.holder.s = nullptr;
  fam.holder.at = nullptr;
}

}  // namespace postern
