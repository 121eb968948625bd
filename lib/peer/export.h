// SPDX-License-Identifier: Apache-2.0
// export.h - descriptors that others than the family's processes get.
#pragma once

#include <sys/socket.h>

#include "family/family.h"

namespace postern {

// To be called before it happens. 0, or -errno: the connection could not be moved, nothing has
// changed.
long SockExport(Family& fam, int fd);
long ExportFor(Family& fam, int fd, Reason why);  // with the reason that is shown
// Whether the kernel knows all of that number: what it does with it is what the library would do.
bool KernelKnows(Family& fam, int fd);
// The process behind a pidfd; 0 if it has ended or is in another pid namespace.
uint32_t PidOf(int pidfd);
// `fd` was taken from another process (pidfd_getfd), where its number is `target`.
void SockAdopt(Family& fam, int fd, int pidfd, int target);
// The keeper's part; `fd`, the endpoint's kernel socket, is taken. Of a connection: that socket
// becomes connected to another, and a new endpoint has what the old one had. Of a listener: clients
// in its queue get into the kernel's queue. `taken` gets each pair: the fd of an endpoint
// of ours, and the kernel socket whose other end the program has, or will accept. With `hand_on` a
// connection goes on in shared memory (meet.h): there is no kernel socket, -1. A listener whose
// processes have all died has no socket here: then `fd` is any, and `at` is where it listens.
using Taken = void (*)(void* context, int ring_fd, int kernel_fd);
// In the place of `kernel_fd`: the kernel module has the socket, and reads and writes the
// endpoint's rings; `ring_fd` is held until the module says that it has closed the connection.
inline constexpr int kHeldForModule = -2;
struct ListensAt {
  sockaddr_storage name;
  socklen_t len;
};
long TakeOver(Family& fam, int fd, uint32_t ep_idx, uint32_t ep_gen, bool hand_on,
              const ListensAt* at, Taken taken, void* context);
// A process died while it took over a connection: whatever step it had come to is completed.
void FinishTakeOver(Family& fam, pstn_ep& taker);

}  // namespace postern
