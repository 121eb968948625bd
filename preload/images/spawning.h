// SPDX-License-Identifier: Apache-2.0
// spawning.h - what a child that is made inside libc, past our fork handlers, has to know.
#pragma once
#include <setjmp.h>
#include <spawn.h>
#include <sys/types.h>

namespace postern {

// `spawn(context, pid, envp)` starts the child, whose image is `path` (looked for in PATH, if
// `search`), with `envp` as its environment. The child has a slot of its own, made beforehand,
// which its image, if it is preloaded, takes over; posternd reaps it otherwise. What `spawn`
// returned.
using SpawnCall = int (*)(void* context, pid_t* pid, char* const envp[]);
int SpawnWith(pid_t* pid, const char* path, bool search, char* const envp[], SpawnCall spawn,
              void* context);

// Between the two, this thread may become another image at any instruction: a signal that would be
// put aside jumps to `to` instead, once it is. False, and not begun: one has been already.
bool BeginLeaving(jmp_buf& to);
void EndLeaving();

// `attr` (null: none) with the mask that the program's thread has, if no other is asked for: a
// signal that was put aside has blocked all others meanwhile. For a SpawnCall to make.
posix_spawnattr_t WithProgramMask(const posix_spawnattr_t* attr);

template <typename Spawn>
int SpawnBy(pid_t* pid, const char* path, bool search, char* const envp[], Spawn spawn) {
  return SpawnWith(
      pid, path, search, envp,
      [](void* s, pid_t* p, char* const* env) { return (*static_cast<Spawn*>(s))(p, env); },
      &spawn);
}

}  // namespace postern
