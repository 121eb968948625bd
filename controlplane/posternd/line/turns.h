// turns.h - whose message is next: users take turns, and the lines of each user among themselves.
// SPDX-License-Identifier: Apache-2.0
//
// However many lines a user has, and however much it sends on them, another user's message waits
// for one of that user's messages at most, and for what the loop does beside.
#pragma once
#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>

#include "../kit/event.h"

namespace postern::daemon {

class Client;

class Turns {
 public:
  // at_once: messages, then the loop sees to answers, timers, new lines.
  // wait: nobody's turn comes while it says so.
  explicit Turns(event_base* base, int at_once = 16, std::function<bool()> wait = {});
  // Until Client::TakeTurn() says that there is nothing.
  void Enter(Client& client);
  void Leave(const Client& client);

 private:
  void Run();
  std::map<uid_t, std::deque<Client*>> waiting_;
  uid_t last_ = 0;  // that had a turn
  const int at_once_;
  const std::function<bool()> wait_;
  Event run_;
};

}  // namespace postern::daemon
