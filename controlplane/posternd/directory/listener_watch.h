// listener_watch.h - listeners that have ended without a word.
// SPDX-License-Identifier: Apache-2.0
//
// A listener is published with its socket in hand, which is then closed: a copy kept here would
// keep the port taken. So from then on only the kernel knows whether it still listens, and its port
// may be another user's by now. The socket is known by its cookie, which no other one ever has.
//
//   closed             the kernel tells of each TCP socket that is freed (SKNLGRP_*_TCP_DESTROY)
//   before first use   asked of the kernel's table (LookAt), when a program is to be introduced
//   shut down          asked of the same, now and then
//
// Of our own network namespace alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>

#include "../kit/event.h"
#include "../kit/netlink.h"
#include "../kit/uuid.h"
#include "directory.h"

namespace postern::daemon {

class ListenerWatch {
 public:
  // `ended` may be told of one that is withdrawn already.
  ListenerWatch(event_base* base, std::function<void(uint64_t cookie)> ended);

  void Add(const Listener& listener);
  // Asks for each of that stack. `ended` is called from in here.
  void LookAt(const pstn_uuid& stack);
  // A guest may ask again and again: some time has to have passed since the last look for one.
  void LookForGuest(const pstn_uuid& stack);

 private:
  using Moment = std::chrono::steady_clock::time_point;
  void Drain();
  void LookAround();
  void Ended(uint64_t cookie);

  std::function<void(uint64_t)> ended_;
  std::multimap<uint64_t, Listener> all_;        // by cookie
  std::map<pstn_uuid, Moment, UuidLess> rests_;  // for guests: until then
  uint64_t seen_ = 0;                            // of those asked for now and then, the last one
  Netlink deaths_;
  Event readable_, now_and_then_;
};

}  // namespace postern::daemon
