// stack_words.cc - see stack_words.h.
// SPDX-License-Identifier: Apache-2.0
#include "stack_words.h"

#include <unistd.h>

#include <cstddef>

#include "base/atomic.h"

namespace postern::daemon {
namespace {

bool Put(const Stack& stack, size_t off, const void* from, size_t bytes) {
  return pwrite(stack.fd->get(), from, bytes, static_cast<off_t>(off)) ==
         static_cast<ssize_t>(bytes);
}
bool PutWord(const Stack& stack, size_t off, uint32_t value) {
  return Put(stack, off, &value, sizeof(value));
}

size_t RefOff(uint32_t idx) {
  return offsetof(pstn_stack, lgrs) + static_cast<size_t>(idx) * sizeof(pstn_lgr_ref);
}

bool Fill(const Stack& stack, uint32_t idx, uint32_t side, const pstn_uuid& id,
          const pstn_uuid& peer, uint32_t remote) {
  // A place that was used before has stale maps; a fresh one is zero and stays untouched.
  static const pstn_lgr_ref zero = {};
  const size_t at = RefOff(idx);
  if (stack.s->lgrs[idx].id.hi != 0 && !Put(stack, at, &zero, sizeof(zero))) return false;
  return PutWord(stack, at + offsetof(pstn_lgr_ref, side), side) &&
         Put(stack, at + offsetof(pstn_lgr_ref, id), &id, sizeof(id)) &&
         Put(stack, at + offsetof(pstn_lgr_ref, peer), &peer, sizeof(peer)) &&
         PutWord(stack, at + offsetof(pstn_lgr_ref, remote), remote) &&
         PutWord(stack, at + offsetof(pstn_lgr_ref, state), 1);
}

}  // namespace

uint32_t AddRef(const Stack& stack, uint32_t side, const pstn_uuid& id, const pstn_uuid& peer,
                uint32_t remote) {
  for (uint32_t i = 0; i < PSTN_LGRS; i++) {
    if (LoadAcquire(stack.s->lgrs[i].state) != 0 || stack.links.count(i) != 0) continue;
    if (!Fill(stack, i, side, id, peer, remote)) return PSTN_NONE;
    const size_t hw = offsetof(pstn_stack, hdr) + offsetof(pstn_stack_hdr, lgrs_hw);
    const bool seen = i < LoadAcquire(stack.s->hdr.lgrs_hw) || PutWord(stack, hw, i + 1);
    return seen ? i : PSTN_NONE;
  }
  return PSTN_NONE;
}

void FreeRef(const Stack& stack, uint32_t idx) {
  if (idx < PSTN_LGRS) (void)PutWord(stack, RefOff(idx) + offsetof(pstn_lgr_ref, state), 0);
}

void PutHeld(const Stack& stack, uint32_t ep_idx, uint32_t held, uint32_t in_talks) {
  if (ep_idx >= PSTN_EPS) return;
  const size_t at = offsetof(pstn_stack, eps) + static_cast<size_t>(ep_idx) * sizeof(pstn_ep);
  (void)PutWord(stack, at + offsetof(pstn_ep, held), held);
  (void)PutWord(stack, at + offsetof(pstn_ep, in_talks), in_talks);
}

void PutReaperGone(const Stack& stack) {
  (void)PutWord(stack, offsetof(pstn_stack, hdr) + offsetof(pstn_stack_hdr, reaper_pidns), 0);
}

}  // namespace postern::daemon
