// SPDX-License-Identifier: Apache-2.0
// view.cc - the stack's table of link groups, and a process's mappings of them.
#include "state/view.h"

#include <cstring>
#include <initializer_list>

#include "base/lock.h"

namespace postern {

uint32_t AddLgrRef(StackMap& s, uint32_t side, const pstn_uuid& id, const pstn_uuid& peer) {
  Guard g(s.hdr.lgr_lock);
  for (uint32_t i = 0; i < s.lgrs.count(); i++) {
    pstn_lgr_ref* const at = s.lgrs.At(LgrIndex(i));
    if (at == nullptr) return PSTN_NONE;
    pstn_lgr_ref& ref = *at;
    if (LoadRelaxed(ref.state) != 0) continue;
    // A reference that was used before has stale maps; a fresh one is zero and stays untouched.
    if (ref.id.hi != 0) memset(static_cast<void*>(&ref), 0, sizeof ref);
    ref.side = side;
    ref.id = id;
    ref.peer = peer;
    StoreRelease(ref.state, 1u);                                              // [L1]
    if (i >= LoadRelaxed(s.hdr.lgrs_hw)) StoreRelease(s.hdr.lgrs_hw, i + 1);  // [L2]
    return i;
  }
  return PSTN_NONE;
}

void FreeLgrRef(StackMap& s, uint32_t idx) {
  pstn_lgr_ref* const ref = s.lgrs.At(LgrIndex(idx));
  if (ref == nullptr) return;
  Guard g(s.hdr.lgr_lock);
  StoreRelease(ref->state, 0u);  // [L1]
}

void DropLgrMapping(StackView& v, uint32_t idx) {
  if (idx >= kGroups.most) return;
  if (v.lgr[idx] != nullptr) UnmapLgr(v.lgr[idx]);
  if (v.retired[idx] != nullptr) UnmapLgr(v.retired[idx]);
  v.retired[idx] = nullptr;
  StoreRelaxed(v.lgr[idx], nullptr);
  v.lgr_fd[idx] = 0;  // the caller, which knows whose fds these are, closes it
  DropQueuesMapping(v, idx);
}

void DropQueuesMapping(StackView& v, uint32_t which) {
  for (pstn_queues* const map : {v.queues[which].map, v.queues[which].retired})
    if (map != nullptr) UnmapQueues(map);
  v.queues[which] = {};
}

void SetQueuesMapping(StackView& v, uint32_t which, pstn_queues* map, uint64_t daemon) {
  QueuesHere& here = v.queues[which];
  if (here.map == nullptr && map == nullptr) return;
  StoreRelaxed(here.daemon, uint64_t{0});
  if (here.map != nullptr) {
    if (here.retired != nullptr) UnmapQueues(here.retired);
    here.retired = here.map;
  }
  StoreRelease(here.map, map);        // [V6]
  StoreRelease(here.daemon, daemon);  // [V6]
}

void SetLgrMapping(StackView& v, uint32_t idx, uint8_t* base, int fd) {
  SetLgrMapping(v, idx, base, fd, LgrHdr(base).id);
}

void SetLgrMapping(StackView& v, uint32_t idx, uint8_t* base, int fd, const pstn_uuid& id) {
  if (idx >= kGroups.most) return;
  if (v.lgr[idx] != nullptr) {
    if (v.retired[idx] != nullptr) UnmapLgr(v.retired[idx]);
    v.retired[idx] = v.lgr[idx];
    StoreRelaxed(v.lgr[idx], nullptr);
  }
  SetQueuesMapping(v, idx, nullptr, 0);
  StoreRelease(v.lgr_id[idx].hi, id.hi);  // [V2] a reader of this name does not see the old mapping
  StoreRelease(v.lgr_id[idx].lo, id.lo);  // [V2] who sees this name does not see the old mapping
  v.lgr_fd[idx] = fd;
  StoreRelease(v.lgr[idx], base);  // [V1]
}

}  // namespace postern
