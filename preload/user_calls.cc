// SPDX-License-Identifier: Apache-2.0
// user_calls.cc - calls by which a process becomes another user: then it leaves its family.
#include <unistd.h>

#include <cerrno>

#include "family/family.h"
#include "life/depart.h"
#include "real.h"
#include "sock/own_family.h"

using namespace postern;

namespace {

// Who has no stack yet gets one now: only those that leave a family of root's posternd have a place
// there afterwards.
void BeforeUserChange() {
  if (!g_family.enabled || g_family.attached || LoadRelaxed(g_family.aside) != 0 || InVfork() ||
      geteuid() != 0)
    return;
  const int e = errno;
  (void)EnsureStack(g_family);
  errno = e;
}

int AfterUserChange(int result) {
  const int e = errno;
  if (result == 0 && !InVfork()) UserChanged(g_family);
  errno = e;
  return result;
}

__attribute__((destructor)) void End() { LeaveQueues(g_family); }

}  // namespace

PSTN_EXPORT int setuid(uid_t uid) noexcept {
  if (uid != 0) BeforeUserChange();
  return AfterUserChange(PSTN_REAL(setuid)(uid));
}

PSTN_EXPORT int setreuid(uid_t real, uid_t effective) noexcept {
  if (real != 0 && effective != 0) BeforeUserChange();
  return AfterUserChange(PSTN_REAL(setreuid)(real, effective));
}

extern "C" int setresuid(uid_t real, uid_t effective, uid_t saved) noexcept;
PSTN_EXPORT int setresuid(uid_t real, uid_t effective, uid_t saved) noexcept {
  if (real != 0 && effective != 0 && saved != 0) BeforeUserChange();
  return AfterUserChange(PSTN_REAL(setresuid)(real, effective, saved));
}

PSTN_EXPORT int seteuid(uid_t uid) noexcept { return AfterUserChange(PSTN_REAL(seteuid)(uid)); }
