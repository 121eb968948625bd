// SPDX-License-Identifier: Apache-2.0
// held.cc - see held.h.
#include "event/held.h"

#include <algorithm>

#include "endpoint/posts.h"
#include "smcd/hold.h"

namespace postern {
namespace {

// The peer's time for connection `conn`; UINT64_MAX: it holds nothing back, or no longer.
uint64_t HeldOf(Family& fam, uint8_t* lgr, uint32_t side, uint64_t& leaf, uint32_t conn) {
  const uint64_t bit = 1ull << conn % 64;
  const uint64_t& word = LgrConn(lgr, conn).ctl[side ^ 1u].held;
  uint64_t held = LoadRelaxed(word);
  if (held != 0 && held != PSTN_HELD_NEVER && !HoldIsOver(held)) return held & ~PSTN_HELD_CORK;
  if (HoldIsOver(held)) PostHeldOver(fam.bells, lgr, side, conn);
  FetchAnd(leaf, ~bit);
  FenceAfterLocked();  // [F1] against AnnounceHold: the peer may hold back again
  const uint64_t now = LoadRelaxed(word);
  if (now == held || now == 0 || now == PSTN_HELD_NEVER) return UINT64_MAX;
  FetchOr(leaf, bit);  // put back, for the threads that sleep next
  FenceAfterLocked();  // [F1]
  return now & ~PSTN_HELD_CORK;
}

uint64_t HeldIn(Family& fam, uint8_t* lgr, uint32_t side) {
  pstn_evmap& map = LgrEvmap(lgr, side, PSTN_EVMAP_HELD);
  uint64_t soonest = UINT64_MAX;
  for (uint64_t words = LoadRelaxed(map.summary); words != 0; words &= words - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctzll(words));
    uint64_t& leaf = map.leaf[i];
    for (uint64_t bits = LoadRelaxed(leaf); bits != 0; bits &= bits - 1) {
      const uint32_t conn = i * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
      soonest = std::min(soonest, HeldOf(fam, lgr, side, leaf, conn));
    }
    if (LoadRelaxed(leaf) != 0) continue;
    FetchAnd(map.summary, ~(1ull << i));
    FenceAfterLocked();  // [F1] against SetBits, which sets the other bit first
    if (LoadRelaxed(leaf) == 0) continue;
    FetchOr(map.summary, 1ull << i);
    FenceAfterLocked();  // [F1]
  }
  return soonest;
}

}  // namespace

uint64_t HeldUntil(Family& fam) {
  uint64_t soonest = UINT64_MAX;
  EachLgr(fam, [&](uint8_t* lgr, const pstn_lgr_ref& ref) {
    const uint32_t side = LoadRelaxed(ref.side) & 1u;
    if (LoadRelaxed(LgrEvmap(lgr, side, PSTN_EVMAP_HELD).summary) != 0) [[unlikely]]
      soonest = std::min(soonest, HeldIn(fam, lgr, side));
  });
  return soonest;
}

}  // namespace postern
