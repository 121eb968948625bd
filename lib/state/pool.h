// SPDX-License-Identifier: Apache-2.0
// pool.h - hands out indices of a table: a lock-free free list, then the part never used.
//
// A Treiber stack whose head carries a tag, so that an index which was taken and given back in
// between is noticed (ABA). A process that dies between taking an index and using it leaks that
// one index until the stack ends; nothing else breaks.
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern {

// `next(i)` yields a reference to the link word of entry i. PSTN_NONE when all are taken, or `most`
// of them are.
template <typename NextFn>
uint32_t PoolTake(pstn_pool& pool, uint32_t limit, NextFn next, uint32_t most = PSTN_NONE) {
  if (FetchAdd(pool.used, 1u) >= most) {
    FetchSub(pool.used, 1u);
    return PSTN_NONE;
  }
  uint64_t head = LoadAcquire(pool.head);  // [Q1]
  while (static_cast<uint32_t>(head) < limit) {
    uint32_t idx = static_cast<uint32_t>(head);
    uint64_t after = ((head >> 32) + 1) << 32 | LoadRelaxed(next(idx));
    if (CompareExchange(pool.head, head, after)) return idx;  // [Q1]
  }
  uint32_t fresh = LoadRelaxed(pool.hw);
  while (fresh < limit) {
    if (CompareExchange(pool.hw, fresh, fresh + 1)) return fresh;
  }
  FetchSub(pool.used, 1u);
  return PSTN_NONE;
}

template <typename NextFn>
void PoolGive(pstn_pool& pool, uint32_t idx, NextFn next) {
  uint64_t head = LoadRelaxed(pool.head);
  do {
    StoreRelaxed(next(idx), static_cast<uint32_t>(head));
  } while (!CompareExchange(pool.head, head, ((head >> 32) + 1) << 32 | idx));  // [Q1]
  FetchSub(pool.used, 1u);
}

}  // namespace postern
