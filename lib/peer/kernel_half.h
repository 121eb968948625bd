// SPDX-License-Identifier: Apache-2.0
// kernel_half.h - the kernel's socket behind an endpoint: how it comes, and how it takes over.
#pragma once
#include <sys/socket.h>

#include "base/schema/reasons.h"
#include "family/family.h"

namespace postern {

// A file descriptor for an endpoint: a kernel socket from the cache or a new one. -errno on
// failure.
long OpenFdFor(Family& fam, pstn_ep& ep, uint32_t ep_idx, bool want_bound, bool cloexec);
// Makes the endpoint the kernel's for good: options, flags and event registrations go with it.
void FallBack(Family& fam, int fd, pstn_ep& ep, Reason reason);
// Gives up the port that we chose for the kernel's socket. 0 or -errno. Under ep.setup_lock.
long Unbind(int fd, pstn_ep& ep) PSTN_REQUIRES(ep.setup_lock);
// The same, for the kernel's socket alone: its name is none of the endpoint's.
long LoseName(int fd, const pstn_ep& ep);
// The kernel's bind() to that address and port 0, in the endpoint's family. 0 or -errno.
long BindWithoutPort(int fd, const pstn_ep& ep, pstn_addr at);
// The name that the kernel's socket has. False: it tells none.
bool LearnName(int fd, uint32_t family, pstn_addr& name);
// Whether a socket of the kernel's has no connection, and had none, or disconnected it.
bool NeverConnected(int fd);
// Of such a one that had a name of ours once: the address of its last attempt is not the next
// one's.
void ForgetIdleAddress(int fd, const pstn_ep& ep);
// Makes an endpoint the kernel's that is neither connected nor listens. Under ep.setup_lock.
void BecomeKernels(Family& fam, int fd, pstn_ep& ep, Reason why) PSTN_REQUIRES(ep.setup_lock);
// The same, with the lock. False: it is connected or listens, since a moment.
bool LeaveUnconnected(Family& fam, int fd, pstn_ep& ep, Reason why) PSTN_EXCLUDES(ep.setup_lock);
// Shuts the kernel's socket down as the program has shut the endpoint (flags: PSTN_EPF_SHUT_*).
void ShutKernelSocket(int fd, uint32_t flags);
// The kernel's idea of the local name goes into the endpoint.
void LearnLocal(int fd, pstn_ep& ep);
// A listener becomes a plain socket again, after the kernel's has: shutdown, or connect to
// AF_UNSPEC.
void UnlistenEp(Family& fam, int fd, pstn_ep& ep);
// The connection is reset, or the attempt given up: a plain socket again. False: it is the
// kernel's, or was not connected.
bool DisconnectEp(Family& fam, int fd, pstn_ep& ep) PSTN_REQUIRES(ep.setup_lock);
long SockDisconnect(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa,
                    socklen_t len) PSTN_REQUIRES(ep.setup_lock);  // AF_UNSPEC

}  // namespace postern
