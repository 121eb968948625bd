// runtime_dir.h - DIR with a lock, a pid file and a socket: one posternd, or one broker, for each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "fd.h"

namespace postern::daemon {

class RuntimeDir {
 public:
  // kUser: posternd.sock, for the user alone. kEveryone: broker.sock.
  enum class Audience : uint8_t { kUser, kEveryone };
  explicit RuntimeDir(std::string path, Audience audience = Audience::kUser)
      : path_(std::move(path)),
        given_(path_),
        name_(audience == Audience::kUser ? "posternd" : "broker"),
        everyone_(audience == Audience::kEveryone) {}

  // Makes the directory, or checks that no other user could have put anything into it. 0 or -errno.
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

  std::string Own(const char* suffix) const { return path_ + "/" + name_ + suffix; }

  std::string path_, given_;  // resolved; as the programs know it
  const std::string name_;
  const bool everyone_;
  UniqueFd lock_;
};

}  // namespace postern::daemon
