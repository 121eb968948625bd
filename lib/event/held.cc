// SPDX-License-Identifier: Apache-2.0
// held.cc - see held.h.
#include "event/held.h"

#include <algorithm>
#include <bit>

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

// The peer sets the bits, as many as it likes, and says of each that its time is yet to come. What
// a look does not come to is for the next one, a moment later.
constexpr uint32_t kLooksOfGroup = 64, kLooksMost = 512;

// `hand`: the word to begin with; `looks` counts. 0: some are left.
uint64_t HeldIn(Family& fam, uint8_t* lgr, uint32_t side, uint32_t& hand, uint32_t& looks) {
  pstn_evmap& map = LgrEvmap(lgr, side, PSTN_EVMAP_HELD);
  const uint32_t start = LoadRelaxed(hand) % 64, most = looks + kLooksOfGroup;
  uint64_t soonest = UINT64_MAX;
  uint64_t words = std::rotr(LoadRelaxed(map.summary), static_cast<int>(start));
  for (; words != 0; words &= words - 1) {
    const uint32_t i = (start + static_cast<uint32_t>(std::countr_zero(words))) % 64;
    if (looks >= most) {
      StoreRelaxed(hand, i);
      return 0;
    }
    uint64_t& leaf = map.leaf[i];
    for (uint64_t bits = LoadRelaxed(leaf); bits != 0; bits &= bits - 1) {
      const uint32_t conn = i * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      soonest = std::min(soonest, HeldOf(fam, lgr, side, leaf, conn));
      looks++;
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

// Each link group has its turn, so that no peer's bits keep the time of another's from being seen.
uint64_t HeldUntil(Family& fam) {
  StackMap& s = Stack(fam);
  const uint32_t end = s.lgrs.Clamp(LoadRelaxed(s.hdr.lgrs_hw));
  const uint32_t first = LoadRelaxed(fam.beds->held_group);
  uint64_t soonest = UINT64_MAX;
  uint32_t looks = 0;
  for (uint32_t n = 0; n < end; n++) {
    const uint32_t i = (first + n) % end;
    const LgrHere at = LgrAt(fam.view, LgrIndex(i));
    if (at.base == nullptr || LoadAcquire(at.ref->state) == 0) continue;  // [L1]
    const uint32_t side = LoadRelaxed(at.ref->side) & 1u;
    if (LoadRelaxed(LgrEvmap(at.base, side, PSTN_EVMAP_HELD).summary) == 0) [[likely]]
      continue;
    if (looks >= kLooksMost) {
      StoreRelaxed(fam.beds->held_group, i);
      return 0;
    }
    soonest = std::min(soonest, HeldIn(fam, at.base, side, fam.beds->held_word[i], looks));
  }
  return soonest;
}

}  // namespace postern
