// SPDX-License-Identifier: Apache-2.0
// pool.h - hands out indices of a table: a free list, then the part never used.
//
// Under the pool's lock, which survives its owner. A taken entry is in the hands of its taker's
// process (in_hands.h) until others can find it, so no death costs an index: it is marked before it
// leaves the list, and on its way back until it is there. An owner that dies between two stores
// leaves a list that is whole, at worst with a first entry that is marked, which the reaper clears
// (life/hands.cc).
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"
#include "base/lock.h"
#include "state/in_hands.h"

namespace postern {

inline uint32_t PoolFirst(const pstn_pool& pool) {
  return static_cast<uint32_t>(LoadRelaxed(pool.head));
}
// How many are taken; a moment's answer.
inline uint32_t PoolUsed(const pstn_pool& pool) {
  return static_cast<uint32_t>(LoadRelaxed(pool.head) >> 32);
}
inline void PoolSetHead(pstn_pool& pool, uint32_t first, uint32_t used) {
  DeathFence();  // [Z1]
  StoreRelaxed(pool.head, static_cast<uint64_t>(used) << 32 | first);
  DeathFence();  // [Z1]
}

// The pool of the entries of `table` before `end`. PSTN_NONE when all are taken, or `most` of them
// are, or the list says nonsense, or this process has no memory to map more of the table.
template <typename Entries>
uint32_t PoolTake(pstn_pool& pool, const Entries& table, uint32_t most = PSTN_NONE,
                  uint32_t end = PSTN_NONE) {
  using I = decltype(table.IndexAt(nullptr));
  end = table.Clamp(end);
  const Guard g(pool.lock);
  const uint32_t used = PoolUsed(pool);
  uint32_t idx = PoolFirst(pool), hw = LoadRelaxed(pool.hw);
  if (used >= most) return PSTN_NONE;
  const bool is_new = idx >= end;  // the list is empty: one that was never used comes into it
  if (is_new) idx = hw;
  auto* const entry = idx < end ? table.At(I(idx)) : nullptr;
  if (entry == nullptr) return PSTN_NONE;
  if (is_new) {
    StoreRelaxed(entry->next, PSTN_NONE);
    PoolSetHead(pool, idx, used);
  }
  if (idx == hw) StoreRelaxed(pool.hw, hw + 1);  // or an owner died before it could
  TakeInHands(*entry, pool.lock);
  PoolSetHead(pool, LoadRelaxed(entry->next), used + 1);
  return idx;
}

template <typename Entries>
void PoolGive(pstn_pool& pool, const Entries& table, uint32_t idx) {
  using I = decltype(table.IndexAt(nullptr));
  auto* const entry = table.At(I(idx));
  if (entry == nullptr) return;
  const Guard g(pool.lock);
  StoreRelaxed(entry->next, PoolFirst(pool));
  const uint32_t used = PoolUsed(pool);
  PoolSetHead(pool, idx, used != 0 ? used - 1 : 0);
  FreeHands(*entry);
}

}  // namespace postern
