// SPDX-License-Identifier: Apache-2.0
// ring_pair.h - a stack, a link group and connections set up by hand, for tests of what lies below
// the sockets.
//
// The stack talks to itself, so it has both sides of the link group: one mapping, which is what a
// sanitizer needs to see both ends of a race. No Catch2 here: the stress test and the fuzzer use
// it.
#pragma once
#include <cstdio>
#include <cstdlib>

#include "../kit/known_stream.h"
#include "base/sys.h"
#include "smcd/ring.h"

namespace postern {

class RingWorld {
 public:
  RingWorld() {
    const pstn_uuid stack_id = NewUuid(), lgr_id = NewUuid();
    const int stack_fd = CreateStack(stack_id), lgr_fd = CreateLgr(lgr_id, stack_id, stack_id);
    stack_ = MapStack(stack_fd);
    lgr_ = MapLgr(lgr_fd, &lgr_id);
    if (stack_ == nullptr || lgr_ == nullptr) Die("cannot map a stack and a link group");
    sys::Close(stack_fd);
    sys::Close(lgr_fd);
    for (uint32_t side = 0; side < 2; side++)
      ref_[side] = AddLgrRef(*stack_, side, lgr_id, stack_id);
  }
  ~RingWorld() {
    UnmapLgr(lgr_);
    UnmapStack(stack_);
  }
  RingWorld(const RingWorld&) = delete;
  RingWorld& operator=(const RingWorld&) = delete;

  StackMap& stack() { return *stack_; }
  uint8_t* lgr() { return lgr_; }
  pstn_lgr_ref& ref(uint32_t side) { return stack_->lgrs.Own(LgrIndex(ref_[side])); }

  // End `side` of connection `conn`; its endpoint is the one of that number.
  ConnEnd End(uint32_t side, uint32_t conn = 0) {
    pstn_ep& ep = stack_->eps.Own(EpIndex(conn * 2 + side));
    ep.lgr_idx = ref_[side];
    ep.conn_idx = conn;
    ep.side = static_cast<uint16_t>(side);
    StoreRelaxed(ep.state, static_cast<uint32_t>(PSTN_EP_ESTABLISHED));
    return {&ep, &ref(side), lgr_, &LgrConn(lgr_, conn), side};
  }

  [[noreturn]] static void Die(const char* why) {
    fprintf(stderr, "%s\n", why);
    abort();
  }

 private:
  StackMap* stack_;
  uint8_t* lgr_;
  uint32_t ref_[2];
};

}  // namespace postern
