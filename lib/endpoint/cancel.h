// SPDX-License-Identifier: Apache-2.0
// cancel.h - sleeps are cancellation points (pthread_cancel), as the system calls that they stand
// for.
//
// As in libc: asynchronous cancellation for the length of the call, in which this thread holds no
// lock. The unwinding runs no destructors of code that is built without exceptions, so what has to
// be undone is given as `undo`. A call that finds its data at once is no cancellation point here.
#pragma once
#include <pthread.h>

#include <cerrno>

#include "base/sys.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/interrupts.h"

namespace postern {

template <typename Call, typename Undo>
long Cancellable(Family& fam, Call call, Undo undo) {
  long r;
  int type;
  struct Cleanup {
    Family& fam;
    Undo& undo;
  } cleanup{fam, undo};
  pthread_cleanup_push(
      [](void* u) {
        static_cast<Cleanup*>(u)->undo();
        AbandonUses(static_cast<Cleanup*>(u)->fam);
      },
      &cleanup);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  r = call();
  pthread_setcanceltype(type, nullptr);
  pthread_cleanup_pop(0);
  return r;
}

// Makes `call()`, a sleep in the kernel that the bell of `at` ends, unless a handler has run
// since `interrupts` was read. One that runs after that look rings the bell. (Blocking signals
// meanwhile would do as well, but to unblock them takes a process's signals away from the thread
// that the kernel has chosen; CPython's main thread then sleeps on.)
template <typename Call>
long SleepUnlessInterrupted(uint32_t interrupts, const Sleeping& at, Call call) {
  t_sleeping = &at;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  long r = t_interrupts != interrupts ? -EINTR : call();
  t_sleeping = nullptr;
  return r;
}

}  // namespace postern
