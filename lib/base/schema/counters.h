// counters.h - what a stack counts: indices into pstn_stack_hdr.counters, names and meanings.
// SPDX-License-Identifier: Apache-2.0
//
// The list is counters.def. Counters are relaxed: each is exact in itself once writers are quiet,
// no two of them are consistent with each other.
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern {

enum Counter : uint32_t {
#define PSTN_COUNTER(name, text_name, text) kCounter##name,
#include "base/schema/counters.def"
#undef PSTN_COUNTER
  kCounterCount
};
static_assert(kCounterCount <= PSTN_COUNTERS, "pstn_stack_hdr.counters has a place for each");

inline void Count(pstn_stack_hdr& hdr, Counter counter, uint64_t n = 1) {
  std::atomic_ref<pstn_u64>(hdr.counters[counter]).fetch_add(n, std::memory_order_relaxed);
}

// "kernel_connects"; "unknown" when there is no such counter.
const char* CounterName(uint32_t counter);
const char* CounterText(uint32_t counter);

}  // namespace postern
