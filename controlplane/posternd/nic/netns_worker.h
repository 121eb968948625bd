// netns_worker.h - a thread that does work in other network namespaces.
// SPDX-License-Identifier: Apache-2.0
//
// A network namespace is a thread's, and so are capabilities: this thread keeps those that the
// process gives up later, and does nothing but what it is asked to, one thing at a time. The asker
// waits.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "../kit/fd.h"

namespace postern::daemon {

class NetnsWorker {
 public:
  NetnsWorker() = default;
  ~NetnsWorker();
  NetnsWorker(const NetnsWorker&) = delete;
  NetnsWorker& operator=(const NetnsWorker&) = delete;

  // From the thread that still has the capabilities.
  void Start();
  // Runs `work` in that namespace; what it returns, or -errno if it can't be entered.
  int Run(int netns, const std::function<int()>& work);

 private:
  enum class Turn : uint8_t { kNobody, kAsked, kAnswered, kEnd };
  void Serve();

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Turn turn_ = Turn::kNobody;
  int netns_ = -1;
  const std::function<int()>* work_ = nullptr;
  int answer_ = 0;
};

}  // namespace postern::daemon
