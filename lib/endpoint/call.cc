// SPDX-License-Identifier: Apache-2.0
// call.cc - see call.h: the threads' records. parked.cc has what is given to them.

#include <pthread.h>
#include <signal.h>

#include <cerrno>

#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/parked.h"
#include "endpoint/refs.h"
#include "family/family.h"
#include "family/fdtab.h"

namespace postern {

constinit thread_local ThreadUses* t_uses __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

bool TakeRecord(ThreadUses& t, uint32_t self) {
  uint32_t nobody = 0;
  return LoadRelaxed(t.tid) == 0 && CompareExchange(t.tid, nobody, self);  // [U3]
}

void* MapPrivate(size_t bytes) {
  const long r = sys::Call(SYS_mmap, 0L, bytes, static_cast<long>(PROT_READ | PROT_WRITE),
                           static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
  return r < 0 && r > -4096 ? nullptr : reinterpret_cast<void*>(r);
}

// One more chunk. False: no memory.
bool Grow(Family& fam, uint32_t chunk) {
  auto* fresh = static_cast<ThreadUses*>(MapPrivate(sizeof(ThreadUses) * kUsesChunk));
  if (fresh == nullptr) return false;
  ThreadUses* none = nullptr;
  if (!CompareExchange(fam.uses->chunks[chunk], none, fresh))  // [U2]
    sys::Unmap(fresh, sizeof(ThreadUses) * kUsesChunk);
  return true;
}

// What is parked has numbers of the process. A child of vfork() has others: its parent settles, in
// this thread's next call.
void SettleOwed(Family& fam, uint32_t& owed) {
  if (InVfork()) return;
  const uint32_t at = Exchange(owed, 0u);
  if (at != 0) DropUser(fam, at - 1);
}

void EndUse(Family& fam, Use& u) {
  StoreRelaxed(u.kernel, 0u);
  StoreRelease(u.entry, 0u);  // [H2]
  FullFence();                // [H2]
  SettleOwed(fam, u.owed);
}

void EndMany(Family& fam, ThreadUses& t) {
  uint32_t n;
  {
    Guard g(t.many_lock);
    n = Exchange(t.many_count, 0u);
    for (uint32_t i = 0; i < n; i++) StoreRelaxed(t.many[i].entry, 0u);
  }
  for (uint32_t i = 0; i < n; i++) SettleOwed(fam, t.many[i].owed);  // no closer gives any more
}

// Uses whose functions are over, and all if `frame` is the highest of all.
void EndAbove(Family& fam, ThreadUses& t, uintptr_t frame) {
  while (t.depth != 0 && t.at[t.depth - 1].frame <= frame) {
    t.depth = t.depth - 1;
    EndUse(fam, t.at[t.depth]);
  }
  if (LoadRelaxed(t.many_count) != 0 && t.many_frame <= frame) EndMany(fam, t);
}

void ThreadGone(void* record) {
  auto* t = static_cast<ThreadUses*>(record);
  if (t != t_uses) return;  // another thread's since a fork
  EndAbove(*t->fam, *t, UINTPTR_MAX);
  t_uses = nullptr;
  StoreRelease(t->tid, 0u);  // [U3]
}

// A thread that was made without libc leaves its record behind.
bool TakeFromDead(Family& fam, ThreadUses& t, uint32_t self) {
  uint32_t tid = LoadRelaxed(t.tid);
  if (tid == 0 ||
      sys::Call(SYS_tgkill, static_cast<long>(fam.pid), static_cast<long>(tid), 0L) != -ESRCH)
    return false;
  if (!CompareExchange(t.tid, tid, self)) return false;
  EndAbove(fam, t, UINTPTR_MAX);
  return true;
}

ThreadUses* Keep(Family& fam, ThreadUses* t) {
  t->fam = &fam;
  t_uses = t;
  if (fam.uses->has_key) (void)pthread_setspecific(fam.uses->thread_key, t);
  return t;
}

// Null: there is no memory, or the thread is in a call of another family's.
ThreadUses* Claim(Family& fam) {
  const uint32_t self = SelfTid();
  if (ThreadUses* other = t_uses; other != nullptr) {
    if (other->depth != 0 || LoadRelaxed(other->many_count) != 0) return nullptr;
    if (other->fam->uses->has_key) (void)pthread_setspecific(other->fam->uses->thread_key, nullptr);
    t_uses = nullptr;
    StoreRelease(other->tid, 0u);  // [U3]
  }
  const uint32_t n = LoadAcquire(fam.uses->records);  // [U1]
  for (uint32_t i = 0; i < n; i++) {
    if (TakeRecord(*Record(fam, i), self)) return Keep(fam, Record(fam, i));
  }
  if (n != 0 && n % kUsesChunk == 0) {
    for (uint32_t i = 0; i < n; i++) {
      if (TakeFromDead(fam, *Record(fam, i), self)) return Keep(fam, Record(fam, i));
    }
  }
  for (uint32_t i = n; i < kUsesChunk * kUsesChunks; i++) {
    if (Record(fam, i) == nullptr && !Grow(fam, i / kUsesChunk)) return nullptr;
    if (!TakeRecord(*Record(fam, i), self)) continue;
    for (uint32_t seen = LoadRelaxed(fam.uses->records);
         seen <= i && !CompareExchange(fam.uses->records, seen, i + 1);) {  // [U1]
    }
    return Keep(fam, Record(fam, i));
  }
  return nullptr;
}

// On the stack that a handler has for itself, addresses say nothing of what was before.
bool OnOtherStack() {
  stack_t ss = {};
  return sys::Call(SYS_sigaltstack, nullptr, &ss) == 0 && (ss.ss_flags & SS_ONSTACK) != 0;
}

}  // namespace

void FenceWithoutKernel(Family& fam) {
  StoreRelease(fam.light_fences, 0u);  // [T5]
  FullFence();                         // [H2]
}

void UsesInit(Family& fam) {
  fam.uses->has_key = pthread_key_create(&fam.uses->thread_key, ThreadGone) == 0;
  StoreRelease(fam.light_fences,  // [T5]
               Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 ? 1u : 0u);
}

void AbandonUses(Family& fam) {
  if (ThreadUses* t = OwnUses(fam); t != nullptr) EndAbove(fam, *t, UINTPTR_MAX);
}

// What lies on other stacks than the one that is jumped to is older, or over with what is above it.
void AbandonBelow(Family& fam, uintptr_t target) {
  ThreadUses* t = OwnUses(fam);
  if (t == nullptr || (t->depth == 0 && LoadRelaxed(t->many_count) == 0)) return;
  stack_t ss = {};
  const bool other =
      sys::Call(SYS_sigaltstack, nullptr, &ss) == 0 && (ss.ss_flags & SS_ONSTACK) != 0;
  const auto low = reinterpret_cast<uintptr_t>(ss.ss_sp), high = low + ss.ss_size;
  const auto there = [&](uintptr_t at) { return other && at >= low && at < high; };
  const auto over = [&](uintptr_t frame) {
    return there(target) ? there(frame) && frame < target : there(frame) || frame < target;
  };
  uint32_t keep = 0;
  while (keep < t->depth && !over(t->at[keep].frame)) keep++;
  while (t->depth > keep) {
    t->depth = t->depth - 1;
    EndUse(fam, t->at[t->depth]);
  }
  if (LoadRelaxed(t->many_count) != 0 && over(t->many_frame)) EndMany(fam, *t);
}

bool IsParkedHere(Family& fam, int number) {
  Guard g(fam.uses->parked_lock);
  for (uint32_t i = 0; i < fam.uses->parked_hw; i++) {
    if (fam.uses->parked[i].users != 0 && fam.uses->parked[i].number == number) return true;
  }
  return false;
}

void UsesForget(Family& fam) {
  if (ThreadUses* t = OwnUses(fam); t != nullptr) {
    for (Use& u : t->at) u.owed = 0;
    for (uint32_t k = 0; k < t->many_count; k++) t->many[k].owed = 0;
  }
  UsesAfterFork(fam);
}

void UsesAfterFork(Family& fam) {
  AssertHeld(fam.uses->parked_lock);  // the child has one thread
  for (uint32_t i = 0; i < fam.uses->parked_hw; i++) fam.uses->parked[i].users = 0;
  for (uint32_t i = 0; i < fam.uses->records; i++) {
    ThreadUses& t = *Record(fam, i);
    t.many_lock.word = 0;  // tidy-allow: its holder is not in this child of fork
    if (&t != t_uses) {
      StoreRelaxed(t.tid, 0u);
      t.depth = t.many_count = 0;
      for (Use& u : t.at) u = {};
      for (uint32_t k = 0; k < t.many_room; k++) t.many[k] = {};
      continue;
    }
    StoreRelaxed(t.tid, SelfTid());
    for (const Use& u : t.at) {
      if (u.owed != 0) fam.uses->parked[u.owed - 1].users++;
    }
    for (uint32_t k = 0; k < t.many_count; k++) {
      if (t.many[k].owed != 0) fam.uses->parked[t.many[k].owed - 1].users++;
    }
  }
  // What has no number was not in the table that the child has a copy of.
  for (uint32_t i = 0; i < fam.uses->parked_hw; i++) {
    if (fam.uses->parked[i].users != 0 && fam.uses->parked[i].number < 0)
      (void)ShareRef(fam, fam.uses->parked[i].entry, PSTN_NONE);
  }
}

// ---------------------------------------------------------------- Call

ThreadUses* Call::Room(uintptr_t frame, const Call* beside) {
  ThreadUses* t = OwnUses(fam_);
  if (t == nullptr) t = Claim(fam_);
  const bool begun = beside != nullptr && beside->use_ != nullptr;
  if (t != nullptr && t->depth != 0 && !begun && t->at[t->depth - 1].frame <= frame &&
      !OnOtherStack())
    EndAbove(fam_, *t, frame);
  if (t != nullptr && t->depth < kUses) return t;
  if (Pin() < 0) entry_ = 0;
  return nullptr;
}

// What the number means when the other thread's dup2() is done.
uint32_t AwaitReplaced(Family& fam, int fd) {
  for (;;) {
    const uint32_t now = FdEntry(fam, fd);
    if (!IsReplaced(now)) return now;
    sys::Nap(kLookNs);
  }
}
uint32_t AwaitUnclaimed(Family& fam, int fd) {
  for (;;) {
    const uint32_t now = AwaitReplaced(fam, fd);
    if (now != kFdClosing) return now;
    sys::Nap(kLookNs);
  }
}

void Call::Settle(Family& fam, Use& use) { SettleOwed(fam, use.owed); }

static int NumberOwed(Family& fam, const uint32_t& to, uint32_t entry) {
  const uint32_t owed = LoadAcquire(to);  // [U4]
  if (owed == 0 || InVfork() || LoadRelaxed(fam.uses->parked[owed - 1].entry) != entry)
    return kOwesNothing;
  return FileOf(fam.uses->parked[owed - 1]);
}
int Call::ParkedNumber(Family& fam, const Use& use, uint32_t entry) {
  return NumberOwed(fam, use.owed, entry);
}
int Call::PinnedNumber() const { return FileOf(fam_.uses->parked[pin_ - 1]); }

long Call::Pin() {
  if (pin_ != 0 || InVfork()) return 0;  // no other thread has a vfork() child's numbers
  TableChange change(fam_);
  const bool was_moved = moved();
  const uint32_t at = Park(fam_, fd(), entry_);
  if (at == PSTN_NONE) return -EMFILE;
  if (LoadRelaxed(fam_.uses->parked[at].number) < 0) {
    DropUser(fam_, at);
    return -EMFILE;
  }
  // A thread that takes the number away changes its entry before the kernel hears of it: if it is
  // still there, what has been duplicated is what the number meant.
  const bool right = was_moved || FdEntry(fam_, fd_) == entry_;
  if (!right) {
    DropUser(fam_, at);
    return -EBADF;
  }
  pin_ = at + 1;
  return 0;
}

void Call::Unpin() {
  const uint32_t at = pin_ - 1;
  pin_ = 0;
  DropUser(fam_, at);
}

// ---------------------------------------------------------------- ManyCalls

ManyUse* ManyCalls::Open(size_t n, uintptr_t frame) {
  ThreadUses* t = OwnUses(fam_);
  if (t == nullptr) t = Claim(fam_);
  if (t == nullptr || n > UINT32_MAX) return nullptr;
  if (LoadRelaxed(t->many_count) != 0 && t->many_frame <= frame && !OnOtherStack())
    EndMany(fam_, *t);
  if (LoadRelaxed(t->many_count) != 0 || n == 0) return nullptr;
  Guard g(t->many_lock);
  if (n > t->many_room) {
    auto* more = static_cast<ManyUse*>(MapPrivate(n * sizeof(ManyUse)));
    if (more == nullptr) return nullptr;
    if (t->many != nullptr) sys::Unmap(t->many, t->many_room * sizeof(ManyUse));
    t->many = more;
    t->many_room = static_cast<uint32_t>(n);
  }
  t->many_frame = frame;
  StoreRelease(t->many_count, static_cast<uint32_t>(n));  // [U5]
  open_ = true;
  return t->many;
}

void ManyCalls::Close() {
  open_ = false;
  if (ThreadUses* t = OwnUses(fam_); t != nullptr) EndMany(fam_, *t);
}

int ManyCalls::parked(size_t i) const {
  return open_ ? NumberOwed(fam_, t_uses->many[i].owed, t_uses->many[i].entry) : kOwesNothing;
}

void ManyCalls::EndOne(Family& fam, ManyUse& one) {
  StoreRelease(one.entry, 0u);  // [H2]
  FullFence();                  // [H2]
  SettleOwed(fam, one.owed);
}

}  // namespace postern
