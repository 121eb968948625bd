// SPDX-License-Identifier: Apache-2.0
// cancel.h - sleeps are cancellation points (pthread_cancel), as the system calls that they stand
// for.
//
// As in libc: asynchronous cancellation for the length of the call, in which this thread holds no
// lock. The unwinding runs no destructors of code that is built without exceptions, so what has to
// be undone is given as `undo`. A call that finds its data at once is no cancellation point here.
#pragma once
#include <pthread.h>

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

}  // namespace postern
