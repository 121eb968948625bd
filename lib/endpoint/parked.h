// SPDX-License-Identifier: Apache-2.0
// parked.h - references that calls in progress have taken over from numbers that were closed, for
// call.cc and the closer's side.
#pragma once
#include <linux/membarrier.h>

#include "base/sys.h"
#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

inline constexpr uint64_t kLookNs = 20'000;

inline long Membarrier(int command) {
  return sys::Call(SYS_membarrier, static_cast<long>(command), 0L, 0L);
}

// A second reference, under a number of ours that the slot's table has. PSTN_NONE: no room.
// `file`: a descriptor of the same open file. If that has none any more (a close() that went past
// us), a number of another file keeps the reference: the calls under way use the endpoint all the
// same, and nothing of the kernel's. So they do where the program may have no more numbers; then
// our death leaves the reference to the family's.
uint32_t Park(Family& fam, int file, uint32_t entry);
void AddUser(Family& fam, uint32_t at);
// The last one ends what the number meant.
void DropUser(Family& fam, uint32_t at);

// For the kernel's half of a call that has it.
inline int FileOf(const Parked& p) { return p.is_file ? LoadRelaxed(p.number) : -1; }

inline ThreadUses* Record(Family& fam, uint32_t i) {
  if (i < kUsesChunk) return &fam.uses->first[i];
  ThreadUses* chunk = LoadAcquire(fam.uses->chunks[i / kUsesChunk]);  // [U2]
  return chunk != nullptr ? &chunk[i % kUsesChunk] : nullptr;
}

// This thread's record, if its last calls were on this family's descriptors.
inline ThreadUses* OwnUses(const Family& fam) {
  return t_uses != nullptr && t_uses->fam == &fam ? t_uses : nullptr;
}

}  // namespace postern
