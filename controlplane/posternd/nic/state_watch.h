// state_watch.h - tells when a kernel's socket that a filter stands on has left its state.
// SPDX-License-Identifier: Apache-2.0
//
// A listener that shutdown() or connect() to no address takes out of LISTEN is not destroyed, so
// SKNLGRP_INET_TCP_DESTROY says nothing of it. But poll() says POLLHUP of it at once, and each of
// its clients only POLLIN: so the sockets are in an epoll set that is asked for no event (the
// kernel adds POLLERR and POLLHUP), which wakes posternd for nothing else.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "../kit/event.h"
#include "../kit/fd.h"

namespace postern::daemon {

class StateWatch {
 public:
  explicit StateWatch(event_base* base);
  StateWatch(const StateWatch&) = delete;
  StateWatch& operator=(const StateWatch&) = delete;

  // A socket is watched as long as this lives. It has to go before its descriptor is closed: others
  // have the socket, too, so the set would keep it.
  class Hold {
   public:
    Hold(StateWatch& watch, int fd, uint64_t token) : watch_(watch), fd_(fd), token_(token) {}
    ~Hold() { watch_.Drop(fd_, token_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    StateWatch& watch_;
    int fd_;
    uint64_t token_;
  };

  // `left` is called each time that it may have left its state, and drops the hold if it has; it
  // may be called without cause. Null: not watched, as posternd has no room.
  using Left = std::function<void()>;
  std::unique_ptr<Hold> Add(int fd, Left left);

 private:
  void Drop(int fd, uint64_t token);
  void Look();

  UniqueFd set_;
  Event event_;
  uint64_t next_ = 1;
  std::map<uint64_t, Left> watched_;
};

}  // namespace postern::daemon
