// closer.cc - see closer.h.
// SPDX-License-Identifier: Apache-2.0
#include "closer.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "quiet_thread.h"

namespace postern::daemon {
namespace {

constexpr size_t kWaitAt = 128;     // closes of one uid that wait: then its lines are not read
constexpr size_t kNothingAt = 512;  // not even to be refused
constexpr auto kStuckAfter = std::chrono::milliseconds(500);
constexpr size_t kBatch = 64;  // then it is another uid's turn
constexpr size_t kThreadsMax = 64;
constexpr size_t kThreadsKept = 2;  // beyond them, for root and for our own user
constexpr auto kIdle = std::chrono::seconds(5);
constexpr int kInterrupt = SIGURG;
constexpr long kInterruptNs = 200'000;

using Clock = std::chrono::steady_clock;

void Nothing(int) {}

// Interrupts the thread that made it, again and again.
class Interrupter {
 public:
  Interrupter() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kInterrupt;
    event._sigev_un._tid = gettid();
    made_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  ~Interrupter() {
    if (made_) timer_delete(timer_);
  }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

  void Set(bool on) {
    itimerspec when{};
    if (on) when.it_value.tv_nsec = when.it_interval.tv_nsec = kInterruptNs;
    if (made_) timer_settime(timer_, 0, &when, nullptr);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

class Closers {
 public:
  Closers() {
    struct sigaction action {};
    action.sa_handler = Nothing;  // without SA_RESTART
    sigaction(kInterrupt, &action, nullptr);
  }

  void Add(int fd, uid_t from) {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[from];
    queue.fds.push_back(fd);
    if (!queue.served && !queue.ready) {
      queue.ready = true;
      ready_.push_back(from);
    }
    if (ready_.size() > idle_) Start(from);
    some_.notify_one();
  }

  CloserRoom RoomOf(uid_t from) {
    const std::lock_guard lock(mutex_);
    const auto it = queues_.find(from);
    if (it == queues_.end() || it->second.fds.size() < kWaitAt) return CloserRoom::kThere;
    const Queue& queue = it->second;
    const bool stuck = queue.served ? Clock::now() - queue.began > kStuckAfter : Full(from);
    return stuck && queue.fds.size() < kNothingAt ? CloserRoom::kNone : CloserRoom::kLater;
  }

  void AwaitNone() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return queues_.empty(); });
  }

 private:
  struct Queue {
    std::deque<int> fds;
    bool served = false, ready = false;  // a thread has it; it is in ready_
    Clock::time_point began;             // the close that is under way
  };

  bool Full(uid_t from) const {
    const bool kept = from == 0 || from == geteuid();
    return threads_ >= kThreadsMax + (kept ? kThreadsKept : 0);
  }

  // Without a thread the next one that has done its work takes the queue.
  void Start(uid_t from) {
    if (Full(from)) return;
    try {
      QuietThread([this] { Work(); }).detach();
      threads_++;
    } catch (const std::system_error&) {
    }
  }

  void Work() {
    sigset_t others;
    sigfillset(&others);
    sigdelset(&others, kInterrupt);
    pthread_sigmask(SIG_SETMASK, &others, nullptr);
    Interrupter interrupter;
    std::unique_lock lock(mutex_);
    interrupter.Set(true);
    for (;;) {
      if (ready_.empty()) {
        idle_++;
        interrupter.Set(false);
        const bool more = some_.wait_for(lock, kIdle, [this] { return !ready_.empty(); });
        idle_--;
        if (!more) break;
        interrupter.Set(true);
      }
      const uid_t from = ready_.front();
      ready_.pop_front();
      Serve(from, lock);
    }
    threads_--;
  }

  void Serve(uid_t from, std::unique_lock<std::mutex>& lock) {
    Queue& queue = queues_.at(from);  // which goes only here
    queue.ready = false;
    queue.served = true;
    for (size_t i = 0; i < kBatch && !queue.fds.empty(); i++) {
      const int fd = queue.fds.front();
      queue.fds.pop_front();
      queue.began = Clock::now();
      lock.unlock();
      close(fd);
      lock.lock();
    }
    queue.served = false;
    if (queue.fds.empty()) {
      queues_.erase(from);
      if (queues_.empty()) none_.notify_all();
    } else {
      queue.ready = true;
      ready_.push_back(from);
    }
  }

  std::mutex mutex_;
  std::condition_variable some_, none_;
  std::map<uid_t, Queue> queues_;
  std::deque<uid_t> ready_;  // have a queue and no thread
  size_t threads_ = 0, idle_ = 0;
};

// Never destroyed: its threads outlive main().
Closers& All() {
  static Closers& all = *new Closers;
  return all;
}

}  // namespace

void CloseElsewhere(int fd, uid_t from) { All().Add(fd, from); }

void CloseTcp(int fd) {
  (void)All();  // its handler
  thread_local Interrupter interrupter;
  interrupter.Set(true);
  close(fd);
  interrupter.Set(false);
}

void AwaitCloses() { All().AwaitNone(); }

CloserRoom RoomToClose(uid_t from) { return All().RoomOf(from); }

}  // namespace postern::daemon
