// SPDX-License-Identifier: Apache-2.0
// hands.h - what a dead process had in its hands (PSTN_REFS_*): entries of the stack's tables that
// it had taken and put nowhere yet, or was about to give back.
#pragma once
#include "family/family.h"
#include "state/in_hands.h"

namespace postern {

class Hands {
 public:
  // Of the process of `slot`, which is dead, and whose locks have been taken over.
  Hands(Family& fam, uint32_t slot);
  // Before its table is dropped: completes what it died in the middle of.
  void Mend() const;
  // After all else that finds its own way back: ends the rest.
  void End() const;

 private:
  // A reaper that died at its work is the last one; this is the next.
  bool Has(uint32_t mark) const {
    return mark != 0 && (mark == mark_ || (fam_.slot == PSTN_NONE && mark == PSTN_LOCK_REAPER));
  }
  template <typename Entries>
  void ClearFree(pstn_pool& pool, const Entries& table) const;
  template <typename Entries, typename Fn>
  void EndEach(const pstn_pool& pool, const Entries& table, Fn end) const;
  void EndEp(uint32_t idx) const;
  void EndItem(uint32_t idx) const;
  void EndSet(uint32_t idx) const;
  void EndChunk(uint32_t idx) const;

  Family& fam_;
  StackMap& s_;
  const uint32_t mark_;
};

}  // namespace postern
