// tickets.h - what a stack of another user's shows to a new posternd (lib/life/depart.h).
// SPDX-License-Identifier: Apache-2.0
//
// A posternd has guests: stacks of processes that were of a stack of its own user's, until they
// became another user. It has seen that happen; the posternd after it has not. So each guest's
// stack has a ticket: a hash of its id and its user, by a key in the runtime directory, which only
// the directory's user can read. A number that is guessed is refused.
#pragma once
#include <sys/types.h>

#include <string>
#include <utility>

#include "abi/postern_abi.h"
#include "base/siphash.h"

namespace postern::daemon {

class Tickets {
 public:
  // The key is in that file; the first that is asked for makes it, if there is none.
  explicit Tickets(std::string path) : path_(std::move(path)) {}
  uint64_t Of(const pstn_uuid& stack, uid_t uid);  // never 0

 private:
  void Load();

  const std::string path_;
  bool loaded_ = false;
  SipKey key_{};
};

}  // namespace postern::daemon
