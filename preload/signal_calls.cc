// SPDX-License-Identifier: Apache-2.0
// signal_calls.cc - handlers of the program run between our critical sections, never inside one.
//
// A handler may call send() on the very socket whose lock its thread holds. So the kernel is given
// OnSignal in place of each handler. When no lock is held, OnSignal calls the handler as the kernel
// would have. Otherwise it puts the signal aside, and blocks all others in the context to which it
// returns; the last Unlock sends the signal to this thread again, with the same siginfo, and puts
// the mask back. The kernel then delivers it as it would have, alternate stack and all.
//
// OnSignal is entered with everything blocked, so that there is never more than one to put aside.
// Faults (SIGSEGV and its kin) cannot wait. Nor can SIGABRT.
//
// In a process that has accelerated sockets SIGSEGV and SIGBUS come to OnFault: a fault in the
// memory that the program has named in a call is that call's EFAULT (base/user_memory.h). Any other
// one is the program's: its handler is entered as if the kernel had done so, with its flags and its
// mask, or the default is restored, and the instruction, or the signal, comes once more.
//
// What the program has installed is in `actions`; whether it still stands, the kernel knows: only
// if OnSignal is installed there does the entry count. Calls of libc's own (system, sigset) and
// direct system calls thus never disagree with the table.
#include <signal.h>
#include <ucontext.h>

#include <cstring>
#include <initializer_list>

#include "base/sys.h"
#include "base/user_memory.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/local_lock.h"
#include "images/spawning.h"
#include "real.h"
#include "sock/own_family.h"

namespace postern {

constinit thread_local bool t_waits_for_many __attribute__((tls_model("initial-exec"))) = false;

namespace {

constexpr int kSignals = 65;
using Handler = void (*)(int, siginfo_t*, void*);
constexpr int kOnce = static_cast<int>(SA_RESETHAND);
#if defined(__x86_64__)
constexpr int kRestorer =
    0x04000000;  // SA_RESTORER, which libc sets, and leaves in what it reports
#else
constexpr int kRestorer = 0;
#endif

constexpr uint64_t Bit(int signo) { return 1ull << (signo - 1); }
// Never deferred and so never wrapped.
constexpr uint64_t kFaults = Bit(SIGSEGV) | Bit(SIGBUS) | Bit(SIGFPE) | Bit(SIGILL) | Bit(SIGTRAP) |
                             Bit(SIGABRT) | Bit(SIGSYS);
constexpr uint64_t kLibc = Bit(32) | Bit(33);  // cancellation and setuid of libc
constexpr uint64_t kBlocked = ~(kFaults | kLibc);
constexpr uint64_t kWatched = Bit(SIGSEGV) | Bit(SIGBUS);  // once there are accelerated sockets

// What the program asked for. Written under actions_lock, `seq` odd meanwhile; read by OnSignal. A
// thread that writes holds a lock, so its own signals wait: a reader waits for other threads only.
struct Action {
  uint32_t seq;
  int flags;
  uint64_t mask;
  Handler handler;
};
PSTN_LOCK_WHOLE(actions_lock);
Action actions[kSignals] PSTN_GUARDED_BY(actions_lock);
uint64_t interrupting;  // siginterrupt(): signal() installs these without SA_RESTART

struct Late {
  siginfo_t info;
  uint64_t mask;  // of the context that was interrupted
  int signo;
  int tid;  // a child of fork must not run what its parent put aside
};
thread_local Late late __attribute__((tls_model("initial-exec")));

// An image that came while a signal is put aside would have all others blocked for good (see
// BeginLeaving).
constinit thread_local jmp_buf* t_leaving __attribute__((tls_model("initial-exec"))) = nullptr;
void (*jump)(__jmp_buf_tag*, int);  // libc's _longjmp

uint64_t MaskOf(const sigset_t& set) {
  uint64_t word;
  memcpy(&word, &set, sizeof word);
  return word;
}
void SetMaskOf(sigset_t& set, uint64_t word) { memcpy(&set, &word, sizeof word); }
void SetThreadMask(uint64_t mask) {
  (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), &mask, nullptr, 8L);
}

Action Snapshot(int signo) {
  Action& from = actions[signo];
  for (;;) {
    uint32_t seq = LoadAcquire(from.seq);  // [W4]
    Action a = {seq, LoadRelaxed(from.flags), LoadRelaxed(from.mask), LoadRelaxed(from.handler)};
    std::atomic_thread_fence(std::memory_order_acquire);  // [W4]
    if ((seq & 1u) == 0 && LoadRelaxed(from.seq) == seq) return a;
    CpuRelax();
  }
}
void PublishLocked(int signo, const Action& a) PSTN_REQUIRES(actions_lock) {
  Action& to = actions[signo];
  uint32_t seq = LoadRelaxed(to.seq);
  StoreRelaxed(to.seq, seq + 1);
  std::atomic_thread_fence(std::memory_order_release);  // [W4]
  StoreRelaxed(to.flags, a.flags);
  StoreRelaxed(to.mask, a.mask);
  StoreRelaxed(to.handler, a.handler);
  StoreRelease(to.seq, seq + 2);  // [W4]
}

// Not by libc's function: it may have to be looked up, which no handler may do.
void RestoreDefault(int signo) {
  const uint64_t reset[4] = {};  // the kernel's struct sigaction: handler, flags, restorer, mask
  (void)sys::Call(SYS_rt_sigaction, signo, &reset[0], nullptr, 8L);
}

void OnFault(int signo, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;
  if (!sent && RecoverFault(context)) return;
  const Action a = Snapshot(signo);
  const bool handled = a.handler != nullptr;
  if (!handled || (a.flags & kOnce) != 0) RestoreDefault(signo);
  if (handled) return a.handler(signo, info, context);
  if (sent)
    (void)sys::Call(SYS_rt_tgsigqueueinfo, sys::Pid(), sys::Tid(), static_cast<long>(signo), info);
}

void OnSignal(int signo, siginfo_t* info, void* context) {
  uint64_t mask = MaskOf(static_cast<ucontext_t*>(context)->uc_sigmask);
  if (t_locks.held != 0) {
    late.info = *info;
    late.mask = mask;
    late.signo = signo;
    late.tid = sys::Tid();
    t_locks.late = 1;
    if (jmp_buf* to = t_leaving; to != nullptr) [[unlikely]] {
      t_leaving = nullptr;
      jump(*to, 1);  // with everything blocked, as the context would be
    }
    SetMaskOf(static_cast<ucontext_t*>(context)->uc_sigmask, mask | kBlocked);
    return;
  }
  Action a = Snapshot(signo);
  if ((a.flags & kOnce) != 0) RestoreDefault(signo);
  bool waits = t_waits_for_many;
  t_waits_for_many = false;  // for the handler's own calls, and for good if it does not return
  uint32_t* word = t_sleep_word;
  const Sleeping* sleeping = t_sleeping;
  t_sleep_word = nullptr;  // for good, too, if it does not return
  t_sleeping = nullptr;
  t_handlers++;
  void* const copy = HideCopy();
  if (word != nullptr) FetchOr(*word, kNudge);  // it may have to begin anew (kRestart)
  if ((a.flags & SA_RESTART) == 0 || waits) {
    t_interrupts++;
    if (sleeping != nullptr)
      (void)RingBell(sleeping->fam.bells, BellOf(Stack(sleeping->fam), sleeping->waiter));
  }
  SetThreadMask(mask | a.mask | ((a.flags & SA_NODEFER) != 0 ? 0 : Bit(signo)));
  a.handler(signo, info,
            context);  // more arguments than a plain handler takes do no harm, as in the kernel
  t_waits_for_many = waits;
  ShowCopy(copy);
}

// The last lock is free: what was put aside comes again.
void RunLate() {
  t_locks.late = 0;
  uint64_t mask = late.mask;
  int tid = sys::Tid();
  if (tid == late.tid &&
      sys::Call(SYS_rt_tgsigqueueinfo, sys::Pid(), tid, late.signo, &late.info) < 0) {
    (void)sys::Call(SYS_tgkill, sys::Pid(), tid, late.signo);
  }
  SetThreadMask(mask);  // the handler runs here
}

// What the program has: while a signal is put aside, the kernel has another.
uint64_t ProgramMask() {
  uint64_t mask = 0;
  (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_BLOCK), nullptr, &mask, 8L);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return t_locks.late != 0 ? late.mask : mask;
}

bool IsWatched(int signo) {
  return signo > 0 && signo < kSignals && (kWatched & Bit(signo)) != 0 && !kSanitized;
}
bool IsWrapped(int signo) {
  if (IsWatched(signo)) return g_faults_watched;
  return g_family.enabled && signo > 0 && signo < kSignals && (kBlocked & Bit(signo)) != 0;
}
bool IsOurs(Handler h) { return h == OnSignal || h == OnFault; }
bool IsFunction(Handler h) {
  auto value = reinterpret_cast<uintptr_t>(h);
  return value > reinterpret_cast<uintptr_t>(SIG_IGN) && !IsOurs(h);  // SIG_DFL is 0, SIG_IGN 1
}

// What the program sees of OnSignal and OnFault.
void ShowProgramsOwn(const Action& own, struct sigaction& was) {
  was.sa_flags = own.flags | (was.sa_sigaction == OnFault ? 0 : was.sa_flags & kRestorer);
  was.sa_sigaction = own.handler;
  memset(&was.sa_mask, 0, sizeof was.sa_mask);
  SetMaskOf(was.sa_mask, own.mask);
}

// In a child of vfork(), where `actions` is the parent's, whose handlers stay as they are; and in a
// process that has stepped aside with handlers in place.
int SetActionPast(int signo, const struct sigaction* act, struct sigaction* old) {
  struct sigaction was;
  const int r = PSTN_REAL(sigaction)(signo, act, &was);
  if (r != 0 || old == nullptr) return r;
  if (IsOurs(was.sa_sigaction)) ShowProgramsOwn(Snapshot(signo), was);
  *old = was;
  return r;
}

// What the kernel is given for that: OnFault does for the default, too.
struct sigaction WatchFor(const Action& a) {
  struct sigaction mine = {};
  mine.sa_sigaction = OnFault;
  mine.sa_flags = SA_SIGINFO | (a.handler != nullptr ? a.flags & ~kOnce : SA_ONSTACK);
  SetMaskOf(mine.sa_mask, a.mask);
  return mine;
}

// `kernels`: `act` is what the kernel says of itself.
int SetAction(int signo, const struct sigaction* act, struct sigaction* old, bool kernels = false) {
  auto real = PSTN_REAL(sigaction);
  if (!IsWrapped(signo) || InVfork()) return SetActionPast(signo, act, old);
  constexpr int kOurs = kOnce | SA_NODEFER;  // done by OnSignal: the signal may come twice
  const bool watched = IsWatched(signo);
  const bool function =
      act != nullptr && (IsFunction(act->sa_sigaction) || (watched && act->sa_handler == SIG_DFL));
  struct sigaction mine = {};
  Action after = {};
  if (function) after = {0, act->sa_flags, MaskOf(act->sa_mask), act->sa_sigaction};
  if (function && watched) {
    mine = WatchFor(after);
    if (!kernels) after.flags |= kRestorer;
  } else if (function) {
    mine.sa_flags = (act->sa_flags & ~kOurs) | SA_SIGINFO;
    mine.sa_sigaction = OnSignal;
    SetMaskOf(mine.sa_mask, kBlocked);
  }
  struct sigaction was;
  Lock(actions_lock);
  Action before = Snapshot(signo);
  if (function) PublishLocked(signo, after);  // first: it is used as soon as the kernel knows
  int r = real(signo, function ? &mine : act, &was);
  if (r != 0 && function) PublishLocked(signo, before);
  Unlock(actions_lock);
  if (r != 0 || old == nullptr) return r;
  if (IsOurs(was.sa_sigaction)) ShowProgramsOwn(before, was);
  *old = was;
  return r;
}

sighandler_t Install(int signo, sighandler_t handler, int flags, uint64_t mask) {
  struct sigaction act = {};
  act.sa_handler = handler;
  act.sa_flags = flags;
  SetMaskOf(act.sa_mask, mask);
  struct sigaction old;
  return SetAction(signo, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}

}  // namespace

namespace {

// From now on. What the program has put there before goes on.
void WatchFaults() {
  if (g_faults_watched) return;
  g_faults_watched = true;
  for (const int signo : {SIGSEGV, SIGBUS}) {
    struct sigaction now;
    if (kSanitized || PSTN_REAL(sigaction)(signo, nullptr, &now) != 0) continue;
    // What an image before this one has set to be ignored stays so, as with any other signal.
    if (!IsOurs(now.sa_sigaction)) (void)SetAction(signo, &now, nullptr, true);
  }
}

}  // namespace

void SignalsInit() {
  if (!g_family.enabled) return;
  g_run_late = RunLate;
  g_watch_faults = WatchFaults;
  if (g_family.attached) WatchFaults();
  jump = reinterpret_cast<decltype(jump)>(RealSymbol("_longjmp"));
}

bool BeginLeaving(jmp_buf& to) {
  t_leaving = &to;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (t_locks.late == 0) return true;
  t_leaving = nullptr;
  return false;
}
void EndLeaving() { t_leaving = nullptr; }

posix_spawnattr_t WithProgramMask(const posix_spawnattr_t* attr) {
  posix_spawnattr_t with;
  if (attr != nullptr) {
    with = *attr;
  } else {
    (void)posix_spawnattr_init(&with);
  }
  short flags = 0;
  (void)posix_spawnattr_getflags(&with, &flags);
  if ((flags & POSIX_SPAWN_SETSIGMASK) != 0) return with;
  sigset_t mask;
  sigemptyset(&mask);
  SetMaskOf(mask, ProgramMask());
  (void)posix_spawnattr_setsigmask(&with, &mask);
  (void)posix_spawnattr_setflags(&with, static_cast<short>(flags | POSIX_SPAWN_SETSIGMASK));
  return with;
}

}  // namespace postern

using namespace postern;

PSTN_EXPORT int sigaction(int signo, const struct sigaction* act, struct sigaction* old) noexcept {
  return SetAction(signo, act, old);
}
PSTN_EXPORT int __sigaction(int signo, const struct sigaction* act,
                            struct sigaction* old) noexcept {
  return SetAction(signo, act, old);
}

PSTN_EXPORT sighandler_t signal(int signo, sighandler_t handler) noexcept {
  if (!IsWrapped(signo) || handler == SIG_ERR) return PSTN_REAL(signal)(signo, handler);
  return Install(signo, handler, (LoadRelaxed(interrupting) & Bit(signo)) != 0 ? 0 : SA_RESTART,
                 Bit(signo));
}
PSTN_EXPORT sighandler_t bsd_signal(int signo, sighandler_t handler) noexcept {
  return signal(signo, handler);
}
PSTN_EXPORT sighandler_t ssignal(int signo, sighandler_t handler) noexcept {
  return signal(signo, handler);
}

PSTN_EXPORT sighandler_t __sysv_signal(int signo, sighandler_t handler) noexcept {
  constexpr int kInterrupt = 0x20000000;  // SA_INTERRUPT, which the kernel ignores
  if (!IsWrapped(signo) || handler == SIG_ERR) return PSTN_REAL(__sysv_signal)(signo, handler);
  return Install(signo, handler, kOnce | SA_NODEFER | kInterrupt, 0);
}
PSTN_EXPORT sighandler_t sysv_signal(int signo, sighandler_t handler) noexcept {
  return __sysv_signal(signo, handler);
}

PSTN_EXPORT int siginterrupt(int signo, int flag) noexcept {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  int r = PSTN_REAL(siginterrupt)(signo, flag);
#pragma GCC diagnostic pop
  if (r != 0 || !IsWrapped(signo) || InVfork()) return r;
  Guard g(actions_lock);
  Action a = Snapshot(signo);
  a.flags = flag != 0 ? a.flags & ~SA_RESTART : a.flags | SA_RESTART;
  PublishLocked(signo, a);
  if (flag != 0) {
    FetchOr(interrupting, Bit(signo));
  } else {
    FetchAnd(interrupting, ~Bit(signo));
  }
  return r;
}
