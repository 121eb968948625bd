// reached.h - listeners that a client has reached by a connection of the kernel's, and where.
// SPDX-License-Identifier: Apache-2.0
//
// The server of such a connection says that no address was translated on the way, so that the
// client may go to the listener without the kernel (kLearn). That is believed for the address that
// the client had connected to, and for no other: a server that names another one would get the
// connections of all who connect there.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>

#include "abi/postern_abi.h"
#include "base/ip_address.h"

namespace postern::daemon {

class Reached {
 public:
  void Note(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen, const pstn_addr& where) {
    if (AddrIsAny(where) || where.port == 0) return;
    if (all_.size() >= kMost) all_.pop_front();
    all_.push_back({stack, ep_idx, ep_gen, where});
  }
  // Whether it was, since it was last asked: each connection proves it once.
  bool Take(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen, const pstn_addr& where) {
    const auto it = std::find_if(all_.begin(), all_.end(), [&](const One& one) {
      return one.stack.hi == stack.hi && one.stack.lo == stack.lo && one.ep_idx == ep_idx &&
             one.ep_gen == ep_gen && SameName(one.where, where);
    });
    if (it == all_.end()) return false;
    all_.erase(it);
    return true;
  }

 private:
  // Handshakes that are under way at once; of more, the oldest are not learnt from.
  static constexpr size_t kMost = 256;
  struct One {
    pstn_uuid stack;
    uint32_t ep_idx, ep_gen;
    pstn_addr where;
  };
  std::deque<One> all_;
};

}  // namespace postern::daemon
