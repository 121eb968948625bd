// SPDX-License-Identifier: Apache-2.0
// wait_calls.cc - wait and its kin: what an ended child held is released when its parent knows.
#include <sys/resource.h>
#include <sys/wait.h>

#include "life/process.h"
#include "real.h"
#include "sock/own_family.h"

using namespace postern;

namespace {

bool Ended(int status) { return WIFEXITED(status) || WIFSIGNALED(status); }

}  // namespace

PSTN_EXPORT pid_t wait4(pid_t pid, int* status, int options, rusage* usage) {
  int own = 0;
  if (status == nullptr) status = &own;
  pid_t r = PSTN_REAL(wait4)(pid, status, options, usage);
  if (r > 0 && Ended(*status)) ChildEnded(g_family, r);
  return r;
}
PSTN_EXPORT pid_t wait3(int* status, int options, rusage* usage) {
  return wait4(-1, status, options, usage);
}
PSTN_EXPORT pid_t waitpid(pid_t pid, int* status, int options) {
  return wait4(pid, status, options, nullptr);
}
PSTN_EXPORT pid_t wait(int* status) { return wait4(-1, status, 0, nullptr); }
PSTN_EXPORT int waitid(idtype_t type, id_t id, siginfo_t* info, int options) {
  siginfo_t own = {};
  if (info == nullptr) info = &own;
  int r = PSTN_REAL(waitid)(type, id, info, options);
  bool ended =
      info->si_code == CLD_EXITED || info->si_code == CLD_KILLED || info->si_code == CLD_DUMPED;
  if (r == 0 && ended && (options & WNOWAIT) == 0) ChildEnded(g_family, info->si_pid);
  return r;
}
