// close_watch.h - sockets that their last owner has closed, by inotify(7) of the socket's inode.
// SPDX-License-Identifier: Apache-2.0
//
// A watch keeps neither the socket nor its port. No other socket costs more for it: the kernel's
// news of all TCP sockets (SKNLGRP_*_TCP_DESTROY) make the end of each of them slower, by more with
// each daemon that takes them.
#pragma once
#include <cstdint>
#include <functional>
#include <map>

#include "../kit/event.h"
#include "../kit/fd.h"

namespace postern::daemon {

class CloseWatch {
 public:
  // closed: told from the event loop. lost: some that were closed are not told of.
  CloseWatch(event_base* base, std::function<void(uint64_t tag)> closed,
             std::function<void()> lost);

  // While the socket is open here. False: it can't be watched. The same socket keeps its tag.
  bool Add(int socket, uint64_t tag);

 private:
  bool Works();
  bool Watch(int socket, uint64_t tag);
  void Take(const std::function<void(uint64_t tag)>& closed);

  const std::function<void(uint64_t)> closed_;
  const std::function<void()> lost_;
  const size_t most_;
  const UniqueFd inotify_;
  std::map<int, uint64_t> tags_;  // by watch
  const bool works_;
  Event readable_;
};

}  // namespace postern::daemon
