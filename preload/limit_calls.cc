// SPDX-License-Identifier: Apache-2.0
// limit_calls.cc - setrlimit: a program that limits its address space has all of it.
#include <sys/resource.h>

#include "base/space/room.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "leaving.h"
#include "life/depart.h"
#include "real.h"
#include "sock/own_family.h"
#include "state/address_limit.h"

using namespace postern;

namespace {

// A process that allows itself no more is about to enter a sandbox. (OpenSSH's: 1.)
constexpr rlim_t kNoDescriptors = 1;

// Before: afterwards there may be no room to leave in. And the kernel refuses to send a descriptor
// while its user has more of them under way than the process may have (ETOOMANYREFS).
void BeforeLimit(int resource, const void* limit) {
  if ((resource != RLIMIT_AS && resource != RLIMIT_NOFILE) || limit == nullptr ||
      !g_family.attached || InVfork())
    return;
  rlim_t soft;
  if (!GetUser(soft, &static_cast<const rlimit*>(limit)->rlim_cur)) return;
  const int e = errno;
  if (resource == RLIMIT_NOFILE) {
    if (soft <= kNoDescriptors) StepAside(kReasonSandbox);
  } else if (!AddressesIn(soft == RLIM_INFINITY ? kUnbounded : soft).HoldAStack())
    LeaveForGood(g_family, kReasonLimits);
  errno = e;
}

// What is mapped yet has to fit into what is left.
int AfterLimit(int resource, const void* limit, int r) {
  const int e = errno;
  if (r == 0 && resource == RLIMIT_AS && limit != nullptr && g_family.attached && !InVfork())
    SayAllChunks(g_family.view);
  errno = e;
  return r;
}

}  // namespace

PSTN_EXPORT int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  BeforeLimit(resource, limit);
  return AfterLimit(resource, limit, PSTN_REAL(setrlimit)(resource, limit));
}
PSTN_EXPORT int setrlimit64(__rlimit_resource_t resource, const rlimit64* limit) noexcept {
  BeforeLimit(resource, limit);
  return AfterLimit(resource, limit, PSTN_REAL(setrlimit64)(resource, limit));
}
PSTN_EXPORT int prlimit(pid_t pid, __rlimit_resource resource, const rlimit* limit,
                        rlimit* old) noexcept {
  const bool own = pid == 0 || pid == sys::Pid();
  if (own) BeforeLimit(resource, limit);
  return AfterLimit(resource, own ? limit : nullptr, PSTN_REAL(prlimit)(pid, resource, limit, old));
}
PSTN_EXPORT int prlimit64(pid_t pid, __rlimit_resource resource, const rlimit64* limit,
                          rlimit64* old) noexcept {
  const bool own = pid == 0 || pid == sys::Pid();
  if (own) BeforeLimit(resource, limit);
  return AfterLimit(resource, own ? limit : nullptr,
                    PSTN_REAL(prlimit64)(pid, resource, limit, old));
}
