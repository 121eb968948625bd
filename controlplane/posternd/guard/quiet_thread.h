// quiet_thread.h - a thread that gets no signal.
// SPDX-License-Identifier: Apache-2.0
//
// A signal for the process is any thread's that does not block it. The event loop's thread is to
// have it: another one may sleep for ever, and where handlers wait for a better moment
// (ThreadSanitizer), so would the handler.
#pragma once
#include <signal.h>

#include <thread>
#include <utility>

namespace postern::daemon {

template <typename Work>
std::thread QuietThread(Work work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace postern::daemon
