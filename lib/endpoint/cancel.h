// SPDX-License-Identifier: Apache-2.0
// cancel.h - sleeps are cancellation points (pthread_cancel), as the system calls that they stand
// for.
//
// As in libc: asynchronous cancellation for the length of the call, in which this thread holds no
// lock. The unwinding runs no destructors of code that is built without exceptions, so what has to
// be undone is given as `undo`. A call that finds its data at once is no cancellation point here.
#pragma once
#include <gnu/libc-version.h>
#include <pthread.h>
#include <signal.h>

#include <cerrno>

#include "base/sys.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/interrupts.h"

namespace postern {

template <typename Undo>
struct CancelCleanup {
  Family& fam;
  Undo& undo;
  static void Run(void* cleanup) {
    auto& c = *static_cast<CancelCleanup*>(cleanup);
    t_sleeping = nullptr;
    c.undo();
    AbandonUses(c.fam);
  }
};

template <typename Call, typename Undo>
long Cancellable(Family& fam, Call call, Undo undo) {
  long r;
  int type;
  CancelCleanup<Undo> cleanup{fam, undo};
  pthread_cleanup_push(CancelCleanup<Undo>::Run, &cleanup);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  r = call();
  pthread_setcanceltype(type, nullptr);
  pthread_cleanup_pop(0);
  return r;
}

// Since glibc 2.41 a system call that has done something when the cancellation comes returns what
// that was, and the next cancellation point acts on it. Before, it was lost.
inline bool CancelSparesWhatMoved() {
  const char* const minor = gnu_get_libc_version() + 2;  // "2.41"
  return minor[0] > '4' || (minor[0] == '4' && minor[1] >= '1');
}

// Acts on a cancellation that is pending; else does nothing.
template <typename Undo>
void ActOnCancel(Family& fam, Undo undo) {
  (void)Cancellable(
      fam, [] { return 0L; }, undo);
}

// Whether the thread is to be cancelled at once, whatever it does.
inline bool CancelsAtOnce() {
  int type = PTHREAD_CANCEL_DEFERRED;
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  if (type != PTHREAD_CANCEL_DEFERRED) pthread_setcanceltype(type, nullptr);
  return type != PTHREAD_CANCEL_DEFERRED;
}

// The same for a call that has moved bytes: where those are spared, a cancellation interrupts it.
// `call(most_ns)` sleeps for no longer: a cancellation that comes just before it does not.
template <typename Call, typename Undo>
long CancellableMoved(Family& fam, Call call, Undo undo) {
  constexpr uint64_t kSliceNs = 50'000'000;
  if (!CancelSparesWhatMoved() || CancelsAtOnce())
    return Cancellable(
        fam, [&] { return call(UINT64_MAX); }, undo);
  const long r = call(kSliceNs);
  if (r == -ETIMEDOUT) ActOnCancel(fam, undo);
  return r;
}

// The same for a poll(). Where a cancellation spares what has been found, it interrupts the poll(),
// and ends the thread unless `found()`. One may come between the look and the sleep: the thread
// that asks for it wakes those that may sleep (WakeOwnSleepers, event/wait.h). (With glibc's signal
// blocked meanwhile there would be no need for that, but to unblock one takes a process's signals
// away from the thread that the kernel has chosen.)
template <typename Call, typename Undo, typename Found>
long CancellablePoll(Family& fam, Call call, Undo undo, Found found) {
  if (!CancelSparesWhatMoved() || CancelsAtOnce()) return Cancellable(fam, call, undo);
  ActOnCancel(fam, undo);
  const long r = call();
  if (r == -EINTR && !found()) ActOnCancel(fam, undo);
  return r;
}

// Makes `call()`, a sleep in the kernel that the bell of `at` ends, unless a handler has run
// since `interrupts` was read. One that runs after that look rings the bell. (Blocking signals
// meanwhile would do as well, but see CancellablePoll: CPython's main thread then sleeps on.)
template <typename Call>
long SleepUnlessInterrupted(uint32_t interrupts, const Sleeping& at, Call call) {
  t_sleeping = &at;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  long r = t_interrupts != interrupts ? -EINTR : call();
  t_sleeping = nullptr;
  return r;
}

}  // namespace postern
