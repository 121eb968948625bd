// bells.h - doorbells that can be rung from every network namespace of the host.
// SPDX-License-Identifier: Apache-2.0
//
// A doorbell is an abstract Unix socket (smcd/notify.h), and abstract names are of one network
// namespace. So there is a namespace that has nothing but doorbells, and the broker hands out
// sockets that were made in there. Each is bound already, to its own name or, if it is only to
// ring others, to one of the kernel's choice: no stack can take the name of another's doorbell.
//
// The namespace has to outlive the broker, whose next one hands out doorbells to the peers of the
// stacks that are there: it is kept by a bind mount, as `ip netns` does it.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "../kit/fd.h"
#include "smcd/notify.h"

namespace postern::daemon {

class BellSpace {
 public:
  BellSpace() = default;
  ~BellSpace();
  BellSpace(const BellSpace&) = delete;
  BellSpace& operator=(const BellSpace&) = delete;

  // `keep`: the file over which the namespace is mounted. Needs CAP_SYS_ADMIN; the caller can give
  // it up afterwards. 0 or -errno.
  int Enter(const std::string& keep);
  bool ok() const { return thread_.joinable(); }
  // A bell; waiter PSTN_NONE: a socket that only rings. Not ok() with errno set.
  UniqueFd Open(const BellName& name);

 private:
  enum class Turn : uint8_t { kNobody, kAsked, kAnswered, kEnd };
  void Serve(const std::string& keep);

  // A network namespace is a thread's: this one lives in there, and makes sockets.
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Turn turn_ = Turn::kNobody;
  BellName name_{};
  int answer_ = 0;  // fd or -errno
};

}  // namespace postern::daemon
