// listener_watch.h - listeners that have ended without a word.
// SPDX-License-Identifier: Apache-2.0
//
// A listener is published with its socket in hand, which is then closed: a copy kept here would
// keep the port taken. So from then on only the kernel knows whether it still listens, and its port
// may be another user's by now. The socket is known by its cookie, which no other one ever has.
//
//   closed             the socket is watched (close_watch.h); of one that we have not seen, or that
//                      can't be watched, the kernel tells as of each TCP socket that is freed
//                      (SKNLGRP_*_TCP_DESTROY), which makes all of them slower: only while there is
//                      such a listener
//   closed elsewhere   of others' listeners the broker tells, which hears of them itself
//   before first use   asked of the kernel's table (LookAt), when a program is to be introduced
//   shut down          asked of the same, now and then
//
// Of our own network namespace alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "../kit/event.h"
#include "../kit/netlink.h"
#include "../kit/uuid.h"
#include "close_watch.h"
#include "directory.h"

namespace postern::daemon {

class ListenerWatch {
 public:
  // `ended` may be told of one that is withdrawn already.
  ListenerWatch(event_base* base, std::function<void(uint64_t cookie)> ended);

  void Add(const Listener& listener);
  // That stack has no listener with this socket any more. So who offers one socket again and again,
  // for ever new stacks, has no more kept here than is listed. False: it was not known.
  bool Forget(const Listener& listener);
  // Its close is heard of, for one that was added. The socket is open here, or -1.
  void Hear(const Listener& listener, int socket);
  // Asks for each of that stack. `ended` is called from in here.
  void LookAt(const pstn_uuid& stack);
  // A guest may ask again and again: some time has to have passed since the last look for one.
  void LookForGuest(const pstn_uuid& stack);

 private:
  using Moment = std::chrono::steady_clock::time_point;
  using Place = std::tuple<uint64_t, uint64_t, uint64_t>;  // cookie, stack
  static Place PlaceOf(const Listener& listener);
  void Drain();
  void LookAround();
  void LookAtAll();
  void Ended(uint64_t cookie);

  event_base* base_;
  std::function<void(uint64_t)> ended_;
  std::map<Place, Listener> all_;                // once for each socket and stack
  std::map<pstn_uuid, Moment, UuidLess> rests_;  // for guests: until then
  uint64_t seen_ = 0;                            // of those asked for now and then, the last one
  CloseWatch closes_;
  std::set<uint64_t> unwatched_;  // cookies of those whose close the kernel tells with all others
  // While there are such.
  std::unique_ptr<Netlink> deaths_;
  std::unique_ptr<Event> readable_;
  Event now_and_then_;
};

}  // namespace postern::daemon
