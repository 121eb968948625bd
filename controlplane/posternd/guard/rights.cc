// rights.cc - see rights.h.
// SPDX-License-Identifier: Apache-2.0
#include "rights.h"

#include <cap-ng.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "../../confine/call_filter.h"
#include "base/sanitized.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

namespace postern::daemon {
namespace {

struct Needed {
  unsigned capability;
  bool by_broker;  // which is told if it lacks it
  bool by_children;
  const char* why;
};
constexpr Needed kNeeded[] = {
    {CAP_SYS_PTRACE, true, false, "to see which network namespace another user's process is in"},
    {CAP_NET_ADMIN, true, false, "to see which network namespace a socket belongs to"},
    // A family of root's may have members of other users.
    {CAP_SETUID, false, true, "to start a reaper as its family's user"},
    {CAP_SETGID, false, true, "to start a reaper as its family's user"},
    {CAP_DAC_READ_SEARCH, false, false, "to see which descriptors such a member has"},
    {CAP_KILL, false, false, "to end that reaper"},
};

void DropCapabilities(Role role) {
  capng_get_caps_process();
  bool keeps[std::size(kNeeded)];
  for (size_t i = 0; i < std::size(kNeeded); i++) {
    const Needed& needed = kNeeded[i];
    const bool has = capng_have_capability(CAPNG_PERMITTED, needed.capability) == 1;
    keeps[i] = has && (role == Role::kSystem ? needed.by_broker : geteuid() == 0);
    if (!has && role == Role::kSystem && needed.by_broker)
      fprintf(stderr, "posternd: lacks the capability %s\n", needed.why);
  }
  capng_clear(CAPNG_SELECT_BOTH);
  for (size_t i = 0; i < std::size(kNeeded); i++) {
    if (!keeps[i]) continue;
    // A program that root starts has no more than the bounding set has.
    const int sets = CAPNG_EFFECTIVE | CAPNG_PERMITTED |
                     (kNeeded[i].by_children && geteuid() == 0 ? CAPNG_BOUNDING_SET : 0);
    (void)capng_update(CAPNG_ADD, static_cast<capng_type_t>(sets), kNeeded[i].capability);
  }
  // The bounding set needs CAP_SETPCAP, which an ordinary user has not.
  if (capng_apply(geteuid() == 0 ? CAPNG_SELECT_BOTH : CAPNG_SELECT_CAPS) != 0)
    fprintf(stderr, "posternd: cannot give up capabilities: %s\n", strerror(errno));
}

}  // namespace

bool GiveUpRights(Role role, bool has_nics) {
  // The VIs' own thread has what it needs already in the broker, but a posternd has no such thread
  // before the first VI is asked for.
  if (role == Role::kSystem || !has_nics) DropCapabilities(role);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  if (kSanitized) return true;
  // Linux 6.3: memory that was written is never executed.
  if (role == Role::kSystem) (void)prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0);
  // The broker's VIs are made by a thread of before, which the filter binds, too.
  const bool one_user = role == Role::kOneUser;
  const MoreCalls more = {has_nics, has_nics, has_nics, one_user, one_user};
  if (FilterCalls(more)) return true;
  fprintf(stderr, "posternd: no filter of system calls: %s\n", strerror(errno));
  return false;
}

}  // namespace postern::daemon
