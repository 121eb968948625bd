// SPDX-License-Identifier: Apache-2.0
// stack_map.cc - see stack_map.h.
#include "state/stack_map.h"

namespace postern {
namespace {

constexpr uint64_t kPage = 4096;

// Where the next table begins; `at` becomes its end.
template <typename T>
constexpr uint64_t Place(uint64_t& at, uint32_t count) {
  static_assert(kPage % alignof(T) == 0 && sizeof(T) % alignof(T) == 0);
  const uint64_t begin = PSTN_ALIGN_UP(at, kPage);
  at = begin + sizeof(T) * uint64_t{count};
  return begin;
}

constexpr StackLayout Places(const pstn_stack_counts& c) {
  StackLayout l{};
  uint64_t at = sizeof(pstn_stack_hdr);
  l.waiters = Place<pstn_waiter>(at, c.waiters);
  l.epolls = Place<pstn_epoll>(at, c.epolls);
  l.slots = Place<pstn_slot>(at, c.slots);
  l.lgrs = Place<pstn_lgr_ref>(at, c.lgrs);
  l.eps = Place<pstn_ep>(at, c.eps);
  l.items = Place<pstn_item>(at, c.items);
  l.fdchunks = Place<pstn_fdchunk>(at, c.fdchunks);
  l.bytes = PSTN_ALIGN_UP(at, kPage);
  return l;
}
// Within the ranges nothing overflows: the largest stack there can be is no larger than this.
static_assert(Places(CountsOf({kProcesses.most, kSockets.most, kGroups.most, kSets.most,
                               kRegistrations.most}))
                  .bytes < uint64_t{1} << 32);

}  // namespace

bool LayOut(const pstn_stack_counts& counts, StackLayout& layout) {
  StackSizes sizes;
  if (!SizesOf(counts, sizes)) return false;
  layout = Places(counts);
  // A link group's memory is posternd's, which those at both its ends can write: by its size it is
  // no stack of posternd's user.
  return layout.bytes != PSTN_LGR_BYTES;
}

}  // namespace postern
