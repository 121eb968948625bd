// netns_worker.cc - see netns_worker.h.
// SPDX-License-Identifier: Apache-2.0
#include "netns_worker.h"

#include <sched.h>

#include <cerrno>

#include "../guard/quiet_thread.h"

namespace postern::daemon {

void NetnsWorker::Start() {
  thread_ = QuietThread([this] { Serve(); });
}

void NetnsWorker::Serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return turn_ == Turn::kAsked || turn_ == Turn::kEnd; });
    if (turn_ == Turn::kEnd) return;
    answer_ = setns(netns_, CLONE_NEWNET) == 0 ? (*work_)() : -errno;
    turn_ = Turn::kAnswered;
    changed_.notify_all();
  }
}

int NetnsWorker::Run(int netns, const std::function<int()>& work) {
  if (!thread_.joinable()) return -ENOTSUP;
  std::unique_lock lock(mutex_);
  netns_ = netns;
  work_ = &work;
  turn_ = Turn::kAsked;
  changed_.notify_all();
  changed_.wait(lock, [this] { return turn_ == Turn::kAnswered; });
  turn_ = Turn::kNobody;
  return answer_;
}

NetnsWorker::~NetnsWorker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    turn_ = Turn::kEnd;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace postern::daemon
