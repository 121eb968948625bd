// SPDX-License-Identifier: Apache-2.0
// spawn_calls.cc - posix_spawn and its kin. What their children take over is in exec_calls.cc
// (SpawnWith).
#include <spawn.h>

#include "../real.h"
#include "peer/export.h"
#include "spawning.h"

using namespace postern;

PSTN_EXPORT int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attr, char* const argv[], char* const envp[]) {
  return SpawnBy(pid, path, false, envp, [&](pid_t* p, char* const* env) {
    const posix_spawnattr_t with = WithProgramMask(attr);
    return PSTN_REAL(posix_spawn)(p, path, actions, &with, argv, env);
  });
}
PSTN_EXPORT int posix_spawnp(pid_t* pid, const char* file,
                             const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attr, char* const argv[],
                             char* const envp[]) {
  return SpawnBy(pid, file, true, envp, [&](pid_t* p, char* const* env) {
    const posix_spawnattr_t with = WithProgramMask(attr);
    return PSTN_REAL(posix_spawnp)(p, file, actions, &with, argv, env);
  });
}

// glibc 2.39 has these, and older headers do not.
extern "C" int pidfd_spawn(int* pidfd, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attr, char* const argv[], char* const envp[]);
extern "C" int pidfd_spawnp(int* pidfd, const char* file, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attr, char* const argv[], char* const envp[]);

namespace {

// `real(attr, env)`: the C library's. Its child is known by a descriptor.
template <typename Real>
int SpawnToPidfd(int* pidfd, const char* path, bool search, const posix_spawnattr_t* attr,
                 char* const envp[], Real real) {
  pid_t pid = -1;
  return SpawnBy(&pid, path, search, envp, [&](pid_t* child, char* const* env) {
    const posix_spawnattr_t with = WithProgramMask(attr);
    const int r = real(&with, env);
    if (r == 0) *child = static_cast<pid_t>(PidOf(*pidfd));
    return r;
  });
}

}  // namespace

PSTN_EXPORT int pidfd_spawn(int* pidfd, const char* path, const posix_spawn_file_actions_t* actions,
                            const posix_spawnattr_t* attr, char* const argv[], char* const envp[]) {
  const auto real = PSTN_REAL(pidfd_spawn);
  if (real == nullptr) return ENOSYS;
  return SpawnToPidfd(pidfd, path, false, attr, envp,
                      [&](const posix_spawnattr_t* with, char* const* env) {
                        return real(pidfd, path, actions, with, argv, env);
                      });
}
PSTN_EXPORT int pidfd_spawnp(int* pidfd, const char* file,
                             const posix_spawn_file_actions_t* actions,
                             const posix_spawnattr_t* attr, char* const argv[],
                             char* const envp[]) {
  const auto real = PSTN_REAL(pidfd_spawnp);
  if (real == nullptr) return ENOSYS;
  return SpawnToPidfd(pidfd, file, true, attr, envp,
                      [&](const posix_spawnattr_t* with, char* const* env) {
                        return real(pidfd, file, actions, with, argv, env);
                      });
}
