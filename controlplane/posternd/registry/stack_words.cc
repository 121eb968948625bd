// stack_words.cc - see stack_words.h.
// SPDX-License-Identifier: Apache-2.0
#include "stack_words.h"

#include <unistd.h>

#include <cstddef>
#include <string>

#include "../guard/patience.h"
#include "base/atomic.h"
#include "slot_copy.h"

namespace postern::daemon {
namespace {

// A write of the family's to the same memory holds the lock that this one takes: of a guest's, the
// daemon's thread does not wait for it.
bool Put(const Stack& stack, size_t off, const void* from, size_t bytes) {
  const auto put = [fd = stack.fd, off](const void* what, size_t size) {
    return pwrite(fd->get(), what, size, static_cast<off_t>(off)) == static_cast<ssize_t>(size);
  };
  if (!IsGuests(stack)) return put(from, bytes);
  const std::string copy(static_cast<const char*>(from), bytes);
  return AnswerInTime(stack.uid, [put, copy] { return put(copy.data(), copy.size()); })
      .value_or(false);
}
bool PutWord(const Stack& stack, size_t off, uint32_t value) {
  return Put(stack, off, &value, sizeof(value));
}

bool Fill(const Stack& stack, const pstn_lgr_ref& ref, uint32_t side, const pstn_uuid& id,
          const pstn_uuid& peer, uint32_t remote, uint32_t queued) {
  // A place that was used before has stale maps; a fresh one is zero and stays untouched.
  static const pstn_lgr_ref zero = {};
  const size_t at = stack.s->OffOf(&ref);
  if (ref.id.hi != 0 && !Put(stack, at, &zero, sizeof(zero))) return false;
  return PutWord(stack, at + offsetof(pstn_lgr_ref, side), side) &&
         Put(stack, at + offsetof(pstn_lgr_ref, id), &id, sizeof(id)) &&
         Put(stack, at + offsetof(pstn_lgr_ref, peer), &peer, sizeof(peer)) &&
         PutWord(stack, at + offsetof(pstn_lgr_ref, remote), remote) &&
         PutWord(stack, at + offsetof(pstn_lgr_ref, queued), queued) &&
         PutWord(stack, at + offsetof(pstn_lgr_ref, state), 1);
}

}  // namespace

uint32_t AddRef(const Stack& stack, uint32_t side, const pstn_uuid& id, const pstn_uuid& peer,
                uint32_t remote, uint32_t queued) {
  for (const pstn_lgr_ref& ref : stack.s->lgrs.All()) {
    const uint32_t i = stack.s->lgrs.IndexOf(ref).word();
    if (LoadAcquire(ref.state) != 0 || stack.links.count(i) != 0) continue;
    if (!Fill(stack, ref, side, id, peer, remote, queued)) return PSTN_NONE;
    const size_t hw = offsetof(pstn_stack_hdr, lgrs_hw);
    const bool seen = i < LoadAcquire(stack.s->hdr.lgrs_hw) || PutWord(stack, hw, i + 1);
    return seen ? i : PSTN_NONE;
  }
  return PSTN_NONE;
}

void FreeRef(const Stack& stack, uint32_t idx) {
  const pstn_lgr_ref* const ref = stack.s->lgrs.At(LgrIndex(idx));
  if (ref != nullptr) (void)PutWord(stack, stack.s->OffOf(&ref->state), 0);
}

void PutHeld(const Stack& stack, uint32_t ep_idx, uint32_t held, uint32_t in_talks) {
  const pstn_ep* const ep = stack.s->eps.At(EpIndex(ep_idx));
  if (ep == nullptr) return;
  (void)PutWord(stack, stack.s->OffOf(&ep->held), held);
  (void)PutWord(stack, stack.s->OffOf(&ep->in_talks), in_talks);
}

void PutUnlisted(const Stack& stack, uint32_t ep_idx, bool unlisted) {
  const pstn_ep* const ep = stack.s->eps.At(EpIndex(ep_idx));
  if (ep == nullptr || LoadRelaxed(ep->unlisted) == (unlisted ? 1u : 0u)) return;
  (void)PutWord(stack, stack.s->OffOf(&ep->unlisted), unlisted ? 1 : 0);
}

void PutReaperGone(const Stack& stack) {
  (void)PutWord(stack, offsetof(pstn_stack_hdr, reaper_pidns), 0);
}

}  // namespace postern::daemon
