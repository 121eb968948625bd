// pid_namespaces.h - process ids of other PID namespaces, as they are in posternd's.
// SPDX-License-Identifier: Apache-2.0
//
// A process of a stack may live in another PID namespace than posternd (unshare, a container). Its
// slot says which process it is *there*; what may be watched is said by the kernel, here.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <utility>

namespace postern::daemon {

uint32_t OwnPidnsIno();
// Whether process `pid`, of ours, is `there` in its own PID namespace.
bool IsPidThere(pid_t pid, pid_t there);
// The process that is `there` in the PID namespace with that inode and started at `start_time` (0:
// any). 0: none that we can see. Slow: it looks at every process.
pid_t FindPid(uint32_t pidns, pid_t there, uint64_t start_time);
// The same for many at a time, by one look at every process: those that were there before the first
// question.
class PidsThere {
 public:
  pid_t Find(uint32_t pidns, pid_t there, uint64_t start_time);

 private:
  bool looked_ = false;
  std::multimap<std::pair<uint32_t, pid_t>, pid_t> here_;
};

}  // namespace postern::daemon
