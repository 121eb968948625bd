// SPDX-License-Identifier: Apache-2.0
// process.h - a process comes to its stack; what its children and its next image must know.
#pragma once

#include "family/family.h"

namespace postern {

// Reads options and, after an exec, takes over what the image before held. Once, before main.
void ProcessInit(Family& fam, const char* const* envp);
// The memory of a new stack, as the options say: a descriptor, or -errno.
int CreateStackOf(Family& fam);
// EnsureStack, where there is none yet.
bool MakeStack(Family& fam);
// Becomes a process of the stack in `stack_fd`, which is taken: the keeper's way in.
bool JoinStack(Family& fam, int stack_fd);

// Around a fork: no other thread changes what numbers mean, and the child gets a slot.
void ForkPrepare(Family& fam);
// The process may have changed its network namespace (unshare, setns).
void LearnNetns(Family& fam);
void ForkParent(Family& fam);
void ForkChild(Family& fam);
// The same around a spawn, whose child is another image: it needs none of this process's memory.
// `leave_to_kernel`: the stack has no slot left for a child, and what it inherits is to be the
// kernel's (SockExport).
void SpawnPrepare(Family& fam, void (*leave_to_kernel)(Family& fam));
void SpawnDone(Family& fam);
// The slot that ForkPrepare has made and no child has taken over yet; PSTN_NONE if there is none.
uint32_t EmbryoSlot(const Family& fam);
// A wait() has told that this child has ended.
void ChildEnded(Family& fam, int pid);
// Writes the variable (POSTERN_ATTACH=...) by which the next image in `slot` finds this stack, and
// lets the fds that it names survive the exec. Its length; 0: nothing to keep.
size_t ExecPrepare(Family& fam, char* variable, size_t bytes, uint32_t slot, bool spawn);
// The next image has no library: nothing is kept for it.
void ExecWithout(Family& fam);
// The exec did not happen, or the spawned child has been started: as before.
void ExecFailed(Family& fam);

}  // namespace postern
