// SPDX-License-Identifier: Apache-2.0
// call.cc - see call.h: the threads' records, and the references that have been parked for them.

#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <sys/single_threaded.h>

#include <cerrno>
#include <cstdio>

#include "base/clock.h"
#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/posts.h"
#include "endpoint/refs.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"

namespace postern {

constinit thread_local ThreadUses* t_uses __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// ---------------------------------------------------------------- fences

long Membarrier(int command) {
  return sys::Call(SYS_membarrier, static_cast<long>(command), 0L, 0L);
}

// The other half of LightFence: each thread of this process has had a full fence when it returns.
void HeavyFence(Family& fam) {
  FullFence();  // [H2]
  if (__libc_single_threaded != 0 || LoadRelaxed(fam.light_fences) == 0) return;
  if (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  if (Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0 ||
      Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0)
    FenceWithoutKernel(fam);
}

// ---------------------------------------------------------------- what is parked

PSTN_LOCK_ENTRY(parked_lock, fam.uses->parked_lock, nullptr);

void AddUser(Family& fam, uint32_t at) {
  Guard g(fam.uses->parked_lock);
  fam.uses->parked[at].users++;
}

// The last one ends what the number meant.
void DropUser(Family& fam, uint32_t at) {
  int number;
  uint32_t entry;
  {
    Guard g(fam.uses->parked_lock);
    uint32_t& users = fam.uses->parked[at].users;
    if (!PSTN_CHECK(users != 0) || --users != 0) return;
    number = fam.uses->parked[at].number;
    entry = fam.uses->parked[at].entry;
  }
  TableChange change(fam);
  if (number >= 0) CloseNumberOf(fam, number, entry);
  DropFdRef(fam, entry);
}

// Under parked_lock. PSTN_NONE: there is none.
uint32_t FreeParked(Family& fam) PSTN_REQUIRES(fam.uses->parked_lock) {
  for (uint32_t n = 0; n < kParkedMax; n++) {
    const uint32_t at = fam.uses->parked_hand;
    fam.uses->parked_hand = (fam.uses->parked_hand + 1) % kParkedMax;
    if (fam.uses->parked[at].users == 0) return at;
  }
  return PSTN_NONE;
}

// A second reference, under a number of ours that the slot's table has. PSTN_NONE: no room.
// `file`: a descriptor of the same open file. If that has none any more (a close() that went past
// us), a number of another file keeps the reference: the calls under way use the endpoint all the
// same, and nothing of the kernel's. So they do where the program may have no more numbers; then
// our death leaves the reference to the family's.
uint32_t Park(Family& fam, int file, uint32_t entry) {
  int high = sys::DupHigh(file);
  const bool is_file = high >= 0;
  if (!is_file) high = sys::DupHigh(fam.stack_fd);
  uint32_t at;
  {
    Guard g(fam.uses->parked_lock);
    at = FreeParked(fam);
    if (at != PSTN_NONE && !RefEntry(fam, entry)) at = PSTN_NONE;
    if (at != PSTN_NONE) {
      StoreRelaxed(fam.uses->parked[at].number, high < 0 ? -1 : high);
      fam.uses->parked[at].is_file = is_file;
      StoreRelaxed(fam.uses->parked[at].entry, entry);
      fam.uses->parked[at].users = 1;
      if (at >= fam.uses->parked_hw) fam.uses->parked_hw = at + 1;
    }
  }
  if (high < 0) return at;
  if (at == PSTN_NONE) {
    sys::Close(high);
    return PSTN_NONE;
  }
  SetSharedFd(fam, high, entry);
  MarkPrivate(fam, high, PSTN_FD_INTERNAL);
  return at;
}

// For the kernel's half of a call that has it.
int FileOf(const Parked& p) { return p.is_file ? LoadRelaxed(p.number) : -1; }

// ---------------------------------------------------------------- records

ThreadUses* Record(Family& fam, uint32_t i) {
  if (i < kUsesChunk) return &fam.uses->first[i];
  ThreadUses* chunk = LoadAcquire(fam.uses->chunks[i / kUsesChunk]);  // [U2]
  return chunk != nullptr ? &chunk[i % kUsesChunk] : nullptr;
}

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

void SettleOwed(Family& fam, uint32_t& owed) {
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
  for (uint32_t i = 0; i < n; i++) SettleOwed(fam, t.many[i].owed);  // nobody gives any more
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

// This thread's record, if its last calls were on this family's descriptors.
ThreadUses* OwnUses(const Family& fam) {
  return t_uses != nullptr && t_uses->fam == &fam ? t_uses : nullptr;
}

// On the stack that a handler has for itself, addresses say nothing of what was before.
bool OnOtherStack() {
  stack_t ss = {};
  return sys::Call(SYS_sigaltstack, nullptr, &ss) == 0 && (ss.ss_flags & SS_ONSTACK) != 0;
}

// ---------------------------------------------------------------- the closer's side

template <typename Fn>
void EachUse(ThreadUses& t, uint32_t entry, Fn fn) {
  for (Use& u : t.at) {
    if (LoadAcquire(u.entry) == entry) fn(u.entry, u.owed);  // [H2]
  }
  if (LoadAcquire(t.many_count) == 0) return;  // [U5]
  Guard g(t.many_lock);
  const uint32_t n = LoadRelaxed(t.many_count);
  for (uint32_t i = 0; i < n; i++) {
    if (LoadRelaxed(t.many[i].entry) == entry) fn(t.many[i].entry, t.many[i].owed);
  }
}

template <typename Fn>
void EachUse(Family& fam, uint32_t entry, Fn fn) {
  if (__libc_single_threaded != 0) {
    if (ThreadUses* t = OwnUses(fam); t != nullptr) EachUse(*t, entry, fn);
    return;
  }
  const uint32_t n = LoadAcquire(fam.uses->records);  // [U1]
  for (uint32_t i = 0; i < n; i++) EachUse(*Record(fam, i), entry, fn);
}

bool IsParkedAs(Family& fam, uint32_t owed, uint32_t entry) {
  Guard g(fam.uses->parked_lock);
  return owed != 0 && fam.uses->parked[owed - 1].users != 0 &&
         fam.uses->parked[owed - 1].entry == entry;
}

// Makes the use an owner of what is parked at `at`.
void Give(Family& fam, uint32_t at, uint32_t entry, uint32_t& used, uint32_t& owed) {
  AddUser(fam, at);
  uint32_t none = 0;
  while (!CompareExchange(owed, none, at + 1)) {  // [U4]
    // It has one since another number of the same object was closed; or it is over, and its thread
    // about to settle.
    // [H2]
    if (IsParkedAs(fam, none, entry) || LoadAcquire(used) != entry) return DropUser(fam, at);
    none = 0;
    CpuRelax();
  }
  HeavyFence(fam);                         // [H2]
  if (LoadAcquire(used) == entry) return;  // [H2]
  uint32_t given = at + 1;
  if (CompareExchange(owed, given, 0u)) DropUser(fam, at);
}

}  // namespace

namespace {

// Whether the thread sleeps in a system call, which has looked its number up. Not in one of the
// library's own locks.
bool SleepsInKernel(uint32_t tid) {
  char path[64], text[128];
  snprintf(path, sizeof path, "/proc/self/task/%u/syscall", tid);
  const int fd = static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), &path[0],
                                            static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return false;
  const long n = sys::Call(SYS_read, fd, &text[0], sizeof text - 1);
  sys::Close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  if (text[0] < '0' || text[0] > '9') return false;  // "running", or "-1": in no call
  long nr = 0;
  for (const char* at = text; *at >= '0' && *at <= '9'; at++) nr = nr * 10 + (*at - '0');
  return nr != SYS_futex && nr != SYS_sched_yield && nr != SYS_nanosleep;
}

constexpr uint64_t kLookNs = 20'000, kPatienceNs = 100'000'000;

// Until no other thread is about to ask the kernel by a number that it has not been given [H3].
// True: one sleeps by it.
bool AwaitKernel(Family& fam, uint32_t entry) {
  if (__libc_single_threaded != 0) return false;
  bool sleeps = false;
  const uint32_t n = LoadAcquire(fam.uses->records);  // [U1]
  for (uint32_t i = 0; i < n; i++) {
    ThreadUses& t = *Record(fam, i);
    if (&t == t_uses) continue;  // a handler: what it has interrupted asks again
    for (Use& u : t.at) {
      const uint64_t start = MonotonicNs();
      while (LoadAcquire(u.entry) == entry && LoadAcquire(u.kernel) != 0 &&  // [H3]
             !SleepsInKernel(LoadRelaxed(t.tid)) && MonotonicNs() - start < kPatienceNs)
        sys::Nap(kLookNs);
      sleeps = sleeps || (LoadAcquire(u.entry) == entry && LoadAcquire(u.kernel) != 0);  // [H3]
    }
  }
  return sleeps;
}

}  // namespace

bool HandToUsers(Family& fam, int fd, uint32_t entry) {
  HeavyFence(fam);  // [H1]
  bool used = false;
  EachUse(fam, entry, [&](uint32_t&, uint32_t&) { used = true; });
  if (!used) return false;
  const uint32_t at = Park(fam, fd, entry);
  if (at == PSTN_NONE) return false;
  EachUse(fam, entry, [&](uint32_t& u, uint32_t& owed) { Give(fam, at, entry, u, owed); });
  HeavyFence(fam);  // [H3]
  // The kernel's poll(), in which accept() and a receive of datagrams sleep, looks its numbers up
  // again when it wakes: they have to go on with ours.
  pstn_ep* ep =
      (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), entry & PSTN_FD_IDX) : nullptr;
  if (AwaitKernel(fam, entry) && ep != nullptr &&
      (LoadRelaxed(ep->state) == PSTN_EP_LISTEN || IsDatagram(*ep)))
    PostEp(fam, *ep);
  DropUser(fam, at);
  return true;
}

void HandLostToUsers(Family& fam, uint32_t entry) { (void)HandToUsers(fam, -1, entry); }

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
      (void)RefEntry(fam, fam.uses->parked[i].entry);
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
  if (owed == 0 || LoadRelaxed(fam.uses->parked[owed - 1].entry) != entry) return kOwesNothing;
  return FileOf(fam.uses->parked[owed - 1]);
}
int Call::ParkedNumber(Family& fam, const Use& use, uint32_t entry) {
  return NumberOwed(fam, use.owed, entry);
}
int Call::PinnedNumber() const { return FileOf(fam_.uses->parked[pin_ - 1]); }

long Call::Pin() {
  if (pin_ != 0) return 0;
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
