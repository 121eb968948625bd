// SPDX-License-Identifier: Apache-2.0
// bits.h - takes the bits of an event map, and no more at a time than is good for the others.
//
// The peer sets the bits, as many and as often as it likes. A look that took them all would take
// longer than all other work: so it has a budget, leaves the rest where it is, and the next one
// goes on from there.
#pragma once
#include <bit>

#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern {

inline constexpr uint32_t kLookBudget = 512, kWordCost = 8;
inline constexpr uint32_t kPutBack = ~0u;  // instead of a cost: this bit stays, and the look ends

// Calls `fn` for each connection whose bit was set; it returns what that has cost.
template <typename Fn>
void TakeBits(pstn_evmap& map, uint32_t& hand, Fn fn) {
  if (LoadRelaxed(map.summary) == 0) return;
  const uint64_t words = Exchange(map.summary, 0u);
  const uint32_t start = LoadRelaxed(hand) % 64;
  uint64_t left = std::rotr(words, static_cast<int>(start)), spent = 0;
  for (; left != 0; left &= left - 1) {
    const uint32_t w = (start + static_cast<uint32_t>(std::countr_zero(left))) % 64;
    uint64_t bits = spent < kLookBudget ? Exchange(map.leaf[w], 0u) : 0;
    bool end = spent >= kLookBudget;
    spent += kWordCost;
    for (; bits != 0 && !end; bits &= bits - 1) {
      const uint32_t cost = fn(w * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
      if (cost == kPutBack) break;
      spent += cost;
      end = spent >= kLookBudget && (bits & (bits - 1)) != 0;
    }
    if (bits == 0 && !end) continue;
    if (bits != 0) FetchOr(map.leaf[w], bits);
    FetchOr(map.summary, std::rotl(left, static_cast<int>(start)));
    StoreRelaxed(hand, w);
    return;
  }
  StoreRelaxed(hand, 0u);
}

}  // namespace postern
