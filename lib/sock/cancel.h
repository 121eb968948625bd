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
#include <csignal>

#include "base/sys.h"
#include "sock/proc.h"

namespace postern {

template <typename Call, typename Undo>
long Cancellable(Call call, Undo undo) {
  long r;
  int type;
  pthread_cleanup_push([](void* u) { (*static_cast<Undo*>(u))(); }, &undo);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  r = call();
  pthread_setcanceltype(type, nullptr);
  pthread_cleanup_pop(0);
  return r;
}

// Makes `call(mask)`, a sleep that lets signals in by that mask, unless a handler has run since
// `interrupts` was read: between that look and the sleep, signals are held back.
template <typename Call>
long SleepUnlessInterrupted(uint32_t interrupts, const sigset_t* mask, Call call) {
  const uint64_t all = ~uint64_t{0};
  uint64_t own = 0;
  (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), &all, &own, 8L);
  const void* in_force = mask != nullptr ? static_cast<const void*>(mask) : &own;
  long r = t_interrupts != interrupts ? -EINTR : call(in_force);
  (void)sys::Call(SYS_rt_sigprocmask, static_cast<long>(SIG_SETMASK), &own, nullptr, 8L);
  return r;
}

}  // namespace postern
