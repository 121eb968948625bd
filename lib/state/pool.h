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

// The pool of the entries of `table` before `end`. PSTN_NONE when all are taken, or `most` of them
// are, or the list says nonsense.
template <typename Entries>
uint32_t PoolTake(pstn_pool& pool, const Entries& table, uint32_t most = PSTN_NONE,
                  uint32_t end = PSTN_NONE) {
  using I = decltype(table.IndexAt(nullptr));
  end = table.Clamp(end);
  if (FetchAdd(pool.used, 1u) >= most) {
    FetchSub(pool.used, 1u);
    return PSTN_NONE;
  }
  uint64_t head = LoadAcquire(pool.head);  // [Q1]
  while (static_cast<uint32_t>(head) < end) {
    uint32_t idx = static_cast<uint32_t>(head);
    uint64_t after = ((head >> 32) + 1) << 32 | LoadRelaxed(table.Own(I(idx)).next);
    if (CompareExchange(pool.head, head, after)) return idx;  // [Q1]
  }
  uint32_t fresh = LoadRelaxed(pool.hw);
  while (fresh < end) {
    if (CompareExchange(pool.hw, fresh, fresh + 1)) return fresh;
  }
  FetchSub(pool.used, 1u);
  return PSTN_NONE;
}

template <typename Entries>
void PoolGive(pstn_pool& pool, const Entries& table, uint32_t idx) {
  using I = decltype(table.IndexAt(nullptr));
  auto* const entry = table.At(I(idx));
  if (entry == nullptr) return;
  uint64_t head = LoadRelaxed(pool.head);
  do {
    StoreRelaxed(entry->next, static_cast<uint32_t>(head));
  } while (!CompareExchange(pool.head, head, ((head >> 32) + 1) << 32 | idx));  // [Q1]
  FetchSub(pool.used, 1u);
}

}  // namespace postern
