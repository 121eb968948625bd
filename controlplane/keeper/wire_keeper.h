// wire_keeper.h - runs the engine while the programs of the stack do not.
// SPDX-License-Identifier: Apache-2.0
//
//   programs poll          it naps: a look each millisecond; the last one to go to sleep rings it
//   all sleep, or died     it sleeps on the VIs and on its doorbell, and wakes those with news
#pragma once
#include <cstdint>

#include "offhost/wire.h"

namespace postern::keeper {

enum class Company : uint8_t { kPosternd, kAlone };

class WireKeeper {
 public:
  // Takes part from now on; `bundle` is taken, `set` is the epoll set that the keeper sleeps in,
  // `tag` the data of events there. 0 or -errno.
  int Start(int bundle, int set, uint64_t tag);
  bool started() const { return bell_ >= 0; }
  // Does what is due; then how long the keeper may sleep, in ms, and says that it does.
  // `alone`: there is no posternd, and the dead of the family are ours to bury.
  uint64_t Work(Company company);
  // It has got up.
  void Up();
  // Whether it may still be needed: by a program, or a connection that a program has left and that
  // is not in TIME_WAIT. As of a second ago, or, if no program lives, of 0.1 s.
  bool IsNeeded() const { return needed_; }

 private:
  void Sweep(Company company);
  static bool IsAfter(Company company);  // the last program of the stack has ended
  static bool Lives(uint32_t slot, Company company);
  void Watch(uint32_t events);
  void Arm();

  int bell_ = -1, set_ = -1;
  uint64_t tag_ = 0;
  uint32_t watched_ = 0;
  uint64_t swept_ns_ = 0;
  bool needed_ = true;
  bool spoilt_ = false;  // the bell can't be emptied
};

}  // namespace postern::keeper
