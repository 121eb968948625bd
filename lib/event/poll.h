// SPDX-License-Identifier: Apache-2.0
// poll.h - poll() and select().
#pragma once
#include <poll.h>
#include <sys/select.h>

#include "base/clock.h"
#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

// `held`: accept() and recv() wait for what they have, whatever becomes of its number, and have
// just asked the kernel about it. `slept`: set when it had to.
long SockPoll(Family& fam, pollfd* fds, size_t n, Deadline until, const sigset_t* mask,
              const Call* held = nullptr, bool* slept = nullptr);
long SockSelect(Family& fam, int n, fd_set* r, fd_set* w, fd_set* x, Deadline until,
                const sigset_t* mask);
bool AnyOurs(Family& fam, pollfd* fds, size_t n);

}  // namespace postern
