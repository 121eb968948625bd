// SPDX-License-Identifier: Apache-2.0
// parked.cc - the closer's side of a call (call.h): the thread that takes a number away gives the
// calls that use it a reference of their own.
#include "endpoint/parked.h"

#include <sys/single_threaded.h>

#include <cerrno>
#include <cstdio>

#include "base/clock.h"
#include "endpoint/endpoint.h"
#include "endpoint/posts.h"
#include "endpoint/refs.h"
#include "family/fdtab.h"
#include "family/local_lock.h"

namespace postern {
namespace {

// The other half of LightFence: each thread of this process has had a full fence when it returns.
void HeavyFence(Family& fam) {
  FullFence();  // [H2]
  if (__libc_single_threaded != 0 || LoadRelaxed(fam.light_fences) == 0) return;
  if (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  if (Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0 ||
      Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0)
    FenceWithoutKernel(fam);
}

PSTN_LOCK_ENTRY(parked_lock, fam.uses->parked_lock, nullptr);

// Under parked_lock. PSTN_NONE: there is none.
uint32_t FreeParked(Family& fam) PSTN_REQUIRES(fam.uses->parked_lock) {
  for (uint32_t n = 0; n < kParkedMax; n++) {
    const uint32_t at = fam.uses->parked_hand;
    fam.uses->parked_hand = (fam.uses->parked_hand + 1) % kParkedMax;
    if (fam.uses->parked[at].users == 0) return at;
  }
  return PSTN_NONE;
}

}  // namespace

void AddUser(Family& fam, uint32_t at) {
  Guard g(fam.uses->parked_lock);
  fam.uses->parked[at].users++;
}

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
  if (number >= 0)
    (void)CloseNumberOf(fam, number, entry);
  else
    DropFdRef(fam, entry);
}

uint32_t Park(Family& fam, int file, uint32_t entry) {
  int high = sys::DupHigh(file);
  const bool is_file = high >= 0;
  if (!is_file) high = sys::DupHigh(fam.stack_fd);
  const uint32_t place = high < 0 ? PSTN_NONE : PlaceOf(fam, high, true);
  uint32_t at;
  {
    Guard g(fam.uses->parked_lock);
    at = FreeParked(fam);
    if (at != PSTN_NONE && !ShareRef(fam, entry, place)) at = PSTN_NONE;
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
  MarkPrivate(fam, high, PSTN_FD_INTERNAL);
  return at;
}

namespace {

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

constexpr uint64_t kPatienceNs = 100'000'000;

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

}  // namespace postern
