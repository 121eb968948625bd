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

class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

template <typename Work>
std::thread QuietThread(Work work) {
  const NoSignals while_it_is_made;  // which may throw
  return std::thread(std::move(work));
}

}  // namespace postern::daemon
