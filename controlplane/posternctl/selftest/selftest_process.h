// selftest_process.h - a child of the self-test's: it ends when we do.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "selftest_io.h"

namespace postern::ctl_command::selftest {

struct Start {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // NAME=value; of POSTERN_* nothing else
  int netns = -1;
  std::string log;  // standard error is appended to it
};

class Process {
 public:
  explicit Process(const Start& start);
  ~Process();  // SIGKILL
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  // Signals it, and waits for its end where that is one.
  void Signal(int number);
  void End(int number);
  // Standard input and output, by lines. Read(): empty if none came in time.
  void Write(const std::string& line);
  std::string Read(unsigned timeout_ms);
  int out() const { return out_.get(); }

 private:
  pid_t pid_ = -1;
  Fd in_, out_;
  std::string buffer_;
};

// Beside posternctl in the build tree, around it when installed; empty if it is not there.
std::string Sibling(const char* built, const char* installed);

}  // namespace postern::ctl_command::selftest
