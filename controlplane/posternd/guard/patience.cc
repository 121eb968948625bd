// patience.cc - see patience.h.
// SPDX-License-Identifier: Apache-2.0
#include "patience.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "quiet_thread.h"

namespace postern::daemon {
namespace {

constexpr size_t kAskersMax = 256;  // stuck ones included
constexpr auto kLook = std::chrono::milliseconds(3);
constexpr int kAsleepMax = 3;  // looks that find it asleep, one after the other
constexpr int64_t kWorkMostNs = 20'000'000;
constexpr auto kPauseFirst = std::chrono::milliseconds(500),
               kPauseMost = std::chrono::milliseconds(60'000);

using AskClock = std::chrono::steady_clock;

// A thread that does one thing at a time.
class Asker {
 public:
  // Throws std::system_error: no thread can be had.
  static std::shared_ptr<Asker> Make() {
    auto self = std::make_shared<Asker>();
    QuietThread([self] { self->Serve(); }).detach();
    return self;
  }

  enum class End : uint8_t { kDone, kStuck, kTooMuch };
  End Do(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    work_ = std::move(work);
    busy_ = true;
    changed_.notify_all();
    const int64_t worked = WorkedNs();
    for (int asleep = 0; asleep < kAsleepMax;) {
      if (changed_.wait_for(lock, kLook, [this] { return !busy_; })) return End::kDone;
      if (WorkedNs() - worked >= kWorkMostNs) return End::kTooMuch;
      // One that waits for a processor is not stuck, however long it waits.
      asleep = IsAsleep() ? asleep + 1 : 0;
    }
    return End::kStuck;
  }
  bool busy() {
    const std::lock_guard lock(mutex_);
    return busy_;
  }

 private:
  void Serve() {
    std::unique_lock lock(mutex_);
    tid_ = gettid();
    (void)pthread_getcpuclockid(pthread_self(), &clock_);
    for (;;) {
      changed_.wait(lock, [this] { return busy_; });
      std::function<void()> work = std::exchange(work_, {});
      lock.unlock();
      work();
      work = {};  // with what it holds, before anyone hears that it is done
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  // 0: it has not begun.
  int64_t WorkedNs() const {
    timespec used{};
    if (tid_ == 0 || clock_gettime(clock_, &used) != 0) return 0;
    return int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
  }
  bool IsAsleep() const {
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid_);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char* const name_end = strrchr(text, ')');
    return name_end != nullptr && name_end[1] == ' ' && (name_end[2] == 'D' || name_end[2] == 'S');
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool busy_ = false;
  pid_t tid_ = 0;
  clockid_t clock_{};
};

// A user of whom something did not end in time.
struct Late {
  std::shared_ptr<Asker> asker;  // that has it; null: it has come to its end
  AskClock::time_point not_before;
  std::chrono::milliseconds pause{};
};

class Askers {
 public:
  bool Do(uid_t whose, std::function<void()> work) {
    const auto late = late_.find(whose);
    if (late != late_.end() && !MayAsk(late->second)) return false;
    const std::shared_ptr<Asker> asker = Take();
    if (asker == nullptr) return false;
    const Asker::End end = asker->Do(std::move(work));
    if (end == Asker::End::kDone) {
      idle_.push_back(asker);
      if (late != late_.end() && AskClock::now() - late->second.not_before > kPauseMost)
        late_.erase(late);
      return true;
    }
    Late& now = late_[whose];
    // What only takes long keeps to a small share of the daemon's time so; what is stuck, to none.
    const bool is_stuck = end == Asker::End::kStuck;
    now.pause = std::clamp(now.pause * (is_stuck ? 2 : 1), kPauseFirst, kPauseMost);
    now.not_before = AskClock::now() + now.pause;
    now.asker = asker;
    return false;
  }

 private:
  bool MayAsk(Late& late) {
    if (late.asker != nullptr && late.asker->busy()) return false;
    if (late.asker != nullptr) idle_.push_back(std::exchange(late.asker, nullptr));
    return AskClock::now() >= late.not_before;
  }
  std::shared_ptr<Asker> Take() {
    if (!idle_.empty()) {
      std::shared_ptr<Asker> one = std::move(idle_.back());
      idle_.pop_back();
      return one;
    }
    if (made_ >= kAskersMax) return nullptr;
    try {
      std::shared_ptr<Asker> fresh = Asker::Make();
      made_++;
      return fresh;
    } catch (const std::system_error&) {
      return nullptr;
    }
  }

  std::vector<std::shared_ptr<Asker>> idle_;
  std::map<uid_t, Late> late_;
  size_t made_ = 0;
};

// Never destroyed: its threads outlive main().
Askers& AllAskers() {
  static Askers& all = *new Askers;
  return all;
}

}  // namespace

bool DoneInTime(uid_t whose, std::function<void()> work) {
  if (whose == geteuid() || whose == 0) return work(), true;
  return AllAskers().Do(whose, std::move(work));
}

int SocketName(int fd, uid_t whose, sockaddr_storage& name, socklen_t& size) {
  struct Answer {
    int error = 0;
    sockaddr_storage name{};
    socklen_t size = sizeof(sockaddr_storage);
  };
  const std::shared_ptr<const int> copy(new int(fcntl(fd, F_DUPFD_CLOEXEC, 0)), [](const int* one) {
    if (*one >= 0) close(*one);
    delete one;
  });
  if (*copy < 0) return -errno;
  const auto answer = AnswerInTime(whose, [copy] {
    Answer a;
    if (getsockname(*copy, reinterpret_cast<sockaddr*>(&a.name), &a.size) != 0) a.error = -errno;
    return a;
  });
  if (!answer) return -EBUSY;
  name = answer->name;
  size = answer->size;
  return answer->error;
}

}  // namespace postern::daemon
