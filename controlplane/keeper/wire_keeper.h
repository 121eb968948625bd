// wire_keeper.h - runs the engine while the programs of the stack do not.
// SPDX-License-Identifier: Apache-2.0
//
//   programs poll          it naps: a look each millisecond; rung by the last one who goes to sleep
//   all sleep, or died     it sleeps on the VIs and on its doorbell, and wakes whom it has news for
#pragma once
#include <cstdint>

#include "sock/wire.h"

namespace postern::keeper {

class WireKeeper {
 public:
  // Takes part from now on; `bundle` is taken, `set` is the epoll set that the keeper sleeps in,
  // `tag` the data of events there. 0 or -errno.
  int Start(int bundle, int set, uint64_t tag);
  bool started() const { return bell_ >= 0; }
  // Does what is due; then how long the keeper may sleep, in ms, and says that it does.
  uint64_t Work();
  // It has got up.
  void Up();
  // Whether somebody may still need it: a program, or a connection that a program has left.
  bool IsNeeded() const;

 private:
  void Watch(uint32_t events);

  int bell_ = -1, set_ = -1;
  uint64_t tag_ = 0;
  uint32_t watched_ = 0;
  uint64_t swept_ns_ = 0;
};

}  // namespace postern::keeper
