// SPDX-License-Identifier: Apache-2.0
// local_lock.cc - see local_lock.h.
#include "family/local_lock.h"

namespace postern {
namespace {

// Locks of the table that this thread holds.
constinit thread_local uint32_t t_taken __attribute__((tls_model("initial-exec"))) = 0;

}  // namespace

// From before a fork to after it, and of a table: no analysis.
void LocalLocksTake(Family& fam) {
  EachLocalLock([&](const LocalLock& l) PSTN_NO_THREAD_SAFETY_ANALYSIS {
    if (l.renew != nullptr) return;
    Lock(l.of(fam));
    t_taken++;
  });
}

void LocalLocksGive(Family& fam) {
  if (t_taken == 0) return;
  t_taken = 0;
  EachLocalLock([&](const LocalLock& l) PSTN_NO_THREAD_SAFETY_ANALYSIS {
    if (l.renew == nullptr) Unlock(l.of(fam));
  });
}

void LocalLocksForked(Family& fam) {
  EachLocalLock([&](const LocalLock& l) { StoreRelaxed(l.of(fam).word, 0u); });
  EachLocalLock([&](const LocalLock& l) {
    if (l.renew != nullptr) l.renew(fam);
  });
  for (; t_taken != 0; t_taken--) LeaveLocked();
}

}  // namespace postern
