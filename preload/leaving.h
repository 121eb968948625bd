// SPDX-License-Identifier: Apache-2.0
// leaving.h - descriptors on their way to a process that does not have the library, or to the
// kernel.
#pragma once
#include <sys/socket.h>

#include <climits>

#include "base/schema/reasons.h"

namespace postern {

// For sendmsg on `by`, a descriptor that is not ours: sockets that the message passes (SCM_RIGHTS)
// become the kernel's. 0, or -errno: one could not, and the message must not be sent.
inline constexpr int kAnySocket = INT_MIN;  // for `by`: not known, it may be one that passes them
long ExportPassed(int by, const msghdr* m);

// Whether the image at `path` comes up without the library: static, of another machine,
// set-user-id, or written in Go, which calls the kernel itself. `search`: along PATH, as execvp
// does.
bool LosesLibrary(const char* path, bool search);
// Whether the next image has the number, or may have it as another: with `spawn`, each that was
// ever named as the source of a file action.
bool OutlivesExec(int fd, bool spawn);
// Every socket that does (OutlivesExec) becomes the kernel's.
void ExportInherited(bool spawn);
// A spawned image, or one of a child of vfork(), may have this number's socket as another number.
void NoteMoved(int fd);
// The process is about to install a seccomp filter. Which calls that leaves it is known only to the
// program, which has counted on its own calls and not on ours (a doorbell is a sendto): every
// socket becomes the kernel's, and new ones stay there.
void ExportConfined();
// Every socket of this process becomes the kernel's, and new ones stay there: it is about to use
// them in a way that only the kernel can follow.
void StepAside(Reason why);
// Once more, for a socket that was being made meanwhile by another thread. Returns it.
int Aside(int fd);

}  // namespace postern
