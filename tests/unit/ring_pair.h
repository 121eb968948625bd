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

  pstn_stack& stack() { return *stack_; }
  uint8_t* lgr() { return lgr_; }
  pstn_lgr_ref& ref(uint32_t side) { return stack_->lgrs[ref_[side]]; }

  // End `side` of connection `conn`; its endpoint is the one of that number.
  ConnEnd End(uint32_t side, uint32_t conn = 0) {
    pstn_ep& ep = stack_->eps[conn * 2 + side];
    ep.lgr_idx = ref_[side];
    ep.conn_idx = conn;
    ep.side = side;
    StoreRelaxed(ep.state, static_cast<uint32_t>(PSTN_EP_ESTABLISHED));
    return {&ep, &ref(side), lgr_, &LgrConn(lgr_, conn), side};
  }

  [[noreturn]] static void Die(const char* why) {
    fprintf(stderr, "%s\n", why);
    abort();
  }

 private:
  pstn_stack* stack_;
  uint8_t* lgr_;
  uint32_t ref_[2];
};

// The byte of a test stream at a position: no two nearby stretches are alike, and nobody has to
// remember what was sent.
inline uint8_t StreamByte(uint64_t seed, uint64_t pos) {
  return static_cast<uint8_t>((pos + seed) * 0x9e3779b97f4a7c15u >> 56);
}
inline void FillStream(uint8_t* at, size_t bytes, uint64_t seed, uint64_t pos) {
  for (size_t i = 0; i < bytes; i++) at[i] = StreamByte(seed, pos + i);
}
// Index of the first wrong byte, or `bytes`.
inline size_t CheckStream(const uint8_t* at, size_t bytes, uint64_t seed, uint64_t pos) {
  for (size_t i = 0; i < bytes; i++) {
    if (at[i] != StreamByte(seed, pos + i)) return i;
  }
  return bytes;
}

// splitmix64: small, seeded, the same everywhere.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  size_t Below(size_t limit) { return static_cast<size_t>(Next() % limit); }
  // Sizes as programs use them: mostly small, now and then large.
  size_t Size(size_t largest) {
    const size_t limit = size_t{1} << Below(64 - static_cast<size_t>(__builtin_clzll(largest)));
    return 1 + Below(limit < largest ? limit * 2 : largest) % largest;
  }

 private:
  uint64_t state_;
};

}  // namespace postern
