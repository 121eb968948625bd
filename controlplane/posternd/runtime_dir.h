// runtime_dir.h - DIR with posternd.lock, posternd.pid and posternd.sock: one posternd for each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "fd.h"

namespace postern::daemon {

class RuntimeDir {
 public:
  explicit RuntimeDir(std::string path) : path_(std::move(path)), given_(path_) {}

  // Makes the directory, or checks that nobody else could have put anything into it. 0 or -errno.
  int Prepare();
  // 0: it is ours until we end. -EALREADY: another posternd lives and answers.
  int Lock();
  // 0 or -errno. After Lock().
  int WritePid() const;
  // The listening socket; replaces what an earlier posternd left. Not ok() with errno set.
  UniqueFd Listen() const;
  // The same for its abstract name (ctl/proto.h).
  UniqueFd ListenAbstract() const;
  // Before leaving, while the lock is still held.
  void RemoveSocket() const;

  std::string File(const char* name) const { return path_ + "/" + name; }

 private:
  bool SomebodyAnswers() const;

  std::string path_, given_;  // resolved; as the programs know it
  UniqueFd lock_;
};

}  // namespace postern::daemon
