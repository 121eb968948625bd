// reapers.h - one process for each family that ends what its dead have left (docs/adr/0014).
// SPDX-License-Identifier: Apache-2.0
//
//   Registry -- Do(stack, job) --> queue of that stack --> line --> postern-reaper, one job at a
//   time
//
// A reaper is started for the first job and stays for a second after the last. One that ends, or
// takes too long over a job, has failed: its jobs and those behind them are answered with
// EOWNERDEAD, and on_failed is told which family that was. Nothing here waits for it.
#pragma once
#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../kit/event.h"
#include "../kit/fd.h"
#include "../kit/uuid.h"
#include "../line/client.h"

namespace postern::daemon {

struct Stack;

class Reapers {
 public:
  // status: 0 or a positive errno. May start further jobs; the stack may be gone by then.
  using Done = std::function<void(int status, const ctl::Msg& answer)>;

  explicit Reapers(event_base* base);
  ~Reapers();

  void SetDirectory(SharedFd fd) { directory_ = std::move(fd); }
  // Rings doorbells in the bells' network namespace; null: there is none.
  void SetSender(SharedFd fd) { sender_ = std::move(fd); }
  // `done` is called from the event loop, never from here.
  void Do(const Stack& stack, const ctl::Msg& job, Done done = {});
  // The stack is being let go of: no job of it is answered any more.
  void Forget(const Stack& stack);
  // A child of this process has ended (Keepers, which waits for all). Whether it was one of ours.
  void Ended(pid_t pid, int status);
  std::function<const Stack*(const pstn_uuid&)> find;
  std::function<void(const pstn_uuid& stack, const std::string& why)> on_failed;
  uint64_t failed() const { return failed_; }
  // How a reaper is started, with its end of the line, and killed. A fuzzer plays them instead.
  std::function<int(const Stack& stack, int line, pid_t& pid)> start;  // 0 or an errno
  std::function<void(pid_t)> end;

 private:
  struct Job {
    ctl::Msg ask;
    Done done;
  };
  struct Reaper;

  Reaper& Of(const pstn_uuid& stack);
  void Pump(Reaper& reaper);
  bool Start(Reaper& reaper, const Stack& stack);
  void Tell(Reaper& reaper, const Stack& stack);
  void OnAnswer(Reaper& reaper, const ctl::Msg& answer);
  void Retire(Reaper& reaper);
  void Fail(Reaper& reaper, const std::string& why);
  void PumpOthers();
  size_t Running() const;
  void Bury();

  event_base* base_;
  SharedFd directory_, sender_;
  std::map<pstn_uuid, std::unique_ptr<Reaper>, UuidLess> reapers_;
  std::vector<std::unique_ptr<Reaper>> dead_;  // a call of theirs may still be on the way back
  uint64_t failed_ = 0;
  Event bury_, again_;
};

}  // namespace postern::daemon
